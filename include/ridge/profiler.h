// Where the time and the memory of steps go: kernel by kernel, with the layers of the model that they come from.
//
//   ridge::Profiler profiler;
//   for (int i = 0; i < 40; ++i) {
//     profiler.begin_step(i % 2 == 1);   // every other step is recorded; the rest are timed as they are, as the yardstick
//     step.run(batch);
//   }
//   profiler.end();
//   std::puts(profiler.text().c_str());
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace ridge {

struct StepProfile;

class Profiler {
 public:
  Profiler();
  ~Profiler();
  Profiler(const Profiler&) = delete;

  // Ends the step before, if any. All programs of the process are recorded until the step ends; one profiler at a time.
  enum class Record { nothing, times, values };  // values: the ranges of what kernels write instead of their times, on devices in host memory
  void begin_step(Record record);
  void begin_step(bool recorded = true) { begin_step(recorded ? Record::times : Record::nothing); }
  void next_step();                   // one more step of a stretch that is timed as a whole; starts an unrecorded one if none is running
  void waiting_for_data(bool waits);  // marks the part of a step that waits for its data
  void end_step();                    // what follows belongs to no step until the next one begins
  void end();                         // makes the figures

  // Waits for a device that runs behind the host; called before the clock is read. Unset: everything ends when its call returns.
  void set_wait(std::function<void()> wait);
  // Measured ceilings, for the fraction of the roof; 0: unknown. Exponentials count in attention.
  void set_roof(double flops_per_second, double bytes_per_second, double exponentials_per_second = 0);
  void set_title(const std::string& title, int64_t planned_bytes = 0);

  std::string text(int rows = 25) const;
  std::string json() const;
  std::string trace() const;  // for Perfetto and chrome://tracing: the recorded step with the median time
  // SVG
  std::string roofline_picture() const;
  std::string memory_picture() const;
  std::string timeline_picture() const;

  const StepProfile& profile() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
