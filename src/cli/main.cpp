// ridge: run one command, turn errors into exit codes.
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

}  // namespace
}  // namespace ridge::cli

int main(int argc, char** argv) {
  try {
    return ridge::cli::run_command(argc, argv);
  } catch (const ridge::Error& error) {
    fmt::print(stderr, "ridge: {}\n", error.what());
    return ridge::cli::exit_code(error);
  } catch (const std::exception& error) {
    fmt::print(stderr, "ridge: {}\n", error.what());
    return ridge::cli::kError;
  }
}
