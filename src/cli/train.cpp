// ridge train: from settings to a trained model, a run folder and a summary.
#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <sstream>

#include <fmt/chrono.h>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/terminal.h"
#include "cli/command.h"
#include "cli/parts.h"
#include "cli/settings.h"
#include "data/find_source.h"
#include "io/atomic_file.h"
#include "io/write_buffer.h"
#include "machine/fingerprint.h"
#include "machine/utilisation.h"
#include "measure/default_team.h"
#include "tasks/gpt/report.h"
#include "train/experiment.h"
#include "train/loss_plot.h"
#include "train/outputs.h"
#include "train/run_table.h"
#include "train/tensorboard_view.h"
#include "train/train_view.h"

namespace ridge::cli {
namespace {

namespace fs = std::filesystem;

void check_made(const fs::path& folder, const std::error_code& error) {
  if (error) fail(ErrorCode::io, "[train] cannot make the run folder {}: {}; choose another with --out DIR", folder.string(), error.message());
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  check_made(folder, error);
}

fs::path new_folder(const config::Resolved& settings, const std::string& data) {
  const std::string stamp = fmt::format("{:%Y%m%d_%H%M%S}", fmt::localtime(std::time(nullptr)));
  const fs::path base =
      fs::path(settings.get<std::string>("runs_dir")) / fmt::format("{}_{}_{:.80}", stamp, settings.get<std::string>("preset"), word_for(data));
  make_folder(base.parent_path());
  fs::path folder = base;
  std::error_code error;
  for (int i = 2; !fs::create_directory(folder, error); ++i) {
    check_made(folder, error);
    folder = fmt::format("{}_{}", base.string(), i);  // another start has taken the name
  }
  return folder;
}

int exit_code(const Outcome& outcome) {
  if (outcome.state_lost_since) return kStateLost;
  switch (outcome.end) {
    case Outcome::End::interrupted: return kInterrupted;
    case Outcome::End::terminated: return kTerminated;
    case Outcome::End::diverged: return kDiverged;
    case Outcome::End::unsaved: return kData;  // there was room for the last one after all
    default: return kOk;
  }
}

// What people saw, kept with the run. What cannot be written waits for room, as metrics do.
class LogFile {
 public:
  LogFile(const fs::path& path, bool go_on)
      : path_(path.string()), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (go_on ? 0 : O_TRUNC), 0666)) {
    if (file_ < 0) fail(ErrorCode::io, "[train] cannot write {}: {}; choose another folder with --out DIR", path_, std::strerror(errno));
  }
  ~LogFile() { waiting_.flush(file_), ::close(file_); }
  LogFile(const LogFile&) = delete;
  Screen screen() {
    Screen s;
    s.write = [this](std::string_view text) { write(text); };
    s.width = [] { return 120; };
    return s;
  }

 private:
  void write(std::string_view text) {
    if (!waiting_.fits(text.size())) flush();
    waiting_.add(text);
    if (std::chrono::steady_clock::now() >= again_) flush();
  }
  void flush() {
    const int cause = waiting_.flush(file_);
    if (cause == 0) return;
    again_ = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    fail(ErrorCode::io, "[log] {}: cannot be written: {}; {}", path_, std::strerror(cause), file_remedy(cause));
  }

  std::string path_;
  int file_;
  WriteBuffer waiting_;
  std::chrono::steady_clock::time_point again_ = {};  // when it is tried again
};

// Whoever reads a stream may stop reading; fmt::print would throw then, and the run is to go on.
void say(FILE* stream, const std::string& line) {
  const bool taken = std::fputs((line + "\n").c_str(), stream) >= 0;
  if ((std::fflush(stream) != 0 || !taken) && errno == EPIPE) std::clearerr(stream);
}

// log_level=warning leaves notices, log_level=error nothing.
class HushedView : public RunView {
 public:
  explicit HushedView(bool notices) : notices_(notices) {}
  void begin(std::span<const Decision>) override {}
  void end(const RunSummary&) override {}
  void on_notice(const std::string& line) override {
    if (notices_) say(stderr, line);
  }

 private:
  bool notices_;
};

std::unique_ptr<RunView> view_for(const std::string& level, bool json) {
  if (level == "warning" || level == "error") return std::make_unique<HushedView>(level == "warning");
  return stdout_view(json);
}

// A run is resumed and evaluated from other folders too. That it was resumed is no setting of the run, and changes no source of those that it had.
std::string config_text(config::Resolved settings, const fs::path& folder) {
  settings.keep_paths();
  if (settings.get<bool>("resume")) {
    settings.keep_sources(folder);
    settings.replace("resume", "false", "default");
  }
  return settings.to_yaml();
}

bool has_run(const fs::path& folder) { return !CheckpointStore(folder / "checkpoints").steps().empty() || fs::exists(folder / "metrics.jsonl"); }

bool is_experiment(const fs::path& folder) { return fs::exists(folder / "config.yaml") && !find_runs(folder).empty(); }

// The first of the files there that a run would write over and that no run wrote: those begin their config.yaml with a line of their own.
std::optional<std::string> file_in_the_way(const fs::path& place, bool is_part, const config::Resolved& settings) {
  auto first_line = [](std::istream&& in) {
    std::string line;
    std::getline(in, line);
    return line;
  };
  if (first_line(std::ifstream(place / "config.yaml")) == first_line(std::istringstream(settings.to_yaml()))) return {};
  std::error_code ignored;
  for (const char* name : {"config.yaml", "final_info.json", "log.txt", "summary.json", "plan.json", "machine.json", "model"})
    if ((is_part || name == std::string_view("config.yaml") || name == std::string_view("final_info.json")) && fs::exists(place / name, ignored) &&
        !fs::is_empty(place / name, ignored))
      return name;
  return {};
}

// A new run writes over no other, and not among its own texts: the next seed would read that, and no run could go on.
void check_place(const fs::path& place, const std::vector<Part>& parts, const config::Resolved& settings) {
  std::error_code ignored;
  if (fs::exists(place, ignored) && !fs::is_directory(place, ignored))
    fail(ErrorCode::io, "[train] {} is no folder; choose another with --out DIR", place.string());
  if (has_run(place) || is_experiment(place))
    fail(ErrorCode::usage, "[train] {} holds a run already; go on with it by --resume, or choose another folder with --out DIR", place.string());
  const bool is_part = std::any_of(parts.begin(), parts.end(), [&](const Part& part) { return part.folder == place; });
  if (const std::optional<std::string> name = file_in_the_way(place, is_part, settings))
    fail(ErrorCode::usage, "[train] {} holds files that a run would overwrite: {}; move them away, or choose another folder with --out DIR", place.string(),
         *name);
  if (std::any_of(parts.begin(), parts.end(),
                  [&](const Part& part) { return part.data != "builtin" && fs::equivalent(find_source(part.data), place, ignored); }))
    fail(ErrorCode::usage, "[train] {} is the data itself; choose another folder, or one in it, with --out DIR", place.string());
}

GptRunOptions options_of(const Part& part, const config::Resolved& settings, bool json) {
  GptRunOptions options;
  options.data = part.data, options.seed = part.seed, options.folder = part.folder, options.resume = part.begun;
  options.measure = settings.get<bool>("optimize_perf");
  if (!json)
    options.progress = [](const std::string& what, double done) {
      if (isatty(STDERR_FILENO)) std::fputs(fmt::format("\r\033[K{} {:.0f} %{}", what, 100 * done, done >= 1 ? "\r\033[K" : "").c_str(), stderr);
    };
  return options;
}

// `settled` is called when nothing is left that could refuse the run.
int train_part(const Part& part, const config::Resolved& settings, bool json, const std::function<void()>& settled) {
  const Machine machine = known_machine();
  GptRun run = start_gpt_run(settings, options_of(part, settings, json));
  settled();
  make_folder(part.folder);
  const std::optional<FolderLock> lock = lock_run(part.folder);
  run.trainer.locked = true;
  auto keep_config = [&] {
    config::Resolved kept = settings;
    for (const auto& [key, value] : run.settled) kept.replace(key, value, "init_from");
    write_atomically((part.folder / "config.yaml").string(), config_text(kept, part.folder));
  };
  if (!part.begun) keep_config();  // by which a run that is killed before its first step is known as one
  run.trainer.accepted = [&] {
    if (part.begun) keep_config();
    write_atomically((part.folder / "plan.json").string(), plan_json(run));
    write_atomically((part.folder / "machine.json").string(), fingerprint(machine).description + "\n");
  };

  LogFile log(part.folder / "log.txt", part.begun);
  TerminalView keeper(log.screen());
  const std::string level = settings.get<std::string>("log_level");
  std::unique_ptr<RunView> view = view_for(level, json);
  std::unique_ptr<TensorboardView> events;
  if (settings.get<bool>("tensorboard")) events = std::make_unique<TensorboardView>(part.folder / "tensorboard");
  std::vector<TrainerView*> views = {view.get(), &keeper};
  if (events) views.push_back(events.get());
  Outputs outputs(views);
  if (!run.fallback.empty()) outputs.on_notice(run.fallback);
  outputs.begin(run.decisions);
  for (const std::string& notice : run.notices) outputs.on_notice(notice);
  if (level == "debug")
    for (const std::string& line : run.step->plan().decisions) outputs.on_notice(line);

  UtilisationWatch watch(cpu_groups(machine));
  const Outcome outcome = run_gpt(run, settings, {&outputs});
  const RunSummary summary = summary_of(run, outcome, cores_text(watch.overall()));
  const bool exported = outcome.end == Outcome::End::diverged || outputs.write_last("model/", [&] { write_model(run, part.folder / "model"); });
  outputs.write_last("summary.json", [&] { write_atomically((part.folder / "summary.json").string(), summary_json(summary).dump(2) + "\n"); });
  outputs.write_last("a plot", [&] { write_loss_plots(part.folder, {part.folder}); });
  if (events) outputs.write_last("the last TensorBoard events", [&] { events->flush(); });
  outputs.end(summary);
  if (outcome.state_lost_since)
    say(stderr, fmt::format("ridge: what was learnt since step {} is lost, as the last checkpoint could not be written", *outcome.state_lost_since));
  else if (!exported)
    say(stderr, fmt::format("ridge: {} was not written; ridge export writes it from the checkpoint", (part.folder / "model").string()));
  const int code = exit_code(outcome);
  return code == kOk && !exported ? int(kData) : code;
}

// What is wrong with the last data set is said before the first one is trained on. Their tokens stay in the cache.
void check_data(const std::vector<Part>& parts, const config::Sources& sources, bool json) {
  std::set<std::string> seen;
  for (const Part& part : parts)
    if (!part.begun && !part.finished && seen.insert(part.data).second) {
      const config::Resolved settings = settings_of(part, sources);
      check_gpt_data(settings, options_of(part, settings, json));
    }
}

// A row for each data set: means, where there are several seeds.
void show_means(const std::vector<ExperimentRun>& runs, const std::string& level, bool json) {
  if (level == "warning" || level == "error") return;
  if (json)
    say(stdout, nlohmann::ordered_json{{"event", "final_info"}, {"final_info", final_info(runs)}}.dump());
  else {
    const std::vector<RunGroup> groups = group_seeds(runs);
    const char* const means = groups.size() < runs.size() ? ", means ± standard errors over the seeds" : "";
    say(stdout, fmt::format("\nAll runs{}\n{}", means, run_table(groups, terminal_width())));
  }
}

int train_in(const fs::path& out, const config::Resolved& settings, const config::Sources& sources, bool json, bool data_checked = false) {
  const bool resume = settings.get<bool>("resume");
  std::vector<Part> parts = parts_of(settings, out);
  if (resume) look_back(parts, settings, out);
  std::vector<fs::path> places = {out};
  for (const Part& part : parts) places.push_back(part.folder);
  if (!resume)
    for (const fs::path& place : places) check_place(place, parts, settings);
  if (parts.size() > 1 && !data_checked) check_data(parts, sources, json);
  auto keep_settings = [&] {  // an experiment is resumed as a whole, and each of its runs alone
    if (parts.size() == 1) return;
    make_folder(out);
    write_atomically((out / "config.yaml").string(), config_text(settings, out));
  };
  for (const Part& part : parts)
    if (part.finished)
      say(stderr, fmt::format("{} is finished", part.folder.string()));
    else if (const int code = train_part(part, parts.size() > 1 ? settings_of(part, sources) : config::resolve(sources), json, keep_settings); code != kOk)
      return code;
  try {  // what they tell is in the runs' own folders too
    std::vector<ExperimentRun> done;
    for (const Part& part : parts) done.push_back(read_experiment_run(part.folder, word_for(part.data)));
    if (parts.size() > 1) show_means(done, settings.get<std::string>("log_level"), json);
    make_folder(out);
    write_atomically((out / "final_info.json").string(), final_info(done).dump(2) + "\n");
    std::vector<fs::path> folders;
    for (const Part& part : parts) folders.push_back(part.folder);
    if (parts.size() > 1) write_loss_plots(out, folders);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::io) throw;
    say(stderr, fmt::format("ridge: {}", error.what()));
  }
  return kOk;
}

int train_all(config::Sources sources, bool json) {
  std::signal(SIGPIPE, SIG_IGN);
  config::Resolved settings = config::resolve(sources);
  const fs::path out = settings.get<std::string>("out");
  if (settings.get<bool>("resume")) settings = resolve_resumed(sources);
  note_unused(settings, "train");
  request_default_threads(thread_request(settings));
  if (!out.empty()) return train_in(out, settings, sources, json);
  const std::vector<std::string> data = settings.get<std::vector<std::string>>("data");
  const fs::path runs = settings.get<std::string>("runs_dir");
  const std::vector<Part> parts = parts_of(settings, runs / "new");  // their folders have no names yet
  if (parts.size() > 1) check_data(parts, sources, json);
  std::error_code ignored;
  const bool first = !fs::exists(runs, ignored);
  const fs::path fresh = new_folder(settings, data.empty() ? "builtin" : data.front());
  try {
    return train_in(fresh, settings, sources, json, true);
  } catch (...) {
    fs::remove(fresh, ignored);  // if it is empty: a refused run leaves nothing
    if (first) fs::remove(runs, ignored);
    throw;
  }
}

const Command train_command("train", "train a model: ridge train gpt data=my.txt", [](Line line) {
  auto task = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  line.word("task", *task, "gpt");
  line.flag("--json", *json, "JSON lines on stdout");
  auto sources = add_settings(line, config::kGpt);
  line.footer(
      "Settings: preset=NAME data=FILE|FOLDER|builtin batch=N steps=N lr=X seeds=N device=auto|cpu|cuda precision=auto|fp32|tf32|bf16|fp16;\n"
      "--out DIR names the run folder, --resume RUN goes on with a run, --no-fallback refuses instead of taking another device.\n"
      "ridge config keys says more.\n"
      "Exit codes: 0 done, 1 error, 2 usage or configuration, 3 does not fit, 4 data or files, 5 diverged, 6 state lost (the last checkpoint could\n"
      "not be written), 75 ended by SIGTERM after a checkpoint (before the first step: 143), 130 by SIGINT.");
  return [=] {
    check_task(*task);
    const int code = train_all(sources(), *json);
    if (!*json) std::clearerr(stdout);  // the run's folder holds what nobody read; a program that reads JSON may have nothing else
    return code;
  };
});

}  // namespace
}  // namespace ridge::cli
