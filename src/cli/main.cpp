// ridge: parse, run one command, turn errors into exit codes.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "base/error.h"
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

// Edits (insert, delete, replace) that lead from a to b.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t(0));
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t replace = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replace});
    }
  }
  return row[b.size()];
}

int unknown_command(const std::string& word) {
  auto& all = entries();
  auto nearest = std::min_element(all.begin(), all.end(), [&](auto& a, auto& b) { return distance(word, a.name) < distance(word, b.name); });
  std::string hint = nearest == all.end() ? "ridge --help lists the commands" : fmt::format("did you mean '{}'? ridge --help lists all", nearest->name);
  fmt::print(stderr, "ridge: unknown command '{}'; {}\n", word, hint);
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
