#include "drivers/guarded_call.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include <fmt/core.h>

#if defined(__linux__)
#include <sys/prctl.h>
#endif

namespace ridge {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxBytes = 1 << 20;             // per child's answer; a misbehaving driver must not fill our memory
constexpr std::string_view kLastLine = "\x04\n";  // marks a complete answer

struct Child {
  pid_t pid = -1;
  int descriptor = -1;
  bool open = false;
  std::string text;
};

void write_all(int descriptor, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(descriptor, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    data += written, size -= size_t(written);
  }
}

// The child must not inherit the parent's open files, which include locks and stores.
void close_from(int first) {
#if defined(__linux__)
  if (::close_range(unsigned(first), ~0u, 0) == 0) return;
#endif
  constexpr int kMax = 4096;
  for (int descriptor = first; descriptor < kMax; ++descriptor) ::close(descriptor);
}

// Never returns: the child must not run the parent's destructors or exit handlers.
[[noreturn]] void run_child(const std::function<void(ChildOutput&)>& question, int answers, pid_t parent) {
#if defined(__linux__)
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);
#else
  (void)parent;
#endif
  for (int s : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTERM, SIGINT, SIGPIPE, SIGALRM}) ::signal(s, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  if (const int null = ::open("/dev/null", O_RDWR); null >= 0) {
    for (int stream : {0, 1, 2}) ::dup2(null, stream);
  } else {
    for (int stream : {0, 1, 2}) ::close(stream);
  }
  constexpr int kAnswers = 3;
  if (answers != kAnswers) ::dup2(answers, kAnswers);
  close_from(kAnswers + 1);
  ChildOutput output(kAnswers);
  try {
    question(output);
  } catch (...) {
    ::_exit(1);
  }
  write_all(kAnswers, kLastLine.data(), kLastLine.size());
  ::_exit(0);
}

Child start(const std::function<void(ChildOutput&)>& question) {
  Child child;
  int ends[2];
  if (::pipe(ends) != 0) return child;
  // Streams 0 to 2 are replaced in the child, so its end of the pipe must not be one of them.
  const int answers = ::fcntl(ends[1], F_DUPFD_CLOEXEC, 3);
  ::close(ends[1]);
  ::fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  const pid_t parent = ::getpid();
  child.pid = answers < 0 ? -1 : ::fork();
  if (child.pid == 0) {
    ::close(ends[0]);
    run_child(question, answers, parent);
  }
  const int error = errno;
  if (answers >= 0) ::close(answers);
  if (child.pid < 0) {
    ::close(ends[0]);
    errno = error;
    return child;
  }
  child.descriptor = ends[0];
  child.open = true;
  return child;
}

void read_output(Child& child) {
  char buffer[4096];
  const ssize_t got = ::read(child.descriptor, buffer, sizeof buffer);
  if (got < 0 && errno == EINTR) return;
  if (got <= 0 || child.text.size() >= kMaxBytes) {
    child.open = false;
    return;
  }
  child.text.append(buffer, size_t(got));
  // Processes that a driver left behind may hold the pipe open, so the answer ends at the last line, not when the pipe closes.
  if (child.text.ends_with(kLastLine)) child.open = false;
}

// A process that hangs in the kernel does not even die from SIGKILL: it is abandoned rather than waited for.
bool reap(pid_t pid, int& status, double seconds) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  while (true) {
    const pid_t got = ::waitpid(pid, &status, WNOHANG);
    if (got == pid) return true;
    if (got < 0 && errno != EINTR) return false;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

ChildAnswer answer_of(Child& child, bool late) {
  ChildAnswer answer;
  ::close(child.descriptor);
  if (late) ::kill(child.pid, SIGKILL);
  int status = 0;
  const bool known = reap(child.pid, status, late ? 0.1 : 0.5);

  const bool finished = child.text.ends_with(kLastLine);
  if (finished) child.text.resize(child.text.size() - kLastLine.size());
  for (size_t at = 0, end; (end = child.text.find('\n', at)) != std::string::npos; at = end + 1) answer.lines.push_back(child.text.substr(at, end - at));
  using End = ChildAnswer::End;
  if (finished) {
    answer.end = End::finished;
  } else if (late) {
    answer.end = End::timed_out;
  } else if (known && WIFSIGNALED(status)) {
    answer.end = End::crashed, answer.code = WTERMSIG(status);
  } else {
    answer.end = End::exited, answer.code = known && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  }
  return answer;
}

}  // namespace

void ChildOutput::line(const std::string& text) {
  std::string clean = text;
  std::replace_if(
      clean.begin(), clean.end(), [](unsigned char c) { return (c < 32 && c != '\t') || c == 127; }, ' ');
  clean += '\n';
  write_all(descriptor_, clean.data(), clean.size());
}

std::string describe(const ChildAnswer& answer) {
  using End = ChildAnswer::End;
  switch (answer.end) {
    case End::finished: return "answered";
    case End::crashed: return fmt::format("crashed ({})", ::strsignal(answer.code));
    case End::exited: return fmt::format("ended the process that called it (exit code {})", answer.code);
    case End::timed_out: return "did not answer in time";
    case End::not_started: break;
  }
  return fmt::format("could not be called ({})", std::strerror(answer.code));
}

struct PendingChildren::State {
  Clock::time_point deadline;
  std::vector<Child> children;
  std::vector<ChildAnswer> answers;
  std::vector<bool> done;
  bool waiting(size_t i) const { return children[i].pid > 0 && !done[i]; }
};

PendingChildren::PendingChildren(const std::vector<std::function<void(ChildOutput&)>>& questions, double seconds) : state_(std::make_unique<State>()) {
  state_->deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  state_->answers.resize(questions.size()), state_->done.resize(questions.size(), false);
  for (size_t i = 0; i < questions.size(); ++i) {
    state_->children.push_back(start(questions[i]));
    if (state_->children[i].pid < 0) state_->answers[i].code = errno;
  }
}

PendingChildren::~PendingChildren() {
  for (size_t i = 0; i < state_->children.size(); ++i)
    if (state_->waiting(i)) answer_of(state_->children[i], true);
}

std::vector<ChildAnswer> PendingChildren::answers() {
  State& s = *state_;
  while (true) {
    std::vector<pollfd> polls;
    std::vector<size_t> which;
    for (size_t i = 0; i < s.children.size(); ++i)
      if (s.waiting(i)) {
        polls.push_back({s.children[i].descriptor, POLLIN, 0});
        which.push_back(i);
      }
    if (polls.empty()) return s.answers;
    // Output written in time counts, however late it is read.
    const double left = std::chrono::duration<double>(s.deadline - Clock::now()).count();
    if (::poll(polls.data(), polls.size(), left > 0 ? int(left * 1000) + 1 : 0) <= 0) {
      if (left <= 0) break;
      continue;
    }
    for (size_t p = 0; p < polls.size(); ++p) {
      Child& child = s.children[which[p]];
      if (polls[p].revents) read_output(child);
      if (!child.open) s.answers[which[p]] = answer_of(child, false), s.done[which[p]] = true;
    }
  }
  for (size_t i = 0; i < s.children.size(); ++i)
    if (s.waiting(i)) s.answers[i] = answer_of(s.children[i], true), s.done[i] = true;
  return s.answers;
}

std::vector<ChildAnswer> ask_children(const std::vector<std::function<void(ChildOutput&)>>& questions, double seconds) {
  return PendingChildren(questions, seconds).answers();
}

}  // namespace ridge
