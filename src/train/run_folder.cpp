#include "train/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <sstream>

#include <fmt/chrono.h>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/terminal.h"
#include "data/find_source.h"
#include "io/atomic_file.h"
#include "io/write_buffer.h"
#include "machine/fingerprint.h"
#include "machine/utilisation.h"
#include "measure/default_team.h"
#include "threads/kernel_share.h"
#include "threads/thread_team.h"
#include "train/experiment.h"
#include "train/loss_plot.h"
#include "train/outputs.h"
#include "train/plan_report.h"
#include "train/run_table.h"
#include "train/tensorboard_view.h"
#include "train/train_view.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

void check_made(const fs::path& folder, const std::error_code& error) {
  if (error) fail(ErrorCode::io, "[train] cannot create the run folder {}: {}; choose another with --out DIR", folder.string(), error.message());
}

// Keeps the terminal output with the run. Text that cannot be written waits for disk space, as metrics do.
class LogFile {
 public:
  LogFile(const fs::path& path, bool append)
      : path_(path.string()), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (append ? 0 : O_TRUNC), 0666)) {
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
    if (std::chrono::steady_clock::now() >= retry_at_) flush();
  }
  void flush() {
    const int cause = waiting_.flush(file_);
    if (cause == 0) return;
    retry_at_ = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    fail(ErrorCode::io, "[log] {}: cannot be written: {}; {}", path_, std::strerror(cause), file_remedy(cause));
  }

  std::string path_;
  int file_;
  WriteBuffer waiting_;
  std::chrono::steady_clock::time_point retry_at_ = {};  // time of the next attempt
};

class QuietView : public RunView {
 public:
  explicit QuietView(bool notices) : notices_(notices) {}
  void begin(std::span<const Decision>) override {}
  void end(const RunSummary&) override {}
  void on_notice(const std::string& line) override {
    if (notices_) print_line(stderr, line);
  }

 private:
  bool notices_;
};

bool is_quiet(const RunOutput& output) { return output.log_level == "warning" || output.log_level == "error"; }

std::unique_ptr<RunView> view_for(const RunOutput& output, const std::string& unit, const LiveFacts& facts) {
  if (!output.show) return nullptr;
  if (is_quiet(output)) return std::make_unique<QuietView>(output.log_level == "warning");
  return stdout_view(output.json, unit, facts);
}

bool has_run(const fs::path& folder) { return !CheckpointStore(folder / "checkpoints").steps().empty() || fs::exists(folder / "metrics.jsonl"); }

// Data that is generated, or missing, is no place; what is missing is reported when it is opened.
bool is_place(const std::string& data, const fs::path& place) try {
  std::error_code ignored;
  return fs::equivalent(find_source(data), place, ignored);
} catch (const Error&) {
  return false;
}

bool is_experiment(const fs::path& folder) { return fs::exists(folder / "config.yaml") && !find_runs(folder).empty(); }

// A run's config.yaml has this first line.
bool is_own_config(const fs::path& place, const config::Resolved& settings) {
  auto first_line = [](std::istream&& in) {
    std::string line;
    std::getline(in, line);
    return line;
  };
  return first_line(std::ifstream(place / "config.yaml")) == first_line(std::istringstream(settings.to_yaml()));
}

// One row per data set, with means if there are several seeds.
void show_means(const std::vector<ExperimentRun>& runs, bool json) {
  if (json)
    print_line(stdout, nlohmann::ordered_json{{"event", "final_info"}, {"final_info", final_info(runs)}}.dump());
  else {
    const std::vector<RunGroup> groups = group_seeds(runs);
    const char* const means = groups.size() < runs.size() ? ", means ± standard errors over the seeds" : "";
    print_line(stdout, fmt::format("\nAll runs{}\n{}", means, run_table(groups, terminal_width())));
  }
}

}  // namespace

void print_line(FILE* stream, const std::string& line) {
  const bool taken = std::fputs((line + "\n").c_str(), stream) >= 0;
  if ((std::fflush(stream) != 0 || !taken) && errno == EPIPE) std::clearerr(stream);
}

std::string config_text(config::Resolved settings, const fs::path& folder) {
  settings.keep_paths();
  if (settings.get<bool>("resume")) {
    settings.keep_sources(folder);
    settings.replace("resume", "false", "default");
  }
  return settings.to_yaml();
}

void make_run_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  check_made(folder, error);
}

fs::path new_run_folder(const fs::path& runs, const std::string& model, const std::string& data) {
  const std::string stamp = fmt::format("{:%Y%m%d_%H%M%S}", fmt::localtime(std::time(nullptr)));
  const fs::path base = runs / (data.empty() ? fmt::format("{}_{:.80}", stamp, word_for(model)) : fmt::format("{}_{}_{:.80}", stamp, model, word_for(data)));
  make_run_folder(base.parent_path());
  fs::path folder = base;
  std::error_code error;
  for (int i = 2; !fs::create_directory(folder, error); ++i) {
    check_made(folder, error);
    folder = fmt::format("{}_{}", base.string(), i);  // another process has taken the name
  }
  return folder;
}

std::optional<std::string> conflicting_file(const fs::path& place, bool is_part, const config::Resolved& settings) {
  if (is_own_config(place, settings)) return {};
  std::error_code ignored;
  for (const char* name :
       {"config.yaml", "final_info.json", "log.txt", "summary.json", "plan.json", "machine.json", "model", "train_loss.svg", "val_loss.svg", "tensorboard"})
    if ((is_part || name == std::string_view("config.yaml") || name == std::string_view("final_info.json")) && fs::exists(place / name, ignored) &&
        !fs::is_empty(place / name, ignored))
      return name;
  return {};
}

namespace {

// Something in the folder that neither a run nor its settings put there; empty: nothing.
std::string foreign_entry(const fs::path& place, const config::Resolved& settings) {
  std::error_code ignored;
  if (is_own_config(place, settings)) return {};
  for (auto entry = fs::directory_iterator(place, ignored); entry != fs::directory_iterator(); entry.increment(ignored))
    if (const std::string name = entry->path().filename().string(); name != "config_gpu.ini" && name != "train.yaml" && !name.starts_with('.')) return name;
  return {};
}

}  // namespace

void check_place(const fs::path& place, const std::vector<Part>& parts, const config::Resolved& settings) {
  std::error_code ignored;
  if (fs::exists(place, ignored) && !fs::is_directory(place, ignored))
    fail(ErrorCode::io, "[train] {} is not a folder; choose another with --out DIR", place.string());
  if (has_run(place) || is_experiment(place))
    fail(ErrorCode::usage, "[train] {} already contains a run; continue it with --resume, or choose another folder with --out DIR", place.string());
  const bool is_part = std::any_of(parts.begin(), parts.end(), [&](const Part& part) { return part.folder == place; });
  if (const std::optional<std::string> name = conflicting_file(place, is_part, settings))
    fail(ErrorCode::usage, "[train] {} contains files that a run would overwrite: {}; move them away, or choose another folder with --out DIR", place.string(),
         *name);
  if (std::any_of(parts.begin(), parts.end(), [&](const Part& part) { return is_place(part.data, place); }))
    fail(ErrorCode::usage, "[train] {} is the data itself; choose another folder, or one in it, with --out DIR", place.string());
  if (const std::string name = foreign_entry(place, settings); !name.empty())
    fail(ErrorCode::usage, "[train] {} is not empty and not a run: it contains {}; choose a new folder with --out DIR, such as {}", place.string(), name,
         (place / "run").string());
}

RunResult train_in_folder(TaskRun& run, const config::Resolved& settings, const RunOutput& output) {
  const Machine machine = known_machine();
  const fs::path folder = run.trainer.folder;
  const bool keeps = !folder.empty();
  if (keeps) make_run_folder(folder);
  const std::optional<FolderLock> lock = lock_run(folder);
  std::optional<LogFile> log;
  std::unique_ptr<TerminalView> log_view;
  std::unique_ptr<TensorboardView> events;
  std::vector<TrainerView*> views;
  UtilisationWatch watch(cpu_groups(machine));
  const bool on_cpu = run.decided("device") == "cpu";
  KernelTime begin;
  const auto kernels = [&] { return kernel_share(begin, kernel_time(default_team()), default_team().size()); };
  const auto cores = [&]() -> std::string {
    if (!(watch.latest().seconds > 0)) return "";
    return watch.latest().summary() + (on_cpu ? fmt::format(", kernels {:.0f} %", 100 * kernels()) : "");
  };
  const LiveFacts facts{cores, run.trainer.target};
  const std::unique_ptr<RunView> view = view_for(output, run.unit, facts);
  if (view) views.push_back(view.get());
  if (keeps) {
    run.trainer.locked = true;
    auto keep_config = [&] {
      if (!output.config.empty()) write_atomically((folder / "config.yaml").string(), output.config);
    };
    if (!run.trainer.resume) keep_config();  // identifies the folder as a run even if it is killed before its first step
    log.emplace(folder / "log.txt", run.trainer.resume);
    log_view = std::make_unique<TerminalView>(log->screen(), run.unit, facts);
    views.push_back(log_view.get());
    if (output.tensorboard) events = std::make_unique<TensorboardView>(folder / "tensorboard");
    if (events) views.push_back(events.get());
    run.trainer.accepted = [&run, &machine, folder, keep_config] {
      if (run.trainer.resume) keep_config();
      write_atomically((folder / "plan.json").string(), plan_json(run));
      write_atomically((folder / "machine.json").string(), fingerprint(machine).description + "\n");
    };
  }
  Outputs outputs(views);
  if (lock && !lock->problem().empty()) outputs.on_notice(lock->problem());
  if (!run.fallback.empty()) outputs.on_notice(run.fallback);
  outputs.begin(run.decisions);
  for (const std::string& notice : run.notices) outputs.on_notice(notice);
  if (output.log_level == "debug")
    for (const std::string& line : run.step->plan().decisions) outputs.on_notice(line);

  RunResult result;
  if (on_cpu) begin = kernel_time(default_team());
  result.outcome = train_run(run, settings, {&outputs});
  result.summary = summary_of(run, result.outcome, cores_text(watch.overall()));
  if (on_cpu) result.summary.kernels = kernels();
  if (keeps) {
    if (const std::string name = run.artifact(); !name.empty() && result.outcome.end != Outcome::End::diverged)
      result.has_artifact = outputs.write_last(name + "/", [&] { run.write_artifact(folder / name); });
    outputs.write_last("summary.json", [&] { write_atomically((folder / "summary.json").string(), summary_json(result.summary).dump(2) + "\n"); });
    if (result.outcome.end != Outcome::End::diverged) outputs.write_last("a picture", [&] { run.write_pictures(folder); });
    outputs.write_last("a plot", [&] { write_loss_plots(folder, {folder}); });
    if (events) outputs.write_last("the last TensorBoard events", [&] { events->flush(); });
  }
  outputs.end(result.summary);
  return result;
}

void finish_experiment(const fs::path& out, const std::vector<Part>& parts, const RunOutput& output, const ReportRuns& report) {
  std::vector<ExperimentRun> done;
  std::vector<fs::path> folders;
  for (const Part& part : parts) done.push_back(read_experiment_run(part.folder, part.name)), folders.push_back(part.folder);
  if (parts.size() > 1 && output.show && !is_quiet(output)) show_means(done, output.json);
  make_run_folder(out);
  write_atomically((out / "final_info.json").string(), final_info(done).dump(2) + "\n");
  if (folders.front() != out) write_loss_plots(out, folders);
  if (parts.size() < 2 || !report) return;
  const RunsReport own = report(done, terminal_width());
  write_atomically((out / own.file).string(), own.json);
  if (output.show && !is_quiet(output)) print_line(stdout, output.json ? own.event : "\n" + own.text);
}

}  // namespace ridge
