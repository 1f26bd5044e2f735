// ridge bench SUITE: measures speed against the machine's measured ceilings.
#include <charconv>
#include <cstdio>
#include <utility>

#include "backend/backend.h"
#include "base/error.h"
#include "bench/bench.h"
#include "bench/sample_rows.h"
#include "bench/train_rows.h"
#include "cli/command.h"
#include "cli/settings.h"
#include "machine/device_choice.h"
#include "measure/default_team.h"

namespace ridge::cli {
namespace {

struct BenchArguments {
  std::string suite;
  std::string filter;
  bool json = false;
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
  Rows(const BenchArguments& arguments, std::string head) : json_(arguments.json), head_(std::move(head)) {}

  template <class Result>
  void show(const Result& result, double roof, std::string_view ceiling) {
    if (!json_ && !head_.empty()) std::puts(std::exchange(head_, "").c_str());
    std::puts(json_ ? bench::to_json(result).c_str() : bench::to_table_line(result).c_str());
    std::fflush(stdout);
    if (std::string why = bench::above_roof(result.name, roof, ceiling, result.others); !why.empty()) remarks_.push_back(std::move(why));
    wrong_ |= roof > bench::kAboveRoof;
  }

  int finish() const {
    for (const std::string& remark : remarks_) fmt::print(stderr, "ridge: {}\n", remark);
    return wrong_ ? kError : kOk;
  }

 private:
  bool json_, wrong_ = false;
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

int run_bench(const BenchArguments& arguments, config::Sources sources) {
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
  line.flag("--json", arguments->json, "print one JSON object per line");
  auto sources = add_settings(line);
  return [=] { return run_bench(*arguments, sources()); };
});

}  // namespace
}  // namespace ridge::cli
