// Runs code that may crash, hang or exit (a driver's library, say) in a child process, and reads its output.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace ridge {

// How the child answers: in whole lines. Lines written before a crash still arrive.
class ChildOutput {
 public:
  explicit ChildOutput(int descriptor) : descriptor_(descriptor) {}
  void line(const std::string& text);  // control characters become spaces; tabs stay

 private:
  int descriptor_;
};

struct ChildAnswer {
  enum class End { finished, crashed, exited, timed_out, not_started } end = End::not_started;
  int code = 0;  // the signal, the exit code or errno
  std::vector<std::string> lines;
};

std::string describe(const ChildAnswer& answer);  // "crashed (SIGSEGV)", "did not answer in time"

// Runs all questions concurrently, each in its own child process; children that have not finished after `seconds` are killed. Their stdout and stderr are
// discarded, and nothing that they load or break affects this process.
std::vector<ChildAnswer> ask_children(const std::vector<std::function<void(ChildOutput&)>>& questions, double seconds);

// The same in two steps, so that the caller can work in between. The destructor kills children that have not finished.
class PendingChildren {
 public:
  PendingChildren(const std::vector<std::function<void(ChildOutput&)>>& questions, double seconds);  // starts the children
  ~PendingChildren();
  PendingChildren(const PendingChildren&) = delete;
  std::vector<ChildAnswer> answers();  // waits; call once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
