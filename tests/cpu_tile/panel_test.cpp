// Sums over lists, which run with samples in vectors, against the scalar evaluator.
#include "backend/cpu/panel_kernel.h"
#include "backend/cpu/panel_plan.h"
#include "tile_harness.h"

namespace ridge::cpu::tile_test {
namespace {

int gathered(Build& b, int operand, Shape strides, int index, int64_t size) {
  const int n = b.load(operand, DType::f32, strides);
  TileAccess& a = b.g.accesses.back();
  a.gather = index, a.gather_stride = 1, a.gather_size = size;
  return n;
}

// Two weighted sums over the lanes of f(a · (state at the lane's index - c)), and a value that uses both and the target's own state. By columns: the samples of
// states and of one result are next to each other.
struct LaneCase {
  Build b;
  std::vector<Memory> m;
  LaneCase(int64_t samples, int64_t lanes, int64_t targets, int64_t sources, Op f, bool columns = false) : b(Form::column, {samples, lanes, targets}, 1) {
    const Shape weight{0, targets, 1}, row{targets, 0, 1}, own = columns ? Shape{1, 0, samples} : row;
    const int scale = b.load(b.operand(), DType::f32, weight), index = b.load(b.operand(), DType::i64, weight);
    const int state = gathered(b, b.operand(), {columns ? 1 : sources, 0, 0}, index, sources);
    if (columns) b.g.accesses.back().gather_stride = samples;
    const int value = b.op(f, b.op(Op::mul, scale, b.op(Op::sub, state, b.load(b.operand(), DType::f32, weight))));
    const int slope = b.op(Op::mul, value, b.op(Op::sub, b.literal(1), value));  // reads a value again after others
    const int first = b.reduce(Op::reduce_sum, b.op(Op::mul, value, b.load(b.operand(), DType::f32, weight)));
    const int second = b.reduce(Op::reduce_sum, b.op(Op::mul, b.load(b.operand(), DType::f32, weight), slope)), plain = b.reduce(Op::reduce_sum, slope);
    const int mine = b.load(b.operand(), DType::f32, own), bias = b.load(b.operand(), DType::f32, {0, 0, 1});
    const int total = b.op(Op::add, b.op(Op::mul, second, second), b.literal(2));
    b.store(b.op(Op::div, b.op(Op::sub, b.op(Op::add, first, bias), b.op(Op::neg, mine)), total), own);
    b.store(b.op(Op::sub, plain, mine), row);
    m = {{DType::f32, lanes * targets},   {DType::i64, lanes * targets},  {DType::f32, samples * sources}, {DType::f32, lanes * targets},
         {DType::f32, lanes * targets},   {DType::f32, lanes * targets},  {DType::f32, samples * targets}, {DType::f32, targets},
         {DType::f32, samples * targets}, {DType::f32, samples * targets}};
    for (size_t i = 0; i < m.size(); ++i) m[i].fill(uint32_t(i + 1));
    m[1].fill(99, 0, double(sources));
  }
};

// For each lane and target the sums over all samples.
struct SampleCase {
  Build b;
  std::vector<Memory> m;
  SampleCase(int64_t lanes, int64_t samples, int64_t targets, int64_t sources) : b(Form::column, {lanes, samples, targets}, 1) {
    const Shape weight{targets, 0, 1}, state{0, targets, 1};
    const int index = b.load(b.operand(), DType::i64, weight), source = gathered(b, b.operand(), {0, sources, 0}, index, sources);
    const int table = gathered(b, b.operand(), {0, 0, 1}, index, sources);  // a weight at the index
    b.g.accesses.back().gather_stride = targets;
    const int x = b.op(Op::sub, source, table), active = b.op(Op::sigmoid, b.op(Op::mul, b.load(b.operand(), DType::f32, weight), x));
    const int d = b.load(b.operand(), DType::f32, state), one = b.reduce(Op::reduce_sum, b.op(Op::mul, d, active));
    const int two = b.reduce(Op::reduce_sum, b.op(Op::mul, d, b.op(Op::mul, active, x)));
    b.store(b.op(Op::neg, one), weight);
    b.store(b.op(Op::add, b.op(Op::mul, two, b.load(3, DType::f32, weight)), one), weight);
    // Three sums that are only added; the first product's factors are used again after other values.
    const int slope = b.op(Op::mul, active, b.op(Op::sub, b.literal(1), active)), four = b.reduce(Op::reduce_sum, b.op(Op::mul, slope, d));
    const int three = b.reduce(Op::reduce_sum, b.op(Op::mul, d, d)), five = b.reduce(Op::reduce_sum, x);
    b.store(b.op(Op::add, b.op(Op::add, three, four), five), weight);
    m = {{DType::i64, lanes * targets},   {DType::f32, samples * sources}, {DType::f32, sources * targets}, {DType::f32, lanes * targets},
         {DType::f32, samples * targets}, {DType::f32, lanes * targets},   {DType::f32, lanes * targets},   {DType::f32, lanes * targets}};
    for (size_t i = 0; i < m.size(); ++i) m[i].fill(uint32_t(i + 11));
    m[0].fill(98, 0, double(sources));
  }
};

TEST(Panel, SumsOverLanes) {
  for (int64_t samples : {8, 9, 16, 17, 33})
    for (int64_t lanes : {2, 7, 8, 9, 25})
      for (int64_t targets : {2, 5, 66}) {
        LaneCase c(samples, lanes, targets, targets + 3, lanes % 2 ? Op::sigmoid : Op::tanh);
        ASSERT_TRUE(runs_as_panel(c.b.g)) << to_string(c.b.g);
        check(c.b.g, c.m, 2e-6 * double(lanes));
        if (HasFatalFailure()) return;
      }
}

TEST(Panel, SumsOfColumns) {
  for (int64_t samples : {8, 9, 16})
    for (int64_t targets : {2, 13, 66}) {
      LaneCase c(samples, 7, targets, targets + 3, Op::sigmoid, true);
      ASSERT_TRUE(runs_as_panel(c.b.g)) << to_string(c.b.g);
      check(c.b.g, c.m, 2e-5);
      if (HasFatalFailure()) return;
    }
}

TEST(Panel, SumsOverSamples) {
  auto test = [](int64_t lanes, int64_t samples, int64_t targets, int64_t sources) {
    SampleCase c(lanes, samples, targets, sources);
    ASSERT_TRUE(runs_as_panel(c.b.g)) << to_string(c.b.g);
    check(c.b.g, c.m, 2e-6 * std::sqrt(double(samples)) + 1e-5);
  };
  for (int64_t samples : {8, 16, 24, 1024, 1096})
    for (int64_t lanes : {2, 9})
      for (int64_t targets : {2, 7, 33}) {
        test(lanes, samples, targets, targets + 2);
        if (HasFatalFailure()) return;
      }
  test(2, 13808, 7, 9);    // large chunks
  test(2, 6160, 7, 1200);  // several chunks a unit
}

// Sums over all sources (lane i reads state i) with two weights per entry.
struct DenseCase {
  Build b;
  std::vector<Memory> m;
  DenseCase(int64_t samples, int64_t lanes, int64_t targets) : b(Form::column, {samples, lanes, targets}, 1) {
    const Shape weight{0, targets, 1}, own{targets, 0, 1};
    const int state = b.load(b.operand(), DType::f32, {lanes, 1, 0}), x = b.op(Op::sub, state, b.load(b.operand(), DType::f32, weight));
    const int active = b.op(Op::sigmoid, b.op(Op::mul, b.load(b.operand(), DType::f32, {0, 0, 1}), x));
    const int one = b.reduce(Op::reduce_sum, b.op(Op::mul, active, b.load(b.operand(), DType::f32, weight)));
    const int mine = b.load(b.operand(), DType::f32, own), slope = b.op(Op::mul, b.op(Op::mul, mine, b.load(b.operand(), DType::f32, weight)), active);
    b.store(one, own), b.store(b.op(Op::add, b.reduce(Op::reduce_sum, slope), one), own);
    m = {{DType::f32, samples * lanes},   {DType::f32, lanes * targets}, {DType::f32, targets},           {DType::f32, lanes * targets},
         {DType::f32, samples * targets}, {DType::f32, lanes * targets}, {DType::f32, samples * targets}, {DType::f32, samples * targets}};
    for (size_t i = 0; i < m.size(); ++i) m[i].fill(uint32_t(i + 31));
  }
  void drop(int64_t entry) { m[3].set(entry, 0), m[5].set(entry, 0); }
};

TEST(Panel, LeavesOutEntriesWithoutWeight) {
  for (int64_t samples : {8, 13, 32})
    for (int64_t lanes : {2, 9, 17})
      for (int64_t targets : {2, 7}) {
        DenseCase c(samples, lanes, targets);
        // Target 0 keeps no entry, target 1 the last one, the others two of three; a weight that is 0 for one sum only stays.
        for (int64_t i = 0; i < lanes * targets; ++i)
          if (i % targets == 0 || (i % targets == 1 && i / targets < lanes - 1) || i % 3 == 0) c.drop(i);
        c.m[3].set(lanes * targets - 1, 0);
        ASSERT_TRUE(runs_as_panel(c.b.g)) << to_string(c.b.g);
        check(c.b.g, c.m, 2e-6 * double(lanes));
        if (HasFatalFailure()) return;
      }
  DenseCase c(9, 5, 3);
  for (int64_t n = 0; n < 3; ++n) c.drop(2 * 3 + n);
  for (int64_t s = 0; s < 9; ++s) c.m[0].set(s * 5 + 2, std::numeric_limits<double>::quiet_NaN());
  run(c.b.g, c.m);
  for (int64_t i = 0; i < c.m[6].size; ++i) EXPECT_TRUE(std::isfinite(c.m[6].get(i))) << "no entry with a weight reads state 2";
}

// Sums of f(the target's state) · (a weight · a state at the lane's index), for two states, added to each other after other values.
struct PairCase {
  Build b;
  std::vector<Memory> m;
  PairCase(int64_t samples, int64_t lanes, int64_t targets, int64_t sources, bool one_factor = true) : b(Form::column, {samples, lanes, targets}, 1) {
    const Shape weight{0, targets, 1}, own{targets, 0, 1};
    const int index = b.load(b.operand(), DType::i64, weight);
    const int u = gathered(b, b.operand(), {sources, 0, 0}, index, sources), v = gathered(b, b.operand(), {sources, 0, 0}, index, sources);
    const int mine = b.load(b.operand(), DType::f32, own), middle = b.load(b.operand(), DType::f32, weight);
    const int active = b.op(Op::sigmoid, b.op(Op::mul, b.op(Op::sub, mine, middle), b.load(b.operand(), DType::f32, weight)));
    const int slope = b.op(Op::mul, active, b.op(Op::sub, b.literal(1), active));
    const int one = b.reduce(Op::reduce_sum, b.op(Op::mul, b.op(Op::mul, u, b.load(b.operand(), DType::f32, weight)), slope));
    const int two = b.reduce(Op::reduce_sum, b.op(Op::mul, one_factor ? slope : active, b.op(Op::mul, b.load(b.operand(), DType::f32, weight), v)));
    const int before = b.load(b.operand(), DType::f32, own), last = b.op(Op::add, b.op(Op::add, b.op(Op::add, before, one), mine), two);
    b.store(b.op(Op::div, last, b.literal(2)), own), b.store(last, own);
    m = {{DType::i64, lanes * targets},   {DType::f32, samples * sources}, {DType::f32, samples * sources}, {DType::f32, samples * targets},
         {DType::f32, lanes * targets},   {DType::f32, lanes * targets},   {DType::f32, lanes * targets},   {DType::f32, lanes * targets},
         {DType::f32, samples * targets}, {DType::f32, samples * targets}, {DType::f32, samples * targets}};
    for (size_t i = 0; i < m.size(); ++i) m[i].fill(uint32_t(i + 51));
    m[0].fill(97, 0, double(sources));
  }
};

TEST(Panel, SumsOfPairs) {
  for (int64_t samples : {8, 9, 16, 33})
    for (int64_t lanes : {2, 5, 24})
      for (int64_t targets : {2, 5, 17, 66})
        for (bool one_factor : {true, false}) {
          PairCase c(samples, lanes, targets, targets + 2, one_factor);
          const std::optional<PanelPlan> plan = plan_panel(c.b.g);
          ASSERT_TRUE(plan) << to_string(c.b.g);
          EXPECT_EQ(plan->pairs.size(), one_factor ? 1u : 0u);
          EXPECT_EQ(plan->scales.size(), 1u);
          EXPECT_EQ(plan->totals, 1) << "sums that are only added share a total, whatever is added in between";
          check(c.b.g, c.m, 2e-6 * double(lanes));
          if (HasFatalFailure()) return;
        }
  PairCase c(16, 9, 7, 8);
  c.m[0].at<int64_t>(4 * 7 + 3) = 9;
  EXPECT_TRUE(run(c.b.g, c.m).fault);
  c.m[6].set(4 * 7 + 3, 0);
  EXPECT_TRUE(run(c.b.g, c.m).fault) << "one of the two weights counts";
  c.m[7].set(4 * 7 + 3, 0);
  EXPECT_FALSE(run(c.b.g, c.m).fault) << "an entry without weights is not read";
}

// Two sums of one bounded value, whose last entries share a vector with a copy.
TEST(Panel, TwoSumsOfAValue) {
  for (Op f : {Op::sigmoid, Op::tanh, Op::exp})
    for (int64_t lanes : {2, 3, 9})
      for (int64_t targets : {2, 17}) {
        const int64_t samples = 11;
        Build b(Form::column, {samples, lanes, targets}, 1);
        const Shape weight{0, targets, 1}, own{targets, 0, 1};
        const int state = b.load(b.operand(), DType::f32, {lanes, 1, 0}), value = b.op(f, b.op(Op::mul, state, b.load(b.operand(), DType::f32, weight)));
        const int third = b.reduce(Op::reduce_sum, b.op(Op::mul, value, value));
        const int one = b.reduce(Op::reduce_sum, b.op(Op::mul, value, b.load(b.operand(), DType::f32, weight)));
        const int two = b.reduce(Op::reduce_sum, b.op(Op::mul, b.load(b.operand(), DType::f32, weight), value));
        b.store(b.op(Op::div, one, b.op(Op::add, b.op(Op::mul, two, two), b.literal(1))), own), b.store(third, own);
        std::vector<Memory> m{{DType::f32, samples * lanes}, {DType::f32, lanes * targets},   {DType::f32, lanes * targets},
                              {DType::f32, lanes * targets}, {DType::f32, samples * targets}, {DType::f32, samples * targets}};
        for (size_t i = 0; i < m.size(); ++i) m[i].fill(uint32_t(i + 61));
        const std::optional<PanelPlan> plan = plan_panel(b.g);
        ASSERT_TRUE(plan);
        EXPECT_EQ(plan->boths.size(), f == Op::exp ? 0u : 1u) << "infinity times a copy's weight of 0 is not a number";
        check(b.g, m, 2e-6 * double(lanes));
        if (HasFatalFailure()) return;
      }
}

// What weights alone decide is computed once per target and lane, with functions that programs do not have.
TEST(Panel, ComputesWeightsOnce) {
  for (bool over_lanes : {true, false})
    for (int64_t targets : {2, 9, 33}) {
      const int64_t samples = 24, lanes = 5, sources = 6;
      Build b(Form::column, over_lanes ? Shape{samples, lanes, targets} : Shape{lanes, samples, targets}, 1);
      const Shape weight = over_lanes ? Shape{0, targets, 1} : Shape{targets, 0, 1}, out = over_lanes ? Shape{targets, 0, 1} : weight;
      const int index = b.load(b.operand(), DType::i64, weight);
      const int state = gathered(b, b.operand(), over_lanes ? Shape{sources, 0, 0} : Shape{0, sources, 0}, index, sources);
      const int raw = b.load(b.operand(), DType::f32, weight), mask = b.load(b.operand(), DType::f32, weight);
      const int strength = b.op(Op::mul, b.op(Op::softplus, b.op(Op::add, raw, b.literal(0.25))), mask);
      const int sum = b.reduce(Op::reduce_sum, b.op(Op::mul, strength, b.op(Op::tanh, b.op(Op::mul, state, strength))));
      const int bias = b.load(b.operand(), DType::f32, over_lanes ? Shape{0, 0, 1} : weight);
      b.store(b.op(Op::mul, sum, b.op(Op::softplus, bias)), out);
      std::vector<Memory> m{{DType::i64, lanes * targets},
                            {DType::f32, samples * sources},
                            {DType::f32, lanes * targets},
                            {DType::f32, lanes * targets},
                            {DType::f32, over_lanes ? targets : lanes * targets},
                            {DType::f32, (over_lanes ? samples : lanes) * targets}};
      for (size_t i = 0; i < m.size(); ++i) m[i].fill(uint32_t(i + 71));
      m[0].fill(96, 0, double(sources));
      for (int64_t i = 0; i < lanes * targets; i += 3) m[3].set(i, 0);
      const std::optional<PanelPlan> plan = plan_panel(b.g);
      ASSERT_TRUE(plan) << to_string(b.g);
      EXPECT_EQ(plan->computed.size(), 8u);  // raw, 0.25, their sum, softplus, mask, product; bias, its softplus
      EXPECT_EQ(std::ranges::count(plan->main, PanelCode::mul, &PanelInstr::code), 1);
      check(b.g, m, 1e-5);
      if (HasFatalFailure()) return;
    }
}

// Random values of gathered states, states of the target and weights, some read again much later, some of the form v (1 - v); sums of them and of their
// products, some of which are only added to each other.
struct RandomCase {
  Build b;
  std::vector<Memory> m;
  RandomCase(uint32_t seed, bool over_lanes, int64_t samples, int64_t lanes, int64_t targets, int64_t sources)
      : b(Form::column, over_lanes ? Shape{samples, lanes, targets} : Shape{lanes, samples, targets}, 1) {
    std::mt19937 random(seed);
    auto pick = [&](size_t n) { return size_t(random() % n); };
    auto memory = [&](DType t, int64_t n) { m.push_back({t, n}), m.back().fill(seed + uint32_t(m.size())); };
    const Shape weight = over_lanes ? Shape{0, targets, 1} : Shape{targets, 0, 1};
    auto state = [&](int64_t row, int64_t target) { return over_lanes ? Shape{row, 0, target} : Shape{0, row, target}; };
    const int index = b.load(b.operand(), DType::i64, weight);
    memory(DType::i64, lanes * targets), m[0].fill(seed, 0, double(sources));
    std::vector<int> values{b.literal(0.5)}, sums;
    for (size_t i = 0; i < 2 + pick(2); ++i)
      values.push_back(gathered(b, b.operand(), state(sources, 0), index, sources)), memory(DType::f32, samples * sources);
    for (size_t i = 0; i < pick(3); ++i) values.push_back(b.load(b.operand(), DType::f32, state(targets, 1))), memory(DType::f32, samples * targets);
    for (size_t i = 0; i < 1 + pick(3); ++i) values.push_back(b.load(b.operand(), DType::f32, weight)), memory(DType::f32, lanes * targets);
    values.push_back(b.op(Op::sigmoid, values[1]));
    auto any = [&] { return values[pick(values.size())]; };
    for (size_t i = 0; i < 4 + pick(20); ++i) {
      const int x = any(), y = any();
      switch (pick(8)) {
        case 0: values.push_back(b.op(Op::tanh, b.op(Op::add, x, y))); break;
        case 1: values.push_back(b.op(Op::sub, x, y)); break;
        case 2: values.push_back(b.op(Op::sigmoid, x)); break;
        case 3: values.push_back(b.op(Op::neg, b.op(Op::tanh, x))); break;
        case 4: values.push_back(b.op(Op::mul, x, b.op(Op::sub, b.literal(1), x))); break;
        case 5: values.push_back(b.op(Op::mul, b.op(Op::sub, b.literal(1), x), y)); break;
        default: values.push_back(b.op(Op::tanh, b.op(Op::mul, x, y))); break;
      }
    }
    for (size_t i = 0; i < 1 + pick(6); ++i) sums.push_back(b.reduce(Op::reduce_sum, pick(2) ? b.op(Op::mul, any(), any()) : any()));
    auto new_weight = [&] {
      memory(DType::f32, lanes * targets);
      return b.load(b.operand(), DType::f32, weight);
    };
    // Sums of a value times picked states with weights, and sums of a bounded value times weights.
    const int factor = any(), bounded = b.op(Op::tanh, any());
    for (size_t i = 0, n = pick(3) ? pick(4) : 0; i < n; ++i)
      sums.push_back(b.reduce(Op::reduce_sum, b.op(Op::mul, factor, b.op(Op::mul, new_weight(), values[1 + i % 2]))));
    for (size_t i = 0, n = pick(3) ? pick(4) : 0; i < n; ++i) sums.push_back(b.reduce(Op::reduce_sum, b.op(Op::mul, new_weight(), bounded)));
    for (size_t i = 0; i < pick(5); ++i) sums.push_back(b.op(Op::add, sums[pick(sums.size())], sums[pick(sums.size())]));
    if (pick(2)) {  // all of them, and another value in between
      int all = sums[0];
      for (size_t i = 1; i < sums.size(); ++i) all = b.op(Op::add, i == 2 ? b.op(Op::add, b.literal(0.75), all) : all, sums[i]);
      sums.push_back(b.op(Op::mul, all, b.literal(0.25)));
    }
    for (size_t i = 0; i < 1 + pick(3); ++i) {
      const int sum = sums[sums.size() - 1 - pick(sums.size())];
      b.store(pick(2) ? sum : b.op(Op::tanh, b.op(Op::mul, sum, b.literal(0.125))), over_lanes ? state(targets, 1) : weight);
      memory(DType::f32, (over_lanes ? samples : lanes) * targets);
    }
  }
};

TEST(Panel, RandomPrograms) {
  int run_as_panels = 0, pairs = 0, boths = 0;
  for (uint32_t seed = 1; seed <= 1000; ++seed) {
    const bool over_lanes = seed % 2;
    RandomCase c(seed, over_lanes, over_lanes ? 8 + seed % 13 : 8 * (1 + seed % 5), 2 + seed % 11, 2 + seed % 7, 3 + seed % 9);
    const std::optional<PanelPlan> plan = plan_panel(c.b.g);
    if (!plan) continue;
    ++run_as_panels, pairs += !plan->pairs.empty(), boths += !plan->boths.empty();
    check(c.b.g, c.m, 2e-5);
    ASSERT_FALSE(HasFatalFailure() || HasNonfatalFailure()) << "seed " << seed;
  }
  EXPECT_GT(run_as_panels, 500);
  EXPECT_GT(pairs, 20);
  EXPECT_GT(boths, 50);
}

TEST(Panel, RefusesOtherForms) {
  EXPECT_FALSE(runs_as_panel(LaneCase(7, 9, 5, 8, Op::sigmoid).b.g)) << "fewer samples than a vector";
  EXPECT_FALSE(runs_as_panel(SampleCase(3, 20, 5, 8).b.g)) << "sums over samples have no tail";
  EXPECT_FALSE(runs_as_panel(LaneCase(16, 9, 5, 8, Op::softplus).b.g)) << "a function that panels do not have";
}

TEST(Panel, ReportsABadIndex) {
  LaneCase lane(16, 9, 5, 8, Op::sigmoid);
  lane.m[1].at<int64_t>(17) = 8;
  Outcome o = run(lane.b.g, lane.m);
  EXPECT_TRUE(o.fault);
  EXPECT_EQ(o.value, 8);
  EXPECT_EQ(o.limit, 8);
  SampleCase sample(3, 16, 5, 7);
  sample.m[0].at<int64_t>(2) = -1;
  o = run(sample.b.g, sample.m);
  EXPECT_TRUE(o.fault);
  EXPECT_EQ(o.value, -1);
  EXPECT_EQ(o.limit, 7);
}

TEST(Panel, KeepsNanInItsSample) {
  LaneCase c(17, 4, 6, 6, Op::sigmoid);
  for (int64_t s = 0; s < 6; ++s) c.m[2].set(5 * 6 + s, std::numeric_limits<double>::quiet_NaN());
  run(c.b.g, c.m);
  for (int64_t i = 0; i < c.m[8].size; ++i) EXPECT_EQ(std::isnan(c.m[8].get(i)), i / 6 == 5) << i;
}

// The stated error of the functions: half of the value from each of two lanes, which is exact.
TEST(Panel, ErrorOfFunctions) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < 0x100000000; bits += 400009) {
    const float f = std::bit_cast<float>(uint32_t(bits));
    if (std::isfinite(f) && (f == 0 || std::fabs(f) >= std::numeric_limits<float>::min())) x.push_back(f);
  }
  for (int i = -20000; i <= 20000; ++i) x.push_back(float(i) * 0.00501f);
  x.resize(x.size() / 8 * 8);
  const int64_t n = int64_t(x.size()) / 2;
  for (Op f : {Op::sigmoid, Op::tanh, Op::exp}) {
    Build b(Form::column, {n, 2, 2}, 1);
    const int index = b.load(b.operand(), DType::i64, {0, 0, 1}), state = gathered(b, b.operand(), {2, 0, 0}, index, 2);
    b.store(b.reduce(Op::reduce_sum, b.op(Op::mul, b.op(f, state), b.load(b.operand(), DType::f32, {0, 2, 1}))), {2, 0, 1});
    ASSERT_TRUE(runs_as_panel(b.g));
    std::vector<Memory> m{{DType::i64, 2}, {DType::f32, 2 * n}, {DType::f32, 4}, {DType::f32, 2 * n}};
    m[0].at<int64_t>(0) = 0, m[0].at<int64_t>(1) = 1;
    std::memcpy(m[1].data(), x.data(), size_t(n) * 8);
    for (int i = 0; i < 4; ++i) m[2].set(i, 0.5);
    run(b.g, m);
    double worst = 0;
    for (int64_t i = 0; i < 2 * n; ++i) {
      const double v = x[size_t(i)], want = f == Op::sigmoid ? 1 / (1 + std::exp(-v)) : f == Op::tanh ? std::tanh(v) : std::exp(v), got = m[3].get(i);
      if (want < 1e-37 && want > -1e-37 && std::fabs(got) < 2e-37 && f != Op::tanh) continue;  // halves of these are denormal
      if (want > 3e38) continue;
      worst = std::max(worst, std::fabs(got - want) / std::ldexp(1.0, std::max(std::ilogb(want == 0 ? 1e-38 : want), -126) - 23));
    }
    EXPECT_LE(worst, f == Op::exp ? 2 : 3) << name(f);
    RecordProperty(std::string(name(f)), std::to_string(worst));
  }
}

}  // namespace
}  // namespace ridge::cpu::tile_test
