// Runs code that may crash, hang or end the program (a driver's library, say) in a child process, and reads what it wrote.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace ridge {

// The child's way to answer: whole lines. What was said before a crash is still heard.
class ChildVoice {
 public:
  explicit ChildVoice(int descriptor) : descriptor_(descriptor) {}
  void line(const std::string& text);  // control characters become spaces, tabs stay

 private:
  int descriptor_;
};

struct ChildAnswer {
  enum class End { finished, crashed, exited, timed_out, not_started } end = End::not_started;
  int code = 0;  // the signal, the exit code or errno
  std::vector<std::string> lines;
};

std::string describe(const ChildAnswer& answer);  // "crashed (SIGSEGV)", "did not answer in time"

// All run at the same time, each in a child of its own; whoever is not done after so many seconds is killed. The children's
// output is thrown away, and nothing that they load or break stays in this process.
std::vector<ChildAnswer> ask_children(const std::vector<std::function<void(ChildVoice&)>>& questions, double seconds);

// The same in two parts, with other work between them. Who is not done when this goes is killed.
class AskedChildren {
 public:
  AskedChildren(const std::vector<std::function<void(ChildVoice&)>>& questions, double seconds);  // they begin
  ~AskedChildren();
  AskedChildren(const AskedChildren&) = delete;
  std::vector<ChildAnswer> answers();  // waits; once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
