// The command line's frame: each command is one file with one function that adds itself, and exit codes that scripts can rely on.
#pragma once
#include <functional>

#include <CLI/CLI.hpp>

namespace ridge::cli {

enum ExitCode { kOk = 0, kError = 1, kUsage = 2, kDoesNotFit = 3, kData = 4, kDiverged = 5, kTerminated = 75, kInterrupted = 130 };

// A command's file holds one such object at namespace level:
//   const Command command("bench", "measure ops against the machine's ceilings", [](CLI::App& app) {
//     auto options = std::make_shared<Options>();
//     app.add_option(…);
//     return [options] { return run(*options); };   // the exit code; may throw ridge::Error
//   });
class Command {
 public:
  using Run = std::function<int()>;
  using Setup = std::function<Run(CLI::App& app)>;
  Command(const char* name, const char* summary, Setup setup);
};

}  // namespace ridge::cli
