#include "cli/ridge_program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <thread>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "support/source_dir.h"

namespace ridge::test {

std::string Answer::all() const { return fmt::format("exit code {}\n-- stdout\n{}\n-- stderr\n{}", code, out, err); }

RidgeProgram::RidgeProgram(std::string program) : program_(std::move(program)) {
  std::filesystem::create_directory(folder_ / ".home");
  set("HOME", folder_ / ".home");
  set("RIDGE_CACHE", folder_ / ".cache");
}

void RidgeProgram::set(std::string variable, std::string value) { variables_.emplace_back(std::move(variable), std::move(value)); }

RidgeProgram::Running RidgeProgram::start(const std::vector<std::string>& arguments) const {
  const std::string out = folder_ / ".stdout", err = folder_ / ".stderr";
  std::vector<char*> words{const_cast<char*>(program_.c_str())};
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    for (const auto& [name, value] : variables_) ::setenv(name.c_str(), value.c_str(), 1);
    const int in = ::open("/dev/null", O_RDONLY), to_out = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600),
              to_err = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (::chdir(folder_.path().c_str()) != 0 || ::dup2(in, 0) < 0 || ::dup2(to_out, 1) < 0 || ::dup2(to_err, 2) < 0) ::_exit(126);
    const rlimit limit = {rlim_t(most_file_bytes_), rlim_t(most_file_bytes_)};
    if (most_file_bytes_ >= 0 && ::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(125);
    ::execv(program_.c_str(), words.data());
    ::_exit(127);
  }
  Running running;
  running.process_ = child, running.out_ = out, running.err_ = err;
  return running;
}

void RidgeProgram::Running::send(int signal) const { ::kill(process_, signal); }

std::string RidgeProgram::Running::printed() const { return read_text(out_); }

Answer RidgeProgram::Running::wait(double seconds) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int status = 0;
  while (::waitpid(process_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) ::kill(process_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_text(out_), read_text(err_)};
}

namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

}  // namespace

Answer expect_words(const RidgeProgram& ridge, int code, std::string_view expected, const std::vector<std::string>& words) {
  Answer answer = ridge(words);
  const auto line = [&] { return fmt::format("ridge {}\n{}\n-- expected: {}, {}", fmt::join(words, " "), answer.all(), code, expected); };
  EXPECT_EQ(answer.code, code) << line();
  EXPECT_NE((code == 0 ? answer.out : answer.err).find(expected), std::string::npos) << line();
  return answer;
}

Answer expect_words(const RidgeProgram& ridge, int code, std::string_view expected, const std::string& line) {
  return expect_words(ridge, code, expected, words_of(line));
}

Answer expect_refusal(const RidgeProgram& ridge, int code, std::string_view expected, const std::string& line) {
  Answer answer = expect_words(ridge, code, expected, line);
  EXPECT_TRUE(answer.err.starts_with("ridge: ")) << line << "\n" << answer.all();
  EXPECT_EQ(answer.err.find("\nridge: "), std::string::npos) << line << "\n" << answer.all();
  EXPECT_EQ(answer.out.find("ridge: "), std::string::npos) << line << "\n" << answer.all();
  return answer;
}

void write_plays(const RidgeProgram& ridge, std::string_view name) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "to be or not to be, that is the question: whether it is nobler in the mind to suffer\n";
  write_text(ridge / name, text);
}

std::string fixture(std::string_view name) { return (std::filesystem::path(source_dir()) / "tests/fixtures" / name).string(); }

}  // namespace ridge::test
