// ridge profile: where the time and memory of a task's steps go.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include <fmt/core.h>

#include "base/error.h"
#include "cli/command.h"
#include "cli/settings.h"
#include "io/atomic_file.h"
#include "measure/default_team.h"
#include "profile/step_profile.h"
#include "tasks/registry.h"
#include "train/loss_plot.h"
#include "train/parts.h"
#include "train/run_profile.h"

namespace ridge::cli {
namespace {

namespace fs = std::filesystem;

struct ProfileArguments {
  std::string task, svg, trace, compare;
  std::vector<std::string> checks;
  int64_t steps = 0, rows = 25;
  bool json = false;
};

// Words that follow --check are checks too.
void take_checks(std::vector<std::string>& words, std::vector<std::string>& checks) {
  if (checks.empty()) return;
  std::erase_if(words, [&](const std::string& word) {
    const bool check =
        word.starts_with("min_tflops=") || word.starts_with("min_bandwidth=") || word.starts_with("min_utilization=") || word.starts_with("max_memory=");
    if (check) checks.push_back(word);
    return check;
  });
}

std::string text_of(const fs::path& path) {
  std::ifstream in(path);
  if (!in) fail(ErrorCode::io, "[profile] cannot read {}", path.string());
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The roofline in the named file, the other pictures next to it.
std::vector<std::string> write_pictures(const Profiler& profiler, const fs::path& file) {
  std::vector<std::string> written;
  for (const auto& [name, text] : profile_pictures(profiler)) {
    const fs::path to = name == "roofline" ? file : file.parent_path() / fmt::format("{}_{}{}", file.stem().string(), name, file.extension().string());
    write_atomically(to.string(), text);
    written.push_back(to.string());
  }
  return written;
}

int show(const ProfileArguments& arguments, const Profiler& profiler, const std::string& earlier) {
  std::vector<std::string> written;
  if (!arguments.svg.empty()) written = write_pictures(profiler, arguments.svg);
  if (!arguments.trace.empty()) write_atomically(arguments.trace, profiler.trace()), written.push_back(arguments.trace);
  fmt::print("{}", arguments.json ? profiler.json() : profiler.text(int(arguments.rows)));
  FILE* const out = arguments.json ? stderr : stdout;
  if (!earlier.empty()) fmt::print(out, "\n{}", compare_profiles(profiler.profile(), earlier, int(arguments.rows)));
  for (const std::string& file : written) fmt::print(out, "{} written\n", file);
  if (arguments.checks.empty()) return kOk;
  const Verdict verdict = check_profile(profiler.profile(), arguments.checks);
  fmt::print(out, "\n{}", verdict.text);
  return verdict.kept ? kOk : kError;
}

int run_profile(ProfileArguments arguments, config::Sources sources) {
  const Task& task = find_task(arguments.task);
  take_checks(sources.words, arguments.checks);
  check_profile({}, arguments.checks);  // before anything slow
  check_picture_place(arguments.svg), check_folder_of(arguments.trace);
  const std::string earlier = arguments.compare.empty() ? "" : text_of(arguments.compare);
  if (!earlier.empty()) compare_profiles({}, earlier, 1);
  sources.task = task.keys;
  add_implied(task, sources);
  const config::Resolved settings = config::resolve(sources);
  note_unused(settings, "train");
  request_default_threads(thread_request(settings));
  RunOptions options;
  const Part part = parts_of(settings, settings.get<std::string>("out")).front();
  options.data = part.data, options.seed = part.seed;
  options.measure = settings.get<bool>("optimize_perf"), options.probe = true;
  const std::unique_ptr<TaskRun> run = start_run(task, settings, options);
  int code = kOk;
  switch (ridge::profile_run(*run, settings, arguments.steps, [&](Profiler& profiler) { code = show(arguments, profiler, earlier); })) {
    case Outcome::End::interrupted: return kInterrupted;
    case Outcome::End::terminated: return kTerminated;
    default: return code;
  }
}

const Command profile_command("profile", "show where the time and memory of a task's steps go, kernel by kernel", [](Line line) {
  auto arguments = std::make_shared<ProfileArguments>();
  line.word("task", arguments->task, task_words().c_str());
  line.option("--svg", arguments->svg, "draw the roofline into this file, and memory and timeline next to it");
  line.option("--trace", arguments->trace, "write one step for Perfetto or chrome://tracing");
  line.option("--compare", arguments->compare, "show the differences to a profile that --json wrote earlier");
  line.repeated_option("--check", arguments->checks,
                       "min_tflops=X, min_bandwidth=GB/s, min_utilization=SHARE or max_memory=SIZE; more may follow; exit code 1 if missed");
  line.positive_option("--steps", arguments->steps, "steps to record, between as many that are not; default: about ten seconds");
  line.positive_option("--rows", arguments->rows, "kernels in the table");
  line.flag("--json", arguments->json, "print one JSON document on stdout");
  auto sources = add_settings(line);
  line.footer("Settings as for ridge train. Nothing is saved. See docs/profile.md.");
  return [=] { return run_profile(*arguments, sources()); };
});

}  // namespace
}  // namespace ridge::cli
