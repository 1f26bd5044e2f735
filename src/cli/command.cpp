#include "cli/command.h"

#include <algorithm>
#include <charconv>

#include <fmt/core.h>
#include <CLI/CLI.hpp>  // slow to compile, so included only here

#include "base/nearest.h"
#include "config/key.h"
#include "config/value.h"
#include "machine/features.h"

namespace ridge::cli {
namespace {

struct Entry {
  const char* name;
  std::string summary;
  Command::Setup setup;
};

// Filled by the commands' files, mostly before main(). A function-local static, so that initialisation order does not matter.
std::vector<Entry>& entries() {
  static std::vector<Entry> all;
  return all;
}

int unknown_command(const std::string& word) {
  std::vector<std::string_view> names;
  for (const Entry& entry : entries()) names.emplace_back(entry.name);
  fmt::print(stderr, "ridge: unknown command '{}'; {}\n", word, nearest_hint(word, names, "ridge --help lists all"));
  return kUsage;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

const CLI::App* find_command(const CLI::App& app, std::string_view name) {
  for (const CLI::App* command : commands_of(app))
    if (command->get_name() == name) return command;
  return nullptr;
}

// Whether it is a flag of any command or subcommand that takes a value.
bool is_option(const CLI::App& app, const std::string& flag) {
  const CLI::Option* option = app.get_option_no_throw(flag);
  if (option && option->get_items_expected_max() > 0) return true;
  const std::vector<const CLI::App*> below = commands_of(app);
  return std::any_of(below.begin(), below.end(), [&](const CLI::App* command) { return is_option(*command, flag); });
}

// Whether a flag is followed by its value, according to the table of keys or the flags of any command.
bool takes_value(const CLI::App& app, const std::string& flag, const std::string& next) {
  if (flag.find('=') != flag.npos) return false;
  const std::string name = flag.substr(2);
  if (name == "resume") return !find_command(app, next) && !next.starts_with('-');  // usually the run
  if (is_option(app, flag)) return true;
  const config::Key* key = config::find_key(name);
  if (key && key->type == config::Type::boolean) return config::parse_value(*key, next).value.has_value();
  return key != nullptr;
}

// Options may precede the command: "ridge --out run_x train TASK" becomes "ridge train --out=run_x TASK". Each option becomes a single word, so that
// its value is not mistaken for a word of the command. Without a command, the line is unchanged.
std::vector<std::string> with_command_first(const CLI::App& app, const std::vector<std::string>& line) {
  std::vector<std::string> moved;
  size_t at = 0;
  for (; at < line.size() && !find_command(app, line[at]); ++at) {
    const std::string& word = line[at];
    const size_t equal = word.find('=');
    if (!word.starts_with("--") && equal != word.npos && config::find_key(word.substr(0, equal)))
      moved.push_back("--" + word);
    else if (!word.starts_with("--") || word == "--" || word == "--help" || word == "--version")
      return line;
    else if (at + 1 < line.size() && takes_value(app, word, line[at + 1])) {
      moved.push_back(word + "=" + line[at + 1]), ++at;
    } else {
      moved.push_back(word);
    }
  }
  if (at == line.size()) return line;
  const CLI::App* command = find_command(app, line[at]);
  std::vector<std::string> out = {line[at++]};
  if (at < line.size() && find_command(*command, line[at])) out.push_back(line[at++]);
  out.insert(out.end(), moved.begin(), moved.end());
  out.insert(out.end(), line.begin() + int64_t(at), line.end());
  return out;
}

// Names a flag that the command does not have, and suggests a similar one.
std::string hint_for_unexpected(const CLI::App* at) {
  std::vector<std::string> names;
  for (const CLI::Option* option : at->get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  for (const std::string& word : at->remaining())
    if (std::string hint = close_hint(word.substr(0, word.find('=')), std::vector<std::string_view>(names.begin(), names.end())); !hint.empty())
      return "; " + hint;
  return {};
}

}  // namespace

void Line::word(const char* name, std::string& value, const char* help) { app_->add_option(name, value, help)->required(); }
void Line::words(const char* name, std::vector<std::string>& values, const char* help) { app_->add_option(name, values, help)->required(); }
void Line::default_word(const char* name, std::string& value, const char* help) { app_->add_option(name, value, help)->capture_default_str(); }
void Line::option(const char* name, std::string& value, const char* help) { app_->add_option(name, value, help); }
void Line::repeated_option(const char* name, std::vector<std::string>& values, const char* help) {
  app_->add_option(name, values, help)->expected(1)->take_all()->allow_extra_args(false);  // only one value: the next word is separate
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
std::vector<std::string> Line::option_names() const {
  std::vector<std::string> names;
  for (const CLI::Option* option : app_->get_options())
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  return names;
}
Line Line::add_command(const char* name, const char* summary) {
  app_->require_subcommand(0, 1);
  return Line(*app_->add_subcommand(name, summary));
}
void Line::on_chosen(std::function<void()> act) { app_->callback(std::move(act)); }

Command::Command(const char* name, std::string summary, Setup setup) { entries().push_back({name, std::move(summary), std::move(setup)}); }

int run_command(int argc, char** argv) {
  CLI::App app("Ridge, a self-tuning deep-learning engine.", "ridge");
  app.set_version_flag("--version", fmt::format("ridge {} ({})", RIDGE_VERSION, name(isa_tier())));
  // The same format as other errors, with a pointer to the command's help.
  app.failure_message([](const CLI::App* at, const CLI::Error& error) {
    std::string words = "ridge";
    while (!at->get_subcommands().empty()) at = at->get_subcommands().front(), words += " " + at->get_name();
    const std::string hint = error.get_exit_code() == int(CLI::ExitCodes::ExtrasError) ? hint_for_unexpected(at) : "";
    return fmt::format("ridge: {}{}; see {} --help\n", error.what(), hint, words);
  });
  std::sort(entries().begin(), entries().end(), [](auto& a, auto& b) { return std::string_view(a.name) < b.name; });

  char help[] = "--help";
  if (argc > 1 && std::string_view(argv[1]) == "help") argv[1] = help;

  Command::Run chosen;
  for (const Entry& entry : entries()) {
    Line line = Line(app).add_command(entry.name, entry.summary.c_str());
    line.on_chosen([&chosen, body = entry.setup(line)] { chosen = body; });
  }
  std::vector<std::string> words = with_command_first(app, {argv + std::min(argc, 1), argv + argc});
  // The first word that is not a flag must name a command. Checked here so that the message can suggest the closest one.
  if (!words.empty() && !words[0].starts_with('-') && !find_command(app, words[0])) return unknown_command(words[0]);
  std::reverse(words.begin(), words.end());  // CLI11 expects reverse order
  try {
    app.parse(std::move(words));
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
