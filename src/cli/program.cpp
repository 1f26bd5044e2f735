// Runs one command and turns errors into exit codes.
#include <fcntl.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <tuple>

#include <fmt/core.h>

#include "base/error.h"
#include "cli/command.h"
#include "ridge/program.h"
#include "tasks/registry.h"

namespace ridge::cli {
namespace {

int exit_code(const Error& error) {
  switch (error.code()) {
    case ErrorCode::usage: return kUsage;
    case ErrorCode::memory: return kDoesNotFit;
    case ErrorCode::io: return kData;
    default: return kError;
  }
}

// Output lost to a full disk must not look like an empty result.
int code_of_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return kOk;
  std::fputs(fmt::format("ridge: the output could not be written{}{}\n", errno ? ": " : "", errno ? std::strerror(errno) : "").c_str(), stderr);
  return kData;
}

// If a standard stream is closed, the next opened file would get its descriptor, and everything printed. The placeholder rejects writes, so printing still
// fails.
void open_missing_streams() {
  for (int stream = 0; stream <= 2; ++stream)
    if (::fcntl(stream, F_GETFD) < 0) std::ignore = ::open("/dev/null", stream == 0 ? O_WRONLY : O_RDONLY);
}

// Not fmt::print, which throws if stderr is closed.
void print_error(const std::exception& error) { std::fputs(fmt::format("ridge: {}\n", error.what()).c_str(), stderr); }

}  // namespace
}  // namespace ridge::cli

int ridge::run_program(int argc, char** argv) {
  ridge::cli::open_missing_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // makes a write past ulimit -f fail, as on a full disk
  try {
    ridge::register_tasks();
    ridge::cli::add_verbs({argv, size_t(argc)});
    const int code = ridge::cli::run_command(argc, argv);
    return code == ridge::cli::kOk ? ridge::cli::code_of_output() : code;
  } catch (const ridge::Error& error) {
    ridge::cli::print_error(error);
    return ridge::cli::exit_code(error);
  } catch (const std::filesystem::filesystem_error& error) {
    ridge::cli::print_error(ridge::Error(ridge::ErrorCode::io, fmt::format("{}: {}", error.path1().string(), error.code().message())));
    return ridge::cli::kData;
  } catch (const std::system_error& error) {  // also thrown by fmt::print if a write fails
    ridge::cli::print_error(error);
    return std::ferror(stdout) ? ridge::cli::kData : ridge::cli::kError;
  } catch (const std::exception& error) {
    ridge::cli::print_error(error);
    return ridge::cli::kError;
  }
}

int ridge::run_program(std::vector<std::string> words) {
  words.insert(words.begin(), "ridge");
  std::vector<char*> line;
  for (std::string& word : words) line.push_back(word.data());
  line.push_back(nullptr);
  return run_program(int(words.size()), line.data());
}
