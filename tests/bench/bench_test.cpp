#include "bench/bench.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "backend/backend.h"
#include "base/error.h"
#include "bench/loop_rows.h"
#include "bench/train_rows.h"
#include "machine/caches.h"
#include "measure/ceilings.h"
#include "threads/thread_team.h"

namespace ridge::bench {
namespace {

// Rows that count their calls.
struct Counted {
  std::shared_ptr<int64_t> calls = std::make_shared<int64_t>(0);
  std::shared_ptr<int> made = std::make_shared<int>(0);
  Row row(const std::string& name, Bound bound, State state = State::hot) const {
    Row r{.suite = "test", .name = name, .state = state, .bound = bound, .flops = 1e6, .bytes = 1e6};
    r.make = [calls = calls, made = made](const Context& context) -> Call {
      ++*made;
      *calls = 0;
      EXPECT_NE(context.backend.info().what.find("2 threads"), std::string::npos);
      return [calls](int64_t iteration) { EXPECT_EQ(iteration, (*calls)++); };
    };
    return r;
  }
};

std::vector<Result> results_of(const std::vector<Row>& rows, Options options) {
  options.threads = 2, options.seconds = 0;
  std::vector<Result> results;
  run(rows, options, [&](const Result& r) { results.push_back(r); });
  return results;
}

TEST(Bench, RowsOfOpsAreDistinctAndComplete) {
  std::set<std::pair<std::string, State>> seen;
  for (const Row& row : ops_rows()) {
    EXPECT_TRUE(seen.emplace(row.name, row.state).second) << row.name;
    EXPECT_EQ(row.suite, "ops");
    EXPECT_TRUE(row.make) << row.name;
    if (row.bound != Bound::latency) {
      EXPECT_GT(row.bound == Bound::fma ? row.flops : row.bytes, 0) << row.name;
    }
  }
  for (const char* name : {"matmul/1024x1024x1024",
                           "matmul/2048x2048x2048",
                           "matmul/512x512x512",
                           "matmul/768x384x128",
                           "matmul/768x384x128-nt",
                           "attention/12x4x64x32",
                           "attention/12x4x256x32",
                           "conv/8x16x28x28-32x3x3",
                           "conv/8x16x28x28-32x3x3-grad",
                           "matmul/64x64x64",
                           "matmul/4096x4096x4096",
                           "add/1000",
                           "gelu/1000000",
                           "sum/1000",
                           "copy/host-1000",
                           "copy/host-100000000",
                           "pool/4096",
                           "dispatch/1x1",
                           "dispatch/1000x64",
                           "dispatch/unfusable",
                           "compile/gpt12"})
    EXPECT_TRUE(seen.count({name, State::hot})) << name;
  for (const char* name : {"add/67108864", "mul/67108864", "affine/67108864", "gelu/67108864", "add_relu/67108864", "sum/67108864", "chain8/67108864",
                           "add/100000000", "sum/10000000", "layer_norm/65536x768", "softmax/65536x768", "rms_norm/8192x4096"})
    EXPECT_TRUE(seen.count({name, State::cold})) << name;
  seen.clear();
  for (const Row& row : device_ops_rows()) EXPECT_TRUE(seen.emplace(row.name + std::string(name(row.dtype)), row.state).second) << row.name;
  for (const char* name : {"matmul/64x64x64bf16", "add/1000f32", "gelu/1000000f32", "pool/4096f32"}) EXPECT_TRUE(seen.count({name, State::hot})) << name;
  for (const char* name : {"rms_norm/262144x768f32", "softmax/65536x768f32", "sum/100000000f32"}) EXPECT_TRUE(seen.count({name, State::cold})) << name;
}

TEST(Bench, RunsOnlyFilteredRows) {
  Counted a, b;
  std::vector<Row> rows = {a.row("one/a", Bound::latency), b.row("two/b", Bound::fma)};
  std::vector<Result> results = results_of(rows, {.filter = "^two"});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].name, "two/b");
  EXPECT_EQ(*a.made, 0);
  EXPECT_EQ(*b.made, 3);  // doing nothing beats any ceiling, and such a row is measured twice more
  EXPECT_GE(results[0].samples, 5);
  EXPECT_GT(results[0].median_us, 0);
  EXPECT_GT(results[0].roof.value(), kAboveRoof);
  EXPECT_GT(results[0].ceiling.value(), 0);
  EXPECT_NEAR(results[0].gflops.value() * results[0].median_us, 1e3, 1);
}

TEST(Bench, ExplainsRowsAboveTheirRoof) {
  EXPECT_EQ(above_roof("x", 0.99, "copy", 0.5), "");
  EXPECT_EQ(above_roof("x", 1.02, "copy", 0), "x at 1.020 of copy: ceilings vary by up to 3 % from one moment to the next");
  EXPECT_EQ(above_roof("x", 1.2, "copy", 0), "the ceiling is wrong: x at 1.200 of copy");
  EXPECT_NE(above_roof("x", 1.2, "copy", 0.5).find("other programs used 50 % of the machine"), std::string::npos);
  EXPECT_EQ(others_text(0.05), "");
  EXPECT_EQ(others_text(0.4), "  others 40%");
}

TEST(Bench, RemeasuresRowsAboveTheirRoof) {
  struct Figure {
    double roof, others = 0;
  };
  int calls = 0;
  EXPECT_EQ(measure_below_roof([&] { return ++calls, Figure{0.9}; }).roof, 0.9);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(measure_below_roof([&] { return Figure{++calls == 3 ? 0.8 : 1.5}; }).roof, 0.8);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(measure_below_roof([&] { return ++calls, Figure{1.5}; }).roof, 1.5);
  EXPECT_EQ(calls, 6) << "twice more and no longer";
}

// A row that reuses its operands is compared with the memory level that holds them: copying them then beats no ceiling.
TEST(Bench, HotRowsUseTheCeilingOfTheirCache) {
  EXPECT_EQ(array_bytes_of(Movement::copy, 1 << 20), 1 << 19);
  EXPECT_EQ(array_bytes_of(Movement::read, 1 << 20), 1 << 20);
  EXPECT_GE(array_bytes_of(Movement::read, 0), 1024) << "something can be measured";
  const int64_t far = array_bytes_of(Movement::copy, int64_t(1) << 60);
  EXPECT_GE(2 * far, 8 * last_level_cache_bytes());
  EXPECT_LE(far, 64 * last_level_cache_bytes()) << "no larger than is needed to be beyond the caches";
}

TEST(Bench, SelectsByState) {
  Counted a, b;
  std::vector<Row> rows = {a.row("x", Bound::latency), b.row("x", Bound::latency, State::cold)};
  std::vector<Result> results = results_of(rows, {.filter = "^x$", .state = State::cold});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].state, State::cold);
  EXPECT_FALSE(results[0].roof);
}

TEST(Bench, RejectsEmptySelections) {
  Counted a;
  for (const char* filter : {"no such row", "("}) {
    try {
      results_of({a.row("x", Bound::latency)}, {.filter = filter});
      FAIL() << filter;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
    }
  }
}

TEST(Bench, WritesOneJsonObjectPerLine) {
  Counted a;
  Row row = a.row("x", Bound::latency);
  row.parts = 10, row.part = "op", row.rival = Counted().row("y", Bound::latency).make;
  Result result = results_of({row}, {.filter = "^x$"}).at(0);
  const std::string text = to_json(result);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  auto line = nlohmann::json::parse(text);
  for (const char* key : {"suite", "name", "dtype", "device", "threads", "state", "median_us", "spread", "gflops", "gbs", "roof", "bound", "ceiling"})
    EXPECT_TRUE(line.contains(key)) << key;
  EXPECT_EQ(line["state"], "hot");
  EXPECT_EQ(line["bound"], "latency");
  EXPECT_EQ(line["threads"], 2);
  EXPECT_TRUE(line["roof"].is_null());
  EXPECT_GT(line["us_per_op"], 0);
  EXPECT_GT(line["ratio_to_one_op"], 0);
  EXPECT_NE(to_table_line(result).find("us per op"), std::string::npos);
}

TEST(Bench, CeilingsSummarizeMeasurementsDuringTheRows) {
  std::vector<Result> results = results_of({Counted().row("x", Bound::fma)}, {.filter = "x|fma"});
  ASSERT_GE(results.size(), 2u);
  EXPECT_EQ(results[0].name, "x");
  EXPECT_EQ(results[1].name, "ceiling/fma_f32");
  EXPECT_GT(results[1].samples, 3 * results[0].samples);  // all windows of all three measurements
}

TEST(Bench, ReportsTheCeilings) {
  std::vector<Result> results = results_of({Counted().row("x", Bound::latency)}, {.filter = "ceiling/fma"});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].name, "ceiling/fma_f32");
  EXPECT_GT(results[0].gflops.value(), 0);
  EXPECT_EQ(results[0].ceiling, results[0].gflops);
}

TEST(TrainRows, ReportTheTimeOfAStep) {
  std::vector<TrainResult> results;
  run_train(
      {.threads = 2, .seconds = 0, .filter = "cpu"},
      [](unsigned task, const std::vector<std::string>& defaults) {
        config::Sources sources;
        sources.task = task, sources.assumed = defaults;
        sources.working_folder.reset();
        sources.words = {"batch=1"};
        return config::resolve(sources);
      },
      [&](const TrainResult& r) { results.push_back(r); });
  ASSERT_EQ(results.size(), 1u);
  const TrainResult& r = results[0];
  EXPECT_EQ(r.name, "gpt/shakespeare-cpu");
  EXPECT_GE(r.samples, 5);
  EXPECT_NEAR(r.tokens_s, 64e3 / r.ms, 1e-6 * r.tokens_s) << "a batch of one has 64 tokens";
  EXPECT_GT(r.roof, 0);
  EXPECT_GT(r.tflops, 0);
  EXPECT_GT(r.planned_bytes, 4 * 4 * 800'000) << "weights, gradients and two moments of 800,000 parameters";
  const std::string json = to_json(r);
  for (const char* key : {"ms", "expected_ms", "tokens_s", "tflops", "roof", "planned_bytes", "peak_bytes", "batch", "precision"})
    EXPECT_NE(json.find("\"" + std::string(key) + "\":"), std::string::npos) << key << " in " << json;
  EXPECT_THROW(run_train({.filter = "nothing"}, {}, {}), Error);
}

std::vector<TrainResult> smallest_loop(const std::vector<std::string>& words) {
  std::vector<TrainResult> results;
  run_train(
      {.threads = 1, .seconds = 0, .filter = "^cfc/64-16-"},
      [&](unsigned task, const std::vector<std::string>& defaults) {
        config::Sources sources;
        sources.task = task, sources.assumed = defaults;
        sources.working_folder.reset();
        sources.words = words;
        return config::resolve(sources);
      },
      [&](const TrainResult& r) { results.push_back(r); });
  return results;
}

// A row and the command of its rival have the same number format.
TEST(TrainRows, TheRivalHasTheSameNumberFormat) {
  const std::vector<TrainResult> exact = smallest_loop({}), narrow = smallest_loop({"precision=bf16"});
  ASSERT_EQ(exact.size() + narrow.size(), 2u);
  EXPECT_EQ(exact[0].precision, "fp32") << "whatever the device would choose";
  EXPECT_EQ(narrow[0].precision, "bf16");
  const int threads = exact[0].threads;
  for (const auto& [row, flags] : {std::pair(exact[0], ""), {narrow[0], " --dtype bfloat16"}}) {
    const std::string command = fmt::format("torch_cfc.py --only cfc --modes eager cell compile{} --threads", flags);
    EXPECT_EQ(row.rival, (threads > 1 ? fmt::format("for n in 1 {}; do {} $n; done", threads, command) : command + " 1") + " | grep '\"T\": 16,'")
        << "three rows of the script are of this model";
  }
}

// From what an executable's dump says.
TEST(LoopRows, CountTheStagesOfAStep) {
  const std::string forward = "kernel 2: loop of 16 steps, resident: 64 blocks of 256 threads, 1 rows each, 3 stages, 6 products\n";
  const std::string backward = "kernel 4: loop of 16 steps, resident: 64 blocks of 256 threads, 1 rows each, 12 stages, 6 products\n";
  const std::string other = "kernel 5: loop of 16 steps, unrolled: rows mix\n";
  EXPECT_EQ(loop_lines("text\n" + forward + other), (std::vector<std::string>{forward.substr(10, forward.size() - 11), other.substr(10, other.size() - 11)}));
  EXPECT_EQ(loop_stages(forward + backward), 15);
  EXPECT_EQ(loop_stages(forward + other), 0) << "kernels of single steps have no stages";
  EXPECT_EQ(loop_stages("no loop"), 0);
  EXPECT_EQ(loops_in(forward + backward), "resident");
  EXPECT_EQ(loops_in(forward + other), "resident and unrolled");
  const Result r{.suite = "ops", .name = "row", .part_us = 3.0, .part = "time_step", .loop = "resident", .stages = 15};
  EXPECT_EQ(nlohmann::json::parse(to_json(r))["us_per_stage"], 0.2);
  EXPECT_NE(to_table_line(r).find("resident, 0.2000 us for each of 15 stages"), std::string::npos);
}

TEST(TrainRows, ReportLoopsOverTime) {
  const std::vector<TrainResult> results = smallest_loop({});
  ASSERT_EQ(results.size(), 1u);
  const TrainResult& r = results[0];
  EXPECT_EQ(r.name, "cfc/64-16-8-64-64x2");
  EXPECT_EQ(r.batch, 64);
  const auto json = nlohmann::json::parse(to_json(r));
  EXPECT_NEAR(json["sequences_s"].get<double>(), 64e3 / r.ms, 1e-6 * 64e3 / r.ms);
  EXPECT_NEAR(json["us_per_time_step"].get<double>(), 1e3 * r.ms / 16, 1e-6 * r.ms * 1e3);
  EXPECT_FALSE(json["loop"].get<std::string>().empty());
  EXPECT_NE(json["rival"].get<std::string>().find("torch_cfc.py"), std::string::npos);
  EXPECT_NE(to_table_line(r).find("us per time step"), std::string::npos);
}

}  // namespace
}  // namespace ridge::bench
