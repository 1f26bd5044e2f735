// The command-line framework: each command is one file that registers itself; exit codes are stable for scripts.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace ridge::cli {

enum ExitCode { kOk = 0, kError = 1, kUsage = 2, kDoesNotFit = 3, kData = 4, kDiverged = 5, kStateLost = 6, kTerminated = 75, kInterrupted = 130 };

// Declares a command's arguments. Values must live until the command has run; copies refer to the same command.
class Line {
 public:
  explicit Line(CLI::App& app) : app_(&app) {}
  void word(const char* name, std::string& value, const char* help);                 // required
  void words(const char* name, std::vector<std::string>& values, const char* help);  // at least one
  void default_word(const char* name, std::string& value, const char* help);         // optional; the help shows the default
  void option(const char* name, std::string& value, const char* help);               // --name TEXT
  void repeated_option(const char* name, std::vector<std::string>& values, const char* help);
  void positive_option(const char* name, int64_t& value, const char* help);  // --name N, at least 1
  void range_option(const char* name, int64_t& value, const char* help, int64_t low, int64_t high);
  void flag(const char* name, bool& value, const char* help);
  void flag_without(const char* name, bool& value, const char* help, const char* other);  // excludes the flag `other`
  void footer(const char* text);                                                          // shown below the help
  void allow_rest();                                                                      // accepts unknown words:
  std::vector<std::string> rest() const;                                                  // returns them once the line is parsed
  std::vector<std::string> option_names() const;                                          // of this command, without dashes
  Line add_command(const char* name, const char* summary);                                // a subcommand; a line names at most one
  void on_chosen(std::function<void()> act);                                              // called if the line names this command

 private:
  CLI::App* app_;
};

// A command's file defines one of these at namespace scope:
//   const Command bench_command("bench", "measure ops against the machine's ceilings", [](Line line) {
//     auto options = std::make_shared<Options>();
//     line.option(…);
//     return [options] { return run(*options); };   // the exit code; may throw ridge::Error
//   });
class Command {
 public:
  using Run = std::function<int()>;
  using Setup = std::function<Run(Line line)>;
  Command(const char* name, std::string summary, Setup setup);
};

void add_verbs(std::span<const char* const> line);  // task-specific commands

// Parses the line, runs the command that it names, and returns the exit code.
int run_command(int argc, char** argv);

}  // namespace ridge::cli
