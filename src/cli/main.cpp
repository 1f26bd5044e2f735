// ridge: run one command, turn errors into exit codes.
#include <cstdio>

#include <fmt/core.h>

#include "base/error.h"
#include "cli/command.h"

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

// fmt::print would throw where nobody reads stderr any more.
void say(const std::exception& error) { std::fputs(fmt::format("ridge: {}\n", error.what()).c_str(), stderr); }

}  // namespace
}  // namespace ridge::cli

int main(int argc, char** argv) {
  try {
    return ridge::cli::run_command(argc, argv);
  } catch (const ridge::Error& error) {
    ridge::cli::say(error);
    return ridge::cli::exit_code(error);
  } catch (const std::exception& error) {
    ridge::cli::say(error);
    return ridge::cli::kError;
  }
}
