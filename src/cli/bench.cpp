// ridge bench SUITE: measures speed against the machine's measured ceilings.
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <utility>

#include "backend/backend.h"
#include "base/error.h"
#include "bench/bench.h"
#include "bench/record.h"
#include "bench/sample_rows.h"
#include "bench/train_rows.h"
#include "cli/command.h"
#include "cli/settings.h"
#include "io/atomic_file.h"
#include "machine/device_choice.h"
#include "machine/features.h"
#include "measure/default_team.h"

namespace ridge::cli {
namespace {

struct BenchArguments {
  std::string suite;
  std::string filter, save, compare;
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
  if (settings.get<std::string>("threads") != "auto") options.threads = choose_threads(known_machine(), thread_request(settings), {}).team.threads;
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

// Measures in fresh processes that each run every row, so that rows take turns and the differences between processes count. Prints, stores and compares.
int run_recorded(const BenchArguments& arguments, const config::Sources& sources) {
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
  std::vector<std::string> words = {"bench", arguments.suite, "--json", "--raw"};
  if (!arguments.filter.empty()) words.insert(words.end(), {"--filter", arguments.filter});
  for (const auto& file : sources.files) words.insert(words.end(), {"--config", file.string()});
  words.insert(words.end(), sources.words.begin(), sources.words.end());
  const bool stored = !arguments.save.empty() || !arguments.compare.empty();
  const int64_t rounds = arguments.repeat > 0 ? arguments.repeat : stored ? kRounds : 1;
  int code = kOk;
  for (int64_t round = 0; round < rounds; ++round) {
    const int ended = run_process(words, [&](const std::string& line) { record.add(line); });
    if (ended > kError) return ended;  // it has said why
    code = std::max(code, ended);
    if (rounds > 1) fmt::print(stderr, "ridge: process {} of {} done\n", round + 1, rounds);
  }
  if (!arguments.save.empty()) {
    write_atomically(arguments.save, record.to_json());
    fmt::print(stderr, "ridge: {} rows of {} processes written to {}\n", record.rows.size(), rounds, arguments.save);
  }
  auto print = [&](const bench::TextTable& table) {
    std::fputs((arguments.csv ? table.csv() : arguments.md ? table.markdown() : table.plain()).c_str(), stdout);
  };
  if (arguments.json)
    std::fputs(record.to_json().c_str(), stdout);
  else if (arguments.compare.empty())
    print(bench::table_of(record));
  if (arguments.compare.empty()) return code;
  const bench::RecordComparison comparison = bench::compare_records(before, record);
  for (const std::string& remark : comparison.remarks) fmt::print(stderr, "ridge: {}\n", remark);
  if (!comparison.only_before.empty())
    fmt::print(stderr, "ridge: {} rows of {} were not measured now, first {}\n", comparison.only_before.size(), arguments.compare,
               comparison.only_before.front());
  if (!arguments.json) print(comparison.table());
  fmt::print(stderr, "ridge: {}\n", comparison.sentence());
  return comparison.count(Change::slower) > 0 ? kError : kOk;
}

int run_bench(const BenchArguments& arguments, config::Sources sources) {
  if (arguments.raw && !arguments.json) fail(ErrorCode::usage, "[bench] --raw adds samples to JSON lines; give --json too");
  if (arguments.recorded() && (arguments.suite == "ops" || arguments.suite == "train" || arguments.suite == "sample")) return run_recorded(arguments, sources);
  if (arguments.suite == "train") return run_train(arguments, sources);
  if (arguments.suite == "sample") return run_sample(arguments, sources);
  if (arguments.suite != "ops") fail(ErrorCode::usage, "[bench] unknown suite '{}'; valid: ops, train, sample", arguments.suite);
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
  line.word("suite", arguments->suite, "which rows: ops, train or sample; then seconds=S for each row, state=hot|cold, threads=N, device=cuda");
  line.option("--filter", arguments->filter, "run only rows whose name matches this regular expression");
  line.flag("--json", arguments->json, "print one JSON object per line; with --repeat, --save or --compare the file that --save writes");
  line.flag("--csv", arguments->csv, "print comma-separated values");
  line.flag("--md", arguments->md, "print a Markdown table");
  line.flag("--raw", arguments->raw, "with --json: every sample, the clock and the load");
  line.range_option("--repeat", arguments->repeat, "measure in this many fresh processes, each with all rows; 5 with --save or --compare", 1, 1000);
  line.option("--save", arguments->save, "write every sample to this file");
  line.option("--compare", arguments->compare, "say which rows are faster, slower or the same as in this file; exit code 1 if any is slower");
  auto sources = add_settings(line);
  return [=] { return run_bench(*arguments, sources()); };
});

}  // namespace
}  // namespace ridge::cli
