// Environments that are ordinary C++ objects instead of tensor code: simulators, game engines, devices. docs/environments.md shows how to write one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ridge/rl.h"

namespace ridge {

// The memory of all instances of a host environment: what belongs to instance i starts at element i × (numbers per instance). Pointers that a call does not use
// are null.
struct HostMemory {
  const uint64_t* seeds = nullptr;   // reset: one per instance, another for every episode
  const float* draws = nullptr;      // reset, step: [instances, reset_draws or step_draws of the spec], uniform in [0, 1)
  const int64_t* choices = nullptr;  // step: [instances, components], discrete actions
  const float* controls = nullptr;   // step: [instances, components], continuous actions, within their bounds
  float* reward = nullptr;           // step: to fill
  bool* terminated = nullptr;        // step: set it to true if the episode is over
  bool* truncated = nullptr;         // step: set it to true if the episode was cut off, though it could have gone on
  float* numbers = nullptr;          // observe: [instances, observation…] to fill, of the spec's type f32
  uint8_t* bytes = nullptr;          // observe: the same, of type u8
};

// Many instances of a game, numbered from 0. Ridge calls reset() before anything else, calls step() only within an episode, and does the rest itself: frame
// skip, sticky actions, time limits, a new episode after the last. What one instance does must be a function of what it was given, and not depend on another
// instance, nor on the time: then a run can be repeated bit for bit with any number of threads.
class HostEnvironment {
 public:
  using Which = std::span<const int64_t>;  // instances, in ascending order

  virtual ~HostEnvironment() = default;
  virtual const EnvSpec& spec() const = 0;                                // observations are f32 or u8
  virtual void reset(Which which, const HostMemory& memory) = 0;          // begins an episode in each of these
  virtual void step(Which which, const HostMemory& memory) = 0;           // one step of each
  virtual void observe(Which which, const HostMemory& memory) const = 0;  // what an agent sees of each

  // Who may call reset(), step() and observe().
  enum class Threads {
    several,   // several threads at once, each with instances of its own
    one,       // one thread at a time, whichever it is
    training,  // only the thread that trains
  };
  virtual Threads threads() const { return Threads::several; }

  // For checkpoints: all that an instance is. Without them, a resumed run begins new episodes and says that it is not bit-exact.
  virtual bool can_save() const { return false; }
  virtual std::vector<std::byte> save(int64_t instance) const;
  virtual void load(int64_t instance, std::span<const std::byte> bytes);

  // A picture in colours, [height, width, 3]; a shape of rank 0: there is none.
  virtual Shape picture() const { return {}; }
  virtual void render(int64_t instance, uint8_t* pixels) const;
};

// Makes an environment of so many instances. Ridge makes several: to train, to evaluate, to show.
using MakeHostEnvironment = std::function<std::unique_ptr<HostEnvironment>(int64_t instances)>;

// Adds an environment to those that make_environment() and the setting env=NAME know. The name replaces that of the spec. ErrorCode::usage if it is taken.
void register_environment(const std::string& name, MakeHostEnvironment make);
void register_environment(const std::string& name, std::function<std::shared_ptr<const Environment>()> make);  // tensor code; its spec must have this name

// Tensor code as a host environment: the same game, bit for bit. Slower than the environment itself, but it shows that the rules of a game written twice agree.
std::unique_ptr<HostEnvironment> host_environment(std::shared_ptr<const Environment> environment, int64_t instances);

}  // namespace ridge
