// Environments alone as benchmark rows: many instances with random actions drawn inside, resets and statistics on.
#pragma once
#include <string>
#include <vector>

#include "bench/train_rows.h"
#include "ridge/rl.h"

namespace ridge {
class Executable;
class Backend;
}  // namespace ridge

namespace ridge::bench {

struct EnvRow {
  std::string name, environment;  // "pong-env/state", "pong"
  int64_t instances, decisions;   // of one run of the program
  bool frames;                    // puts out the newest frame of every decision
};
std::vector<EnvRow> env_rows();

// The program of a row: `decisions` steps of all instances, from and to their states.
class EnvProgram {
 public:
  EnvProgram(const EnvRow& row, Backend& backend);
  ~EnvProgram();
  void run();                                 // the next decisions
  std::vector<float> finished(bool returns);  // per instance: the sum of the finished episodes' returns, or their number
  std::vector<std::byte> state();             // of all instances
  const Executable& program() const;
  const Instances& game() const { return game_; }

 private:
  struct State;
  Instances game_;
  std::unique_ptr<State> state_;
};

TrainResult measure_environment(const EnvRow& row, const Options& options, ThreadTeam* team);

}  // namespace ridge::bench
