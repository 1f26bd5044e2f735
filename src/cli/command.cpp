#include "cli/command.h"

#include <algorithm>
#include <charconv>

#include <fmt/core.h>
#include <CLI/CLI.hpp>  // slow to compile: here alone

#include "base/nearest.h"
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

}  // namespace

void Line::word(const char* name, std::string& value, const char* help) { app_->add_option(name, value, help)->required(); }
void Line::words(const char* name, std::vector<std::string>& values, const char* help) { app_->add_option(name, values, help)->required(); }
void Line::default_word(const char* name, std::string& value, const char* help) { app_->add_option(name, value, help)->capture_default_str(); }
void Line::option(const char* name, std::string& value, const char* help) { app_->add_option(name, value, help); }
void Line::repeated_option(const char* name, std::vector<std::string>& values, const char* help) {
  app_->add_option(name, values, help)->expected(1)->take_all()->allow_extra_args(false);  // the word behind its value is another
}
void Line::positive_option(const char* name, int64_t& value, const char* help) { range_option(name, value, help, 1, 1'000'000'000'000); }
void Line::range_option(const char* name, int64_t& value, const char* help, int64_t low, int64_t high) {
  auto whole = [low, high](std::string& text) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size() && number >= low && number <= high) return std::string();
    return fmt::format("'{}' is not a whole number from {} to {}", text, low, high);
  };
  app_->add_option(name, value, help)->check(CLI::Validator(whole, "N"));
}
void Line::flag(const char* name, bool& value, const char* help) { app_->add_flag(name, value, help); }
void Line::flag_without(const char* name, bool& value, const char* help, const char* other) {
  app_->add_flag(name, value, help)->excludes(app_->get_option(other));
}
void Line::footer(const char* text) { app_->footer(text); }
void Line::allow_rest() { app_->allow_extras(); }
std::vector<std::string> Line::rest() const { return app_->remaining(); }
Line Line::add_command(const char* name, const char* summary) {
  app_->require_subcommand(0, 1);
  return Line(*app_->add_subcommand(name, summary));
}
void Line::on_chosen(std::function<void()> act) { app_->callback(std::move(act)); }

Command::Command(const char* name, const char* summary, Setup setup) { entries().push_back({name, summary, setup}); }

int run_command(int argc, char** argv) {
  CLI::App app("Ridge, a self-tuning deep-learning engine.", "ridge");
  app.set_version_flag("--version", fmt::format("ridge {} ({})", RIDGE_VERSION, name(isa_tier())));
  // As all else that goes wrong is said, with the way to the command's own help.
  app.failure_message([](const CLI::App* at, const CLI::Error& error) {
    std::string words = "ridge";
    while (!at->get_subcommands().empty()) at = at->get_subcommands().front(), words += " " + at->get_name();
    return fmt::format("ridge: {}; {} --help says more\n", error.what(), words);
  });
  std::sort(entries().begin(), entries().end(), [](auto& a, auto& b) { return std::string_view(a.name) < b.name; });

  char help[] = "--help";
  if (argc > 1 && std::string_view(argv[1]) == "help") argv[1] = help;

  // The first word that is no flag must name a command: said here, so that the message can name the nearest one.
  if (argc > 1 && argv[1][0] != '-' && std::none_of(entries().begin(), entries().end(), [&](auto& e) { return e.name == std::string_view(argv[1]); }))
    return unknown_command(argv[1]);

  Command::Run chosen;
  for (const Entry& entry : entries()) {
    Line line = Line(app).add_command(entry.name, entry.summary);
    line.on_chosen([&chosen, body = entry.setup(line)] { chosen = body; });
  }
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

}  // namespace ridge::cli
