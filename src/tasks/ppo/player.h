// Single games of a trained agent, decision by decision, with pictures.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tasks/ppo/ppo.h"

namespace ridge {

struct PlayedDecision {
  std::vector<float> action;           // as the environment got it
  float value = 0;                     // the return that the policy expected before it
  float reward = 0;                    // clipped and scaled as the options say
  float episode_return = 0;            // of the episode that ended here
  bool ended = false, capped = false;  // capped: by the time limit
};

class HostPlay;

// Height, width and 3 of the pictures that an environment draws; rank 0: it draws none.
Shape picture_of(const Instances& instances);

class AgentPlayer {
 public:
  struct Options {
    bool sampled = true;       // draws actions; false: the most likely ones
    int64_t decisions = 1;     // per call of play()
    bool two_players = false;  // the last component of an action is somebody else's
  };
  // Plays with the step's weights. `instances`: with two players, those of the environment for two.
  AgentPlayer(TrainStep& step, std::shared_ptr<const Policy> policy, std::span<const Tensor> weights, const Instances& instances, const PpoArgs& args,
              const Options& options);
  ~AgentPlayer();

  void use_statistics(const RunningMoments& observations, const RunningMoments& values);  // that the agent was trained with
  void begin(int64_t instance);                                                           // a new game; the number decides its random draws
  // With several decisions per call, the state before each one is kept until begin() is called again, for pictures.
  std::vector<PlayedDecision> play(int64_t other = 0);

  bool can_continue(const AgentPlayer& game) const;  // the other game's state is one of this game
  void continue_from(const AgentPlayer& game);

  bool has_picture() const { return picture_.rank() == 3; }
  Shape picture() const { return picture_; }  // height, width, 3
  int64_t kept() const { return kept_; }      // states
  // Pictures of up to kPictures of the kept states, one after the other; and of the present state.
  static constexpr size_t kPictures = 8;
  std::vector<uint8_t> pictures(std::span<const int64_t> states);
  std::vector<uint8_t> present_picture();

 private:
  using Bytes = std::vector<std::byte>;
  std::vector<uint8_t> render(ReadProgram& program, int64_t rows, const std::vector<const void*>& state) const;
  std::vector<PlayedDecision> play_on_host();

  Instances instances_;
  std::shared_ptr<const Policy> policy_;
  PpoArgs args_;
  Options options_;
  std::vector<Type> types_;  // of the carry: the environment's own state, the wrapper's, the policy's
  size_t own_ = 0, environment_ = 0;
  Shape picture_;
  std::unique_ptr<ReadProgram> start_, play_, render_one_, render_several_;
  std::vector<Bytes> carry_;
  std::vector<Bytes> states_;  // kept ones, by tensor of the environment's own state; of a host environment: pictures
  std::unique_ptr<HostPlay> host_;
  int64_t kept_ = 0;
  std::vector<float> shift_, scale_;
  float value_scale_[2] = {0, 1};
};

double decisions_per_second(const Instances& instances);  // about as fast as people play: 60 frames a second, or 30 decisions without frame skip

// Episodes as a GIF.
struct Recording {
  std::string gif;
  std::vector<float> returns;  // of the episodes that ended
  int64_t decisions = 0;
};
// Plays from the instance's first episode on until so many have ended, or until `most` decisions. The player keeps states of several decisions at once.
Recording record_episodes(AgentPlayer& player, const Instances& instances, int64_t instance, int64_t episodes, int64_t most);

}  // namespace ridge
