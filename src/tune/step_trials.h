// The choices of a training step that change how fast it is but not what it learns, and how they are measured: whole steps, compiled with each choice and run
// in turns on one batch.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "step/train_step.h"
#include "tune/load_watch.h"
#include "tune/search.h"

namespace ridge {

class ThreadTeam;
struct TeamOptions;

// A point of the space in words that fit steps of other sizes too: "threads" -> "1", "parts" -> "2", "recompute" -> "elementwise", "passes" -> "-streaming".
// A choice that is not listed is as planned.
using TunedWords = std::map<std::string, std::string>;
inline constexpr std::string_view kTuneKeys = "tune/";                     // prefix of the keys in the measurement store
inline constexpr const char* kVariant = "variant";                         // the word of a single kernel's choice
std::span<const std::string_view> tune_dimensions();                       // all that a space may have, and "kernels"
bool changes_bits(const TunedWords& words);                                // any but threads
TunedWords neutral_part(TunedWords words);                                 // without what changes bits
void apply(const TunedWords& words, int64_t batch, StepOptions& options);  // except threads. ErrorCode::io: a word is not known

struct StepTrialOptions {
  std::function<void(size_t parameter, std::span<float> values)> fill;  // initial weights
  std::function<void(std::span<std::byte* const> tensors)> batch = {};  // empty: normal numbers, and zeros for indices
  int64_t memory = 0;                                                   // for all steps that are held at a time; 0: no limit
  std::vector<std::string> fixed = {};                                  // dimensions that the user has settled
  std::vector<std::string> only = {};                                   // dimensions to search; empty: all
  bool same_bits = false;                                               // only choices that cannot change bits
  const TeamOptions* team = nullptr;                                    // of the planned step's backend, if its threads may change
};

// The batch that trial steps run on.
class TrialBatch {
 public:
  TrialBatch(const StepModel& model, const StepTrialOptions& options);
  // Steps follow each other as in training; returns seconds for one.
  double run(TrainStep& step, int times) const;
  StepMetrics run_once(TrainStep& step) const;

 private:
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<const void*> data_;
};

inline constexpr double kSampleSeconds = 0.012;  // short steps are repeated until a sample takes this long

// Why a step's figures are wrong, compared with the planned step's; empty: they are right. number: of the step, for the text.
std::string compare_steps(const StepMetrics& with, const StepMetrics& planned, Precision precision, int number);

class StepTrials : public TuneTarget {
 public:
  StepTrials(const TrainStep& planned, StepTrialOptions options);
  ~StepTrials() override;

  const TuneSpace& space() const { return space_; }
  TunedWords words(const TunePoint& point) const;
  // The CPU with a team of this many threads, which it owns.
  static std::shared_ptr<Backend> backend_with(const TeamOptions& team, int threads);

  std::string check(const TunePoint& point) override;  // compiles the step and compares two steps with the planned one's
  TuneSample measure(const TunePoint& point) override;
  double now() override;

 private:
  struct Ready;
  Ready& ready(const TunePoint& point);
  void add_dimensions(const TrainStep& planned);
  std::string compare(const Ready& with, const Ready& start) const;

  StepModel model_;
  StepOptions options_;
  StepTrialOptions o_;
  TuneSpace space_;
  std::vector<std::unique_ptr<Ready>> ready_;  // the planned one, then the others, most recently used last
  std::optional<TrialBatch> batch_;
  int64_t samples_ = 0;
  int times_ = 1;      // steps per measurement
  bool warm_ = false;  // one more before it, which is not timed
  LoadWatch load_;
};

// Where the results for a step are stored: its task, device, number format, structure and candidates, and its sizes rounded to powers of two, so that
// neighbours share them. The measurement store adds the machine and the build.
std::string tuning_key(std::string_view task, const TrainStep& step, const TuneSpace& space);

}  // namespace ridge
