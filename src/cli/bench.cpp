// ridge bench SUITE: measures speed against the machine's measured ceilings.
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <utility>

#include "backend/backend.h"
#include "base/error.h"
#include "bench/bench.h"
#include "bench/grid.h"
#include "bench/record.h"
#include "bench/sample_rows.h"
#include "bench/step_row.h"
#include "bench/train_rows.h"
#include "cli/command.h"
#include "cli/settings.h"
#include "io/atomic_file.h"
#include "machine/device_choice.h"
#include "machine/features.h"
#include "measure/default_team.h"
#include "tasks/registry.h"
#include "train/loss_plot.h"

namespace ridge::cli {
namespace {

struct BenchArguments {
  std::string suite;
  std::string filter, save, compare, svg;
  bool json = false, csv = false, md = false, raw = false;
  int64_t repeat = 0;  // 0: not given

  // Several fresh processes, or one that is stored, compared or printed as a whole.
  bool recorded() const { return repeat > 0 || csv || md || !save.empty() || !compare.empty(); }
};

template <class Number>
Number number(const std::string& key, const std::string& text, Number low, Number high) {
  Number value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= low && value <= high))
    fail(ErrorCode::usage, "[bench] {}={} is not a number from {} to {}", key, text, low, high);
  return value;
}

// Handles a word that only benchmarks accept; false: it is not one.
bool take_own(const std::string& word, bench::Options& options) {
  const size_t equal = word.find('=');
  if (equal == std::string::npos) return false;
  const std::string key = word.substr(0, equal), value = word.substr(equal + 1);
  if (key == "seconds") {
    options.seconds = number(key, value, 0.0, 600.0);
  } else if (key == "state") {
    if (value != "hot" && value != "cold") fail(ErrorCode::usage, "[bench] state={}; valid: hot, cold", value);
    options.state = value == "hot" ? bench::State::hot : bench::State::cold;
  } else {
    return false;
  }
  return true;
}

// Removes the benchmark-specific words from the sources.
bench::Options options_of(const BenchArguments& arguments, config::Sources& sources) {
  bench::Options options;
  options.filter = arguments.filter;
  std::erase_if(sources.words, [&](const std::string& word) { return take_own(word, options); });
  const config::Resolved settings = config::resolve(sources);
  note_cache();
  const DeviceRequest device = parse_device(settings.get<std::string>("device"));
  if (!device.automatic && device.kind != Device::Kind::cpu) {  // a benchmark runs on the requested device or not at all
    const DeviceChoice chosen = select_device(settings.get<std::string>("device"), Fallback::forbid);
    options.device = to_string(chosen.device), options.backend = open_device(chosen.device);
    if (const std::string remark = options.backend->remark(); !remark.empty()) fmt::print(stderr, "ridge: {}\n", remark);
  }
  if (settings.get<std::string>("threads") != "auto") {
    request_default_threads(thread_request(settings));
    options.threads = choose_threads(known_machine(), thread_request(settings), {}).team.threads;
  }
  return options;
}

bench::RowSettings row_settings(const config::Sources& sources) {
  return [sources](unsigned task, const std::vector<std::string>& defaults) {
    config::Sources with = sources;
    with.task = task, with.assumed = defaults;
    return config::resolve(with);
  };
}

// Prints rows as they arrive and, at the end, which of them exceed their roofs and why.
class Rows {
 public:
  Rows(const BenchArguments& arguments, std::string head) : json_(arguments.json), raw_(arguments.raw), head_(std::move(head)) {}

  template <class Result>
  void show(const Result& result, double roof, std::string_view ceiling) {
    if (!json_ && !head_.empty()) std::puts(std::exchange(head_, "").c_str());
    std::puts(json_ ? bench::to_json(result, raw_).c_str() : bench::to_table_line(result).c_str());
    std::fflush(stdout);
    if (std::string why = bench::above_roof(result.name, roof, ceiling, result.others); !why.empty()) remarks_.push_back(std::move(why));
    wrong_ |= roof > bench::kAboveRoof;
  }

  int finish() const {
    for (const std::string& remark : remarks_) fmt::print(stderr, "ridge: {}\n", remark);
    return wrong_ ? kError : kOk;
  }

 private:
  bool json_, raw_, wrong_ = false;
  std::string head_;
  std::vector<std::string> remarks_;
};

int run_train(const BenchArguments& arguments, config::Sources sources) {
  const bench::Options options = options_of(arguments, sources);
  Rows rows(arguments, bench::train_table_head());
  bench::run_train(options, row_settings(sources), [&](const bench::TrainResult& result) { rows.show(result, result.roof, "the step's roof"); });
  return rows.finish();
}

int run_sample(const BenchArguments& arguments, config::Sources sources) {
  const bench::Options options = options_of(arguments, sources);
  Rows rows(arguments, bench::sample_table_head());
  bench::run_sample(options, row_settings(sources), [&](const bench::SampleResult& result) { rows.show(result, result.roof, "the read bandwidth"); });
  return rows.finish();
}

// Runs this program again and passes on each line that it prints. Returns its exit code.
int run_process(const std::vector<std::string>& words, const std::function<void(const std::string&)>& line) {
  int ends[2];
  if (pipe(ends) != 0) fail(ErrorCode::io, "[bench] cannot start a process: no pipe is available; close other programs");
  const pid_t child = fork();
  if (child < 0) fail(ErrorCode::io, "[bench] cannot start a process; close other programs, or give --repeat 1");
  if (child == 0) {
    std::vector<char*> argv;
    std::string self = "ridge";
    argv.push_back(self.data());
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]), close(ends[1]);
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  close(ends[1]);
  std::FILE* in = fdopen(ends[0], "r");
  std::string text;
  for (int c; (c = std::fgetc(in)) != EOF;) {
    if (c != '\n') {
      text += char(c);
      continue;
    }
    if (text.starts_with("{")) line(text);
    text.clear();
  }
  std::fclose(in);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string machine_text() {
  const Machine machine = known_machine(Figures::none);
  return fmt::format("{}, {} threads usable", machine.topology.cpu_name, machine.threads());
}

constexpr int64_t kRounds = 5;  // processes of a saved or compared measurement

// What one process measures, and how its rows are called.
struct Process {
  std::vector<std::string> words;
  std::function<std::string(const std::string&)> row;
};

void print_table(const BenchArguments& arguments, const bench::TextTable& table) {
  std::fputs((arguments.csv ? table.csv() : arguments.md ? table.markdown() : table.plain()).c_str(), stdout);
}

void print_grid(const BenchArguments& arguments, const bench::Record& record) {
  const std::vector<bench::Ranking> rankings = bench::rank(record);
  if (!arguments.json) print_table(arguments, bench::table_of(record, rankings));
  FILE* const out = arguments.json || arguments.csv ? stderr : stdout;
  for (const bench::Ranking& ranking : rankings) {
    fmt::print(out, "\n{}: {} is recommended\n", ranking.name, ranking.recommended.empty() ? "it" : ranking.recommended);
    for (const std::string& sentence : ranking.sentences) fmt::print(out, "{}{}\n", arguments.md ? "- " : "  ", sentence);
  }
  if (arguments.svg.empty()) return;
  write_atomically(arguments.svg, bench::picture_of(record, rankings));
  fmt::print(stderr, "ridge: {} written\n", arguments.svg);
}

// Measures in fresh processes that each run every row, or one of the grid's, so that rows take turns and the differences between processes count. Prints,
// stores and compares.
int run_recorded(const BenchArguments& arguments, std::vector<Process> processes) {
  const bool grid = arguments.suite == "devices" || arguments.suite == "configs";
  check_picture_place(arguments.svg), check_folder_of(arguments.save);
  if (arguments.json + arguments.csv + arguments.md > 1) fail(ErrorCode::usage, "[bench] --json, --csv and --md exclude each other; give one");
  bench::Record before;
  if (!arguments.compare.empty()) {
    before = bench::load_record(arguments.compare);
    if (before.suite != arguments.suite)
      fail(ErrorCode::usage, "[bench] {} has rows of the suite {}; compare with ridge bench {} --compare {}", arguments.compare, before.suite, before.suite,
           arguments.compare);
  }
  if (const double others = others_now(); others > kQuiet)
    fmt::print(stderr, "ridge: other programs use {:.0f} % of the machine; comparisons then find only larger changes. Measure when it is quiet\n",
               100 * others);
  bench::Record record{.suite = arguments.suite,
                       .build = fmt::format("ridge {} ({})", RIDGE_VERSION, name(isa_tier())),
                       .machine = machine_text(),
                       .date = bench::now_text(),
                       .rows = {}};
  const bool stored = !arguments.save.empty() || !arguments.compare.empty();
  const int64_t rounds = arguments.repeat > 0 ? arguments.repeat : stored || processes.size() > 1 ? kRounds : 1;
  int code = kOk;
  for (int64_t round = 0; round < rounds; ++round) {
    std::erase_if(processes, [&](const Process& process) {
      const int ended = run_process(process.words, [&](const std::string& line) { record.add(process.row ? process.row(line) : line); });
      const bool skipped = grid && ended == kDoesNotFit && round == 0;  // it has said why
      if (!skipped) code = std::max(code, ended);
      return skipped;
    });
    if (code > kError) return code;  // it has said why
    if (processes.empty()) return kDoesNotFit;
    if (rounds > 1) fmt::print(stderr, "ridge: round {} of {} done\n", round + 1, rounds);
  }
  if (!arguments.save.empty()) {
    write_atomically(arguments.save, record.to_json());
    fmt::print(stderr, "ridge: {} rows of {} processes written to {}\n", record.rows.size(), rounds, arguments.save);
  }
  if (arguments.json) std::fputs(record.to_json().c_str(), stdout);
  if (grid)
    print_grid(arguments, record);
  else if (!arguments.json && arguments.compare.empty())
    print_table(arguments, bench::table_of(record));
  if (arguments.compare.empty()) return code;
  const bench::RecordComparison comparison = bench::compare_records(before, record);
  for (const std::string& remark : comparison.remarks) fmt::print(stderr, "ridge: {}\n", remark);
  if (!comparison.only_before.empty())
    fmt::print(stderr, "ridge: {} rows of {} were not measured now, first {}\n", comparison.only_before.size(), arguments.compare,
               comparison.only_before.front());
  if (!arguments.json) print_table(arguments, comparison.table());
  fmt::print(stderr, "ridge: {}\n", comparison.sentence());
  return comparison.count(Change::slower) > 0 ? kError : kOk;
}

// The words of a process that prints the samples of a suite.
std::vector<std::string> process_words(const std::string& suite, const config::Sources& sources) {
  std::vector<std::string> words = {"bench", suite, "--json", "--raw"};
  for (const auto& file : sources.files) words.insert(words.end(), {"--config", file.string()});
  return words;
}

std::vector<Process> processes_of(const BenchArguments& arguments, const config::Sources& sources) {
  Process process{process_words(arguments.suite, sources), {}};
  if (!arguments.filter.empty()) process.words.insert(process.words.end(), {"--filter", arguments.filter});
  process.words.insert(process.words.end(), sources.words.begin(), sources.words.end());
  return {process};
}

// A process for each configuration that --filter selects by its label.
std::vector<Process> processes_of(const BenchArguments& arguments, const config::Sources& sources, const std::vector<bench::GridPoint>& grid) {
  const auto wanted = bench::row_filter(arguments.filter);
  std::vector<Process> processes;
  std::string labels;
  for (const bench::GridPoint& point : grid) {
    labels += (labels.empty() ? "" : ", ") + point.label;
    if (!wanted(point.label)) continue;
    Process& process = processes.emplace_back(Process{process_words("configs", sources), {}});
    process.words.push_back(point.task);
    process.words.insert(process.words.end(), point.shared.begin(), point.shared.end());
    process.words.insert(process.words.end(), point.config.begin(), point.config.end());
    process.row = [point, suite = arguments.suite](const std::string& line) { return bench::row_of(point, suite, line); };
  }
  if (processes.empty()) fail(ErrorCode::usage, "[bench] no row matches '{}'; there are {}", arguments.filter, labels);
  return processes;
}

// One step in this process.
int run_step(const BenchArguments& arguments, const bench::GridPoint& point, config::Sources sources) {
  sources.words = point.shared;
  bench::Options options{.seconds = 1};
  std::erase_if(sources.words, [&](const std::string& word) { return take_own(word, options); });
  const Task& task = find_task(point.task);
  sources.task = task.keys;
  add_implied(task, sources);
  const config::Resolved settings = config::resolve(sources);
  note_unused(settings, "train");
  request_default_threads(thread_request(settings));
  bench::StepResult result = bench::measure_step(task, settings, options.seconds);
  Rows(arguments, bench::step_table_head()).show(result, 0, {});
  return kOk;
}

int run_grid(const BenchArguments& arguments, const config::Sources& sources) {
  const std::vector<bench::GridPoint> grid = arguments.suite == "devices" ? bench::devices_of(sources.words) : bench::grid_of(sources.words);
  if (arguments.suite == "configs" && grid.size() == 1 && !arguments.recorded()) return run_step(arguments, grid.front(), sources);
  return run_recorded(arguments, processes_of(arguments, sources, grid));
}

int run_bench(const BenchArguments& arguments, config::Sources sources) {
  const bool grid = arguments.suite == "devices" || arguments.suite == "configs";
  if (arguments.raw && !arguments.json) fail(ErrorCode::usage, "[bench] --raw adds samples to JSON lines; give --json too");
  if (!arguments.svg.empty() && !grid) fail(ErrorCode::usage, "[bench] --svg draws the suites devices and configs");
  if (grid) return run_grid(arguments, sources);
  if (arguments.suite != "ops" && arguments.suite != "train" && arguments.suite != "sample")
    fail(ErrorCode::usage, "[bench] unknown suite '{}'; valid: ops, train, sample, devices, configs", arguments.suite);
  if (arguments.recorded()) return run_recorded(arguments, processes_of(arguments, sources));
  if (arguments.suite == "train") return run_train(arguments, sources);
  if (arguments.suite == "sample") return run_sample(arguments, sources);
  const bench::Options options = options_of(arguments, sources);
  Rows rows(arguments, bench::table_head());
  const bool host = options.backend->host_memory();
  auto run = host ? bench::run : bench::run_on_device;
  run(host ? bench::ops_rows() : bench::device_ops_rows(), options,
      [&](const bench::Result& result) { rows.show(result, result.roof.value_or(0), bench::name(result.bound)); });
  return rows.finish();
}

const Command bench_command("bench", "measure speed against the machine's ceilings", [](Line line) {
  auto arguments = std::make_shared<BenchArguments>();
  line.word(
      "suite", arguments->suite,
      "which rows: ops, train or sample, then seconds=S for each row, state=hot|cold, threads=N, device=cuda; devices TASK …: one step on every device and "
      "number format; configs TASK threads=1,2 batch=8,16 …: every combination of settings");
  line.option("--filter", arguments->filter, "run only rows whose name matches this regular expression");
  line.flag("--json", arguments->json, "print one JSON object per line; with --repeat, --save or --compare the file that --save writes");
  line.flag("--csv", arguments->csv, "print comma-separated values");
  line.flag("--md", arguments->md, "print a Markdown table");
  line.flag("--raw", arguments->raw, "with --json: every sample, the clock and the load");
  line.range_option("--repeat", arguments->repeat,
                    "measure in this many fresh processes, each with all rows; 5 with --save or --compare, and of each device or configuration", 1, 1000);
  line.option("--svg", arguments->svg, "draw the speed of every device or configuration into this file");
  line.option("--save", arguments->save, "write every sample to this file");
  line.option("--compare", arguments->compare, "say which rows are faster, slower or the same as in this file; exit code 1 if any is slower");
  auto sources = add_settings(line);
  return [=] { return run_bench(*arguments, sources()); };
});

}  // namespace
}  // namespace ridge::cli
