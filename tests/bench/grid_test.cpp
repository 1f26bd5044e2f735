#include "bench/grid.h"

#include <gtest/gtest.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench/step_row.h"
#include "tasks/registry.h"

namespace ridge::bench {
namespace {

class Grid : public ::testing::Test {
 protected:
  Grid() { register_tasks(); }
};

TEST_F(Grid, HasEveryCombinationInOrder) {
  const std::vector<GridPoint> grid = grid_of({"gpt", "cartpole", "threads=1,2", "data=a+b", "precision=fp32,bf16", "seconds=2"});
  ASSERT_EQ(grid.size(), 8u);
  EXPECT_EQ(grid[1].task, "gpt");
  EXPECT_EQ(grid[1].label, "threads=1 precision=bf16");
  EXPECT_EQ(grid[1].shared, (std::vector<std::string>{"data=a+b", "seconds=2"}));
  EXPECT_EQ(grid[6].task, "ppo");
  EXPECT_EQ(grid[6].shared.front(), "preset=cartpole");
  EXPECT_EQ(grid[6].label, "threads=2 precision=fp32");
  EXPECT_EQ(grid_of({"tiny"}).size(), 1u);
  const std::vector<GridPoint> sets = grid_of({"cfc", "data=sine,lorenz", "inputs=a,b"});
  ASSERT_EQ(sets.size(), 2u) << "each data set is measured";
  EXPECT_EQ(sets[1].label, "data=lorenz");
  EXPECT_EQ(sets[1].shared, (std::vector<std::string>{"inputs=a,b"})) << "a list of columns is one value";
  std::vector<std::string> large = {"gpt"};
  for (const char* key : {"threads", "batch", "steps", "heads"}) large.push_back(fmt::format("{}=1,2,3,4,5,6", key));
  for (const auto& words : std::vector<std::vector<std::string>>{{"gpd"}, {}, {"threads=1,2"}, large}) EXPECT_THROW(grid_of(words), Error);
}

TEST_F(Grid, DevicesAreTriedInEveryNumberFormat) {
  const std::vector<GridPoint> all = devices_of({"tiny", "batch=4"});
  ASSERT_GE(all.size(), 3u);
  EXPECT_EQ(all[0].label, "cpu fp32");
  EXPECT_EQ(all[0].config, (std::vector<std::string>{"device=cpu", "precision=fp32", "no_fallback=true"}));
  EXPECT_EQ(all[1].label, "cpu bf16");
  for (const char* word : {"device=cpu", "--precision=bf16", "threads=1,2"}) EXPECT_THROW(devices_of({"tiny", word}), Error) << word;
}

// A row of three processes around this many milliseconds.
void add(Record& record, const std::string& config, double ms, const std::string& name = "m", double units = 100) {
  for (double factor : {0.999, 1.0, 1.001})
    record.add(fmt::format(
        R"({{"suite":"x","name":"{}","config":"{}","unit":"tokens","units":{},"ms":{},"tflops":1,"first_ms":9,"ready_s":1,"planned_bytes":1024,"times_us":[{}]}})",
        name, config, units, ms, 1e3 * ms * factor));
}

TEST_F(Grid, RecommendsTheFastestAndTheSimplestOfEquals) {
  Record record{.suite = "devices", .build = "b", .machine = "m", .date = "2026-01-02T00:00:00Z", .rows = {}};
  add(record, "cpu fp32", 17), add(record, "cpu bf16", 10), add(record, "cpu fp16", 10.01), add(record, "cpu fp32", 3, "n"), add(record, "cpu bf16", 3, "n");
  const std::vector<Ranking> all = rank(record);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].recommended, "cpu bf16");
  EXPECT_NEAR(all[0].rows[0].rate, 10000, 1);
  ASSERT_EQ(all[0].sentences.size(), 2u);
  EXPECT_TRUE(all[0].sentences[0].starts_with("cpu bf16 is 1.70 x faster than cpu fp32 for this model (95 % confidence: 1.6")) << all[0].sentences[0];
  EXPECT_TRUE(all[0].sentences[1].starts_with("cpu bf16 and cpu fp16 are equally fast")) << all[0].sentences[1];
  EXPECT_EQ(all[1].recommended, "cpu fp32");
  const TextTable table = table_of(record, all);
  ASSERT_EQ(table.rows.size(), 5u);
  EXPECT_EQ(table.rows[2][1], "cpu fp32") << "fastest first";
  EXPECT_EQ(table.rows[2][6], "0.588");
  const std::string picture = picture_of(record, all);
  for (const char* words : {"<svg", "cpu fp16", "recommended: cpu bf16", ">10,000<"}) EXPECT_NE(picture.find(words), std::string::npos) << words;
  EXPECT_EQ(picture.find("nan"), std::string::npos);
}

// Rates, not times, are compared: a larger batch takes longer.
TEST_F(Grid, ComparesRates) {
  Record record{.suite = "configs", .build = "b", .machine = "m", .date = "2026-01-02T00:00:00Z", .rows = {}};
  add(record, "batch=8", 10, "m", 80), add(record, "batch=16", 15, "m", 160), add(record, "batch=32", 40, "m", 320);
  const std::vector<Ranking> all = rank(record);
  EXPECT_EQ(all[0].recommended, "batch=16");
  EXPECT_EQ(all[0].rows[1].label, "batch=8") << "as fast as batch=32, and first in the record";
  EXPECT_EQ(all[0].sentences.size(), 2u);
}

// Every task's step is measured through the interface of tasks.
TEST_F(Grid, MeasuresAStepOfEveryTask) {
  for (const auto& [name, words, units] : std::vector<std::tuple<std::string, std::vector<std::string>, double>>{
           {"gpt", {"layers=1", "heads=1", "width=16", "block=8", "batch=3"}, 24},
           {"cfc", {"data=sine", "units=8", "batch=4"}, 4},
           {"ppo", {"preset=cartpole", "instances=4", "horizon=8", "minibatch=16", "update_epochs=2"}, 32}}) {
    const Task& task = find_task(name);
    config::Sources sources;
    sources.task = task.keys, sources.words = words, sources.working_folder.reset();
    sources.words.insert(sources.words.end(), {"precision=fp32", "device=cpu", "optimize_perf=false"});
    const StepResult r = measure_step(task, config::resolve(sources), 0);
    EXPECT_EQ(r.units, units) << name << ": the samples of a step, or the decisions of a rollout";
    EXPECT_EQ(r.samples, 3) << name;
    EXPECT_EQ(r.precision, "fp32");
    EXPECT_GT(r.tflops, 0) << name;
    EXPECT_GT(r.first_ms, 0) << name;
    const auto row = nlohmann::json::parse(row_of({name, {"a=1", "seconds=1"}, {"b=2"}, "b=2"}, "configs", to_json(r, true)));
    EXPECT_EQ(row.at("name"), name + " a=1");
    EXPECT_EQ(row.at("config"), "b=2");
    EXPECT_EQ(row.at("times_us").size(), 3u);
  }
}

}  // namespace
}  // namespace ridge::bench
