// The command line's frame: each command is one file with one function that adds itself, and exit codes that scripts can rely on.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace ridge::cli {

enum ExitCode { kOk = 0, kError = 1, kUsage = 2, kDoesNotFit = 3, kData = 4, kDiverged = 5, kStateLost = 6, kTerminated = 75, kInterrupted = 130 };

// What may be written after a command's name. The values live as long as the command runs; a copy speaks of the same command.
class Line {
 public:
  explicit Line(CLI::App& app) : app_(&app) {}
  void word(const char* name, std::string& value, const char* help);                 // must be there
  void words(const char* name, std::vector<std::string>& values, const char* help);  // one at least
  void default_word(const char* name, std::string& value, const char* help);         // may be there; the help shows what it is without
  void option(const char* name, std::string& value, const char* help);               // --name TEXT
  void repeated_option(const char* name, std::vector<std::string>& values, const char* help);
  void positive_option(const char* name, int64_t& value, const char* help);  // --name N, from 1
  void range_option(const char* name, int64_t& value, const char* help, int64_t low, int64_t high);
  void flag(const char* name, bool& value, const char* help);
  void flag_without(const char* name, bool& value, const char* help, const char* other);  // not together with the flag `other`
  void footer(const char* text);                                                          // of the help
  void allow_rest();                                                                      // words that are not known are no error:
  std::vector<std::string> rest() const;                                                  // these, once the line is parsed
  std::vector<std::string> option_names() const;                                          // of this command, without their dashes
  Line add_command(const char* name, const char* summary);                                // a command below this one; at most one is given
  void on_chosen(std::function<void()> act);                                              // when the line names this command

 private:
  CLI::App* app_;
};

// A command's file holds one such object at namespace level:
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

void add_verbs();  // commands that single tasks have

// Parses the line and runs the command that it names; the exit code.
int run_command(int argc, char** argv);

}  // namespace ridge::cli
