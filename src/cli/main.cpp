// ridge: parse, run one command, turn errors into exit codes.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "base/error.h"
#include "base/nearest.h"
#include "cli/command.h"
#include "machine/features.h"

namespace ridge::cli {
namespace {

struct Entry {
  const char* name;
  const char* summary;
  Command::Setup setup;
};

// Filled before main() by the commands' own files; a function-local object, so that the order of files does not matter.
std::vector<Entry>& entries() {
  static std::vector<Entry> all;
  return all;
}

int unknown_command(const std::string& word) {
  std::vector<std::string_view> names;
  for (const Entry& entry : entries()) names.emplace_back(entry.name);
  fmt::print(stderr, "ridge: unknown command '{}' (ridge --help lists all); {}\n", word, nearest_hint(word, names));
  return kUsage;
}

int exit_code(const Error& error) {
  switch (error.code()) {
    case ErrorCode::usage: return kUsage;
    case ErrorCode::memory: return kDoesNotFit;
    case ErrorCode::io: return kData;
    default: return kError;
  }
}

int run(int argc, char** argv) {
  CLI::App app("Ridge, a self-tuning deep-learning engine.", "ridge");
  app.set_version_flag("--version", fmt::format("ridge {} ({})", RIDGE_VERSION, name(isa_tier())));
  std::sort(entries().begin(), entries().end(), [](auto& a, auto& b) { return std::string_view(a.name) < b.name; });

  // The first word that is no flag must name a command: said here, so that the message can name the nearest one.
  if (argc > 1 && argv[1][0] != '-' && std::none_of(entries().begin(), entries().end(), [&](auto& e) { return e.name == std::string_view(argv[1]); }))
    return unknown_command(argv[1]);

  Command::Run chosen;
  for (const Entry& entry : entries()) {
    CLI::App* sub = app.add_subcommand(entry.name, entry.summary);
    sub->callback([&chosen, body = entry.setup(*sub)] { chosen = body; });
  }
  app.require_subcommand(0, 1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  if (!chosen) {
    fmt::print("{}", app.help());
    return kOk;
  }
  return chosen();
}

}  // namespace

Command::Command(const char* name, const char* summary, Setup setup) { entries().push_back({name, summary, setup}); }

}  // namespace ridge::cli

int main(int argc, char** argv) {
  try {
    return ridge::cli::run(argc, argv);
  } catch (const ridge::Error& error) {
    fmt::print(stderr, "ridge: {}\n", error.what());
    return ridge::cli::exit_code(error);
  } catch (const std::exception& error) {
    fmt::print(stderr, "ridge: {}\n", error.what());
    return ridge::cli::kError;
  }
}
