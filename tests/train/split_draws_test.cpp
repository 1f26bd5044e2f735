// Splitting a batch changes no random number and no loss: each draw counts samples along its own axis, and what cannot be split is rejected.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "graph/builder.h"
#include "io/checksum.h"
#include "ridge/ridge.h"
#include "step/batch_sizes.h"
#include "step/compiled_step.h"
#include "support/temp_folder.h"
#include "train/manifest.h"

namespace ridge::split_draws {
namespace {

constexpr int64_t kBatch = 12, kTime = 5, kWidth = 4;

struct Weights {
  Tensor w = full({kWidth, kWidth}, 0.3) + 0.1 * cast(iota({kWidth, kWidth}, 1), DType::f32), row = full({kWidth}, 0.5);
  void visit(Visitor& v) { v("w", w)("row", row); }
};

// Losses of x [batch, time, width].
using LossOf = std::function<Loss(const Weights&, const Tensor& x)>;

Loss squares(const Tensor& y, const Tensor& x) { return {sum(y * y), full({}, double(x.size()))}; }
Tensor time_first(const Tensor& x) { return permute(x, {1, 0, 2}); }
Tensor flat(const Tensor& x) { return reshape(x, {x.shape()[0] * kTime, kWidth}); }

// The identity, with a gradient scaled by a number that depends on the sample count.
Tensor scaled_backwards(const Tensor& x, const std::function<double(double)>& factor) {
  return custom([](const std::vector<Tensor>& v) { return v[0]; },
                [factor](const std::vector<Tensor>&, const Tensor&, const Tensor& dy) { return std::vector<Tensor>{dy * factor(double(dy.shape()[0]))}; }, {x});
}

struct Result {
  double loss = 0, norm = 0, evaluated = 0, some = 0;
  std::string redrawn;
};

Result result_of(const LossOf& loss, StepOptions o) {
  Weights weights;
  const Step s = step(weights, sgd({.lr = 0.1}), [&](Tensor x) { return loss(weights, x); });
  o.seed = 7;
  auto state = compile_step(s, {{{kBatch, kTime, kWidth}}}, o, step_device(""));
  start_step(state, step_device(""), false);
  std::vector<float> x(size_t(kBatch * kTime * kWidth));
  for (size_t i = 0; i < x.size(); ++i) x[i] = 2 * uniform_from(random_word({1, 0, 0}, i)) - 1;
  const void* batch[] = {x.data()};
  Result r;
  for (int i = 0; i < 2; ++i) {
    const StepMetrics m = state->step.run(batch);
    r.loss = m.loss, r.norm = m.gradient_norm;
  }
  const TrainStep::Losses all = state->step.evaluate(batch, kBatch), some = state->step.evaluate(batch, kBatch - 1);
  r.evaluated = all.sum / all.count, r.some = some.sum / some.count, r.redrawn = state->step.plan().redrawn;
  return r;
}

struct DrawCase {
  const char* name;
  LossOf loss;
  bool redrawn;  // when split, the numbers differ from those in version 1
};

const std::vector<DrawCase>& draw_cases() {
  auto loop = [](const Tensor& x, const std::function<Tensor(const Tensor& h, const Tensor& x)>& next) {
    auto step = [&](const std::vector<Tensor>& c, const std::vector<Tensor>& in) {
      const Tensor h = next(c[0], in[0]);
      return ScanOutput{{h}, {h}};
    };
    return scan(step, {full({x.shape()[0], kWidth}, 0)}, {time_first(x)}).outputs[0];
  };
  static const std::vector<DrawCase> cases = {
      {"sample first", [](const Weights& w, const Tensor& x) { return squares(dropout(matmul(x, w.w), 0.5), x); }, false},
      {"samples and time in one axis", [](const Weights& w, const Tensor& x) { return squares(dropout(matmul(flat(x), w.w), 0.5), x); }, true},
      {"time first", [](const Weights& w, const Tensor& x) { return squares(dropout(time_first(x) * w.row, 0.5), x); }, true},
      {"time first, without a kernel to fuse with",
       [](const Weights& w, const Tensor& x) {
         const Tensor z = uniform({kTime, x.shape()[0], kWidth});
         return squares(matmul(permute(z, {1, 0, 2}), w.w) * x, x);
       },
       true},
      {"last",
       [](const Weights& w, const Tensor& x) {
         return squares(dropout(permute(matmul(x, w.w), {1, 2, 0}), 0.5), x);
       },
       true},
      {"one for each sample and feature",
       [](const Weights& w, const Tensor& x) {
         return squares(matmul(x, w.w) * uniform({x.shape()[0], 1, kWidth}), x);
       },
       false},
      {"one for each sample",
       [](const Weights& w, const Tensor& x) {
         return squares(matmul(x, w.w) * reshape(uniform({x.shape()[0]}), {-1, 1, 1}), x);
       },
       false},
      {"of the weights",
       [](const Weights& w, const Tensor& x) {
         return squares(matmul(x, w.w + 0.3 * normal({kWidth, kWidth})), x);
       },
       true},
      {"shared by all samples",
       [](const Weights& w, const Tensor& x) {
         return squares(matmul(x, w.w) * uniform({kTime, kWidth}), x);
       },
       true},
      {"a number", [](const Weights& w, const Tensor& x) { return squares(matmul(x, w.w) * uniform({}), x); }, true},
      {"an order of features", [](const Weights& w, const Tensor& x) { return squares(matmul(x, take(w.w, permutation(kWidth), 1)) * w.row, x); }, false},
      {"noise that meets the batch only in the loss",
       [](const Weights& w, const Tensor& x) {
         const Tensor made = tanh(matmul(normal({x.shape()[0], kWidth}), w.w));
         return Loss{sum(made * w.row) + sum(matmul(x, w.w)), full({}, double(x.size()))};
       },
       false},
      {"classes",
       [](const Weights& w, const Tensor& x) {
         const Tensor logits = matmul(flat(x), w.w);
         return squares(logits * one_hot(categorical(logits), kWidth), x);
       },
       true},
      {"bits of a coin",
       [](const Weights& w, const Tensor& x) { return squares(where(bernoulli(time_first(x).shape(), 0.5), time_first(matmul(x, w.w)), 0.0), x); }, true},
      {"attention",
       [](const Weights& w, const Tensor& x) {
         AttentionArgs args;
         args.dropout = 0.4;
         const Tensor q = reshape(matmul(x, w.w), {x.shape()[0], kTime, 2, 2}), h = permute(q, {0, 2, 1, 3});
         return squares(attention(h, h, h, args), x);
       },
       false},
      {"behind a custom gradient",
       [](const Weights& w, const Tensor& x) { return squares(scaled_backwards(dropout(matmul(x, w.w) + w.row, 0.5), [](double) { return 0.5; }), x); }, false},
      {"in a loop",
       [loop](const Weights& w, const Tensor& x) {
         return squares(loop(x, [&](const Tensor& h, const Tensor& in) { return tanh(dropout(matmul(h, w.w), 0.5) + in); }), x);
       },
       true},
      {"of weights in a loop",
       [loop](const Weights& w, const Tensor& x) {
         return squares(loop(x, [&](const Tensor& h, const Tensor& in) { return tanh(matmul(h, w.w * uniform({kWidth, kWidth})) + in); }), x);
       },
       true},
      {"features first in a loop",
       [loop](const Weights& w, const Tensor& x) {
         return squares(loop(x, [&](const Tensor& h, const Tensor& in) { return tanh(transpose(dropout(transpose(matmul(h, w.w)), 0.5)) + in); }), x);
       },
       true},
      {"in a loop in a loop",
       [loop](const Weights& w, const Tensor& x) {
         auto twice = [&](const Tensor& h, const Tensor& in) {
           auto step = [&](const std::vector<Tensor>& c, const std::vector<Tensor>&) { return ScanOutput{{dropout(c[0] + in, 0.3)}, {}}; };
           return tanh(matmul(scan(step, {h}, {full({2}, 0)}).carry[0], w.w));
         };
         return squares(loop(x, twice), x);
       },
       true},
  };
  return cases;
}

class SplitDraws : public ::testing::TestWithParam<size_t> {};

TEST_P(SplitDraws, MatchTheWholeBatch) {
  const DrawCase& c = draw_cases()[GetParam()];
  const bool in_loop = std::string(c.name).find("loop") != std::string::npos;
  StepOptions o;
  const Result whole = result_of(c.loss, o);
  EXPECT_GT(whole.loss, 0);
  auto expect_same = [&](const StepOptions& options, const std::string& label) {
    const Result part = result_of(c.loss, options);
    for (auto [value, want] : {std::pair{part.loss, whole.loss}, {part.norm, whole.norm}, {part.evaluated, whole.evaluated}, {part.some, whole.some}})
      EXPECT_NEAR(value, want, 1e-5 * std::abs(want)) << c.name << ", " << label;
    return part;
  };
  for (int64_t micro : {1, 5, 6}) {
    o.micro = micro;
    EXPECT_EQ(!expect_same(o, "micro-batch " + std::to_string(micro)).redrawn.empty(), c.redrawn) << c.name;
  }
  o.micro = 5;
  for (Recompute level : in_loop ? std::vector{Recompute::segments} : std::vector{Recompute::layers}) {
    o.recompute = level;
    expect_same(o, "micro-batch 5 with " + std::string(name(level)));
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, SplitDraws, ::testing::Range<size_t>(0, draw_cases().size()), [](const auto& info) {
  std::string name = draw_cases()[info.param].name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
});

// By hand: element (t, b, k) of a draw [time, batch, width] has index (t * batch + b) * width + k, however the batch is split.
TEST(SplitDraws, CountElementsOfTheWholeBatch) {
  auto weighted = [](const Tensor& shape_of, const Tensor& drawn) { return Loss{sum(drawn * shape_of), full({}, double(shape_of.size()))}; };
  const LossOf first = [&](const Weights& w, const Tensor& x) { return weighted(time_first(x) * sum(w.row), uniform(time_first(x).shape())); };
  double want = 0;
  for (int64_t t = 0; t < kTime; ++t)
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t k = 0; k < kWidth; ++k) {
        const double x = 2 * double(uniform_from(random_word({1, 0, 0}, uint64_t((b * kTime + t) * kWidth + k)))) - 1;
        want += 2 * x * double(uniform_from(random_word({7, 2, 1}, uint64_t((t * kBatch + b) * kWidth + k))));
      }
  for (int64_t micro : {0, 5}) {
    StepOptions o;
    o.micro = micro, o.optimizer.lr = 0;
    Weights weights;
    const Step s = step(weights, sgd({.lr = 0}), [&](Tensor x) { return first(weights, x); });
    o.seed = 7;
    auto state = compile_step(s, {{{kBatch, kTime, kWidth}}}, o, step_device(""));
    start_step(state, step_device(""), false);
    std::vector<float> x(size_t(kBatch * kTime * kWidth));
    for (size_t i = 0; i < x.size(); ++i) x[i] = 2 * uniform_from(random_word({1, 0, 0}, i)) - 1;
    const void* batch[] = {x.data()};
    state->step.restore({2, 0, 1, 0});
    EXPECT_NEAR(state->step.evaluate(batch, kBatch).sum, want, 1e-4) << micro;
  }
}

TEST(SplitSizes, ProductsThatSumOverTheBatchAreFound) {
  Graph g;
  Builder b(g);
  const NodeId x = g.input({DType::f32, {8, 8}}, "x"), w = g.input({DType::f32, {8, 8}}, "w");
  for (const NodeId product : {b.matmul(w, x), b.matmul(b.transpose(x), w)}) {
    const NodeId losses[] = {b.sum(product), b.literal(DType::f32, 8)};
    EXPECT_NE(find_coupling(g, {&x, 1}, losses).find("it sums over the batch axis"), std::string::npos);
  }
}

TEST(SplitSizes, InputsThatDependOnTheBatchSizeAreFound) {
  auto difference = [](bool other) {
    Graph graphs[2];
    std::vector<BatchTrace> traces;
    for (const int64_t samples : {5, 7}) {
      Graph& g = graphs[traces.size()];
      Builder b(g);
      const NodeId base = g.input({DType::i64, {}}, "base"), u = g.input({DType::f32, {3}}, "u"), v = g.input({DType::f32, {3}}, "v");
      const NodeId x = g.input({DType::f32, {samples, 3}}, "x");
      const NodeId loss = b.sum(b.mul(x, other && samples == 5 ? u : v));
      traces.push_back({g, {}, base, {{loss, b.literal(DType::f32, double(samples))}}, samples});
    }
    return BatchSizes(traces[0], traces[1]).difference();
  };
  EXPECT_EQ(difference(false), "");
  EXPECT_NE(difference(true).find("different inputs"), std::string::npos);
}

// Two batch sizes determine how a third is built. A single sample needs fewer nodes for the same model: nothing is broadcast.
TEST(SplitSizes, AThirdSizeMatchesThePrediction) {
  auto unpredicted = [](int64_t third, const std::function<int64_t(int64_t)>& length) {
    Graph graphs[3];
    std::vector<BatchTrace> traces;
    for (const int64_t samples : {int64_t(5), int64_t(7), third}) {
      Graph& g = graphs[traces.size()];
      Builder b(g);
      const NodeId base = g.input({DType::i64, {}}, "base"), w = g.input({DType::f32, {3}}, "w"), x = g.input({DType::f32, {samples, 3}}, "x");
      const NodeId extra = b.sum(b.expand(b.literal(DType::f32, 2), {length(samples)}));
      const NodeId loss = b.add(b.sum(b.mul(b.add(x, w), 2.0)), extra);
      traces.push_back({g, {}, base, {{loss, b.literal(DType::f32, double(samples))}}, samples});
    }
    return find_unpredicted(traces[0], traces[1], traces[2]);
  };
  for (const int64_t third : {1, 2, 5, 8, 35}) {
    EXPECT_EQ(unpredicted(third, [](int64_t n) { return n; }), "");
    EXPECT_EQ(unpredicted(third, [](int64_t) { return 5; }), "");
  }
  EXPECT_EQ(unpredicted(8, [](int64_t n) { return n == 8 ? 5 : n; }),
            "expand f32[batch]: its axis 0 has 5 elements for 5 samples and 5 for 8, not 8 as other numbers of samples predict");
  EXPECT_EQ(unpredicted(8, [](int64_t n) { return n == 8 ? 8 : 5; }),
            "expand f32[batch]: its axis 0 has 5 elements for 5 samples and 8 for 8, not 5 as other numbers of samples predict");
}

TEST(SplitSizes, RejectsDependenceOnTheBatchSizeByName) {
  struct Case {
    LossOf loss;
    const char* says;
  };
  const Case cases[] = {
      {[](const Weights& w, const Tensor& x) {
         return squares(matmul(x, w.w) * reshape(cast(iota({x.shape()[0]}), DType::f32), {-1, 1, 1}), x);
       },
       "iota(i64[batch]): it numbers the samples"},
      {[](const Weights& w, const Tensor& x) {
         return Loss{mean(square(matmul(x, w.w))), full({}, 1)};
       },
       "a number depends on the size of the batch"},
      {[](const Weights& w, const Tensor& x) {
         return Loss{sum(square(matmul(x, w.w))) * (1.0 / double(x.shape()[0])), full({}, double(x.size()))};
       },
       "a number depends on the size of the batch"},
      {[](const Weights& w, const Tensor& x) {
         const Tensor table = full({64, kWidth}, 0.5) * w.row;
         return squares(matmul(x, w.w) + reshape(slice(table, 0, 0, x.shape()[0]), {-1, 1, kWidth}), x);
       },
       "its axis 0 is as long as there are samples, but is not made from the batch"},
      {[](const Weights& w, const Tensor& x) {
         return squares(slice(concat({matmul(x, w.w), full({x.shape()[0], x.shape()[0] + 1, kWidth}, 1)}, 1), 1, 0, 3), x);
       },
       "two of its axes count samples|neither fixed nor a multiple"},
      {[](const Weights& w, const Tensor& x) {
         return Loss{sum(square(matmul(x, w.w))), full({}, 1)};
       },
       "the number of losses does not grow with the samples"},
      {[](const Weights& w, const Tensor& x) {
         return Loss{sum(square(w.w)), full({}, double(x.size()))};
       },
       "not made from the batch"},
      {[](const Weights& w, const Tensor& x) {
         if (x.shape()[0] != kBatch) fail(ErrorCode::value, "only twelve will do");
         return squares(matmul(x, w.w), x);
       },
       "only twelve will do"},
      {[](const Weights& w, const Tensor& x) { return squares(x.shape()[0] % 2 ? matmul(x, w.w) : tanh(matmul(x, w.w)), x); },
       "the loss is built differently for 7 samples than for 12"},
      {[](const Weights& w, const Tensor& x) { return squares(matmul(x, w.w) * (10.0 / std::max(11.0, double(x.shape()[0]))), x); },
       "a number depends on the size of the batch: 0.909091 for 7 samples, 0.833333 for 12"},
      {[](const Weights& w, const Tensor& x) { return squares(matmul(x, w.w) * (x.shape()[0] == 4 ? 2.0 : 1.0), x); },
       "cannot be split into parts of 4: literal f32[]: a number depends on the size of the batch: 1 for 7 samples, 2 for 4"},
      {[](const Weights& w, const Tensor& x) { return squares(scaled_backwards(matmul(x, w.w), [](double n) { return 1 / n; }), x); },
       "in the gradient of a custom operation, literal f32[]: a number depends on the size of the batch"},
      {[](const Weights& w, const Tensor& x) { return squares(scaled_backwards(matmul(x, w.w), [](double n) { return n < 12 ? 1.0 : 2.0; }), x); },
       "in the gradient of a custom operation, literal f32[]: a number depends on the size of the batch: 1 for 7 samples, 2 for 12"},
      {[](const Weights& w, const Tensor& x) {
         // [time * batch, width] has samples interleaved along its first axis.
         return squares(reshape(uniform({kTime * x.shape()[0], kWidth}), time_first(x).shape()) * matmul(time_first(x), w.w), x);
       },
       "it splits samples|samples on different axes"},
  };
  for (const Case& c : cases) {
    StepOptions o;
    o.evaluation = false;
    Weights weights;
    const Step s = step(weights, sgd({.lr = 0.1}), [&](Tensor x) { return c.loss(weights, x); });
    EXPECT_NO_THROW(compile_step(s, {{{kBatch, kTime, kWidth}}}, o, step_device(""))) << c.says << ": the whole batch trains";
    o.micro = 4;
    try {
      Weights others;
      compile_step(step(others, sgd({.lr = 0.1}), [&](Tensor x) { return c.loss(others, x); }), {{{kBatch, kTime, kWidth}}}, o, step_device(""));
      ADD_FAILURE() << "was split: " << c.says;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::unsupported);
      const std::string what = e.what(), says = c.says;
      const size_t bar = says.find('|');
      EXPECT_TRUE(what.find(says.substr(0, bar)) != what.npos || (bar != says.npos && what.find(says.substr(bar + 1)) != what.npos)) << what << "\n" << says;
    }
  }
}

// The message on resuming a six-step run that lost its last checkpoint, as an earlier version would have left it: without a draws version, and with this
// micro-batch.
std::string resumed_from_version_1(const LossOf& loss, const char* micro) {
  test::TempFolder folder;
  const std::filesystem::path run = folder / "run", step_4 = run / "checkpoints/step_00000004";
  std::vector<float> x(size_t(3 * kBatch * kTime * kWidth), 0.5f);
  auto train = [&] {
    Weights weights;
    Trainer(step(weights, sgd({.lr = 0.01}), [&](Tensor t) { return loss(weights, t); }), {Tensor({3 * kBatch, kTime, kWidth}, x)},
            {.steps = 6, .batch = kBatch, .out = run, .checkpoint_interval = 2, .show = true})
        .run();
  };
  testing::internal::CaptureStdout();
  train();
  std::filesystem::remove_all(run / "checkpoints/step_00000006");
  auto text_of = [](const std::filesystem::path& file) {
    std::ifstream in(file);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  nlohmann::ordered_json state = nlohmann::ordered_json::parse(text_of(step_4 / "state.json"));
  EXPECT_EQ(state.at("draws"), 2);
  state.erase("draws");
  state["choices"]["micro"] = micro;
  const std::string text = state.dump(2) + "\n";
  Manifest manifest = parse_manifest(text_of(step_4 / "manifest.json"), "manifest");
  manifest.files["state.json"] = {int64_t(text.size()), checksum_of(text)};
  test::write_text(step_4 / "state.json", text);
  test::write_text(step_4 / "manifest.json", format_manifest(manifest));
  testing::internal::GetCapturedStdout();
  testing::internal::CaptureStdout();
  train();
  return testing::internal::GetCapturedStdout();
}

TEST(DrawsVersion, ResumingReportsChangedRandomNumbers) {
  const LossOf sample_first = [](const Weights& w, const Tensor& x) { return squares(dropout(matmul(x, w.w), 0.5), x); };
  const LossOf flattened = [](const Weights& w, const Tensor& x) { return squares(dropout(matmul(flat(x), w.w), 0.5), x); };
  const LossOf loop = [](const Weights& w, const Tensor& x) {
    auto step = [&](const std::vector<Tensor>& c, const std::vector<Tensor>& in) { return ScanOutput{{dropout(c[0] * w.row + in[0], 0.5)}, {}}; };
    return squares(scan(step, {full({x.shape()[0], kWidth}, 0)}, {time_first(x)}).carry[0], x);
  };
  const LossOf by_mean = [](const Weights& w, const Tensor& x) { return Loss{mean(square(matmul(x, w.w))), full({}, 1)}; };
  struct Case {
    const LossOf& loss;
    const char *micro, *says;
  };
  for (const Case& c : {Case{sample_first, "12", nullptr}, Case{sample_first, "4", nullptr}, Case{flattened, "12", nullptr},
                        Case{flattened, "4", "resumed, not bit-exact: random numbers of split batches now count samples of the whole batch"},
                        Case{loop, "12", "resumed, not bit-exact: random numbers inside loops now differ in every step"},
                        Case{by_mean, "4", "resumed, not bit-exact: micro was 4, is now 12"}}) {
    const std::string notices = resumed_from_version_1(c.loss, c.micro);
    EXPECT_NE(notices.find("resumed at step 4"), notices.npos) << notices;
    EXPECT_EQ(notices.find("not bit-exact") != notices.npos, c.says != nullptr) << notices;
    EXPECT_NE(notices.find(c.says ? c.says : "resumed"), notices.npos) << notices;
  }
}

}  // namespace
}  // namespace ridge::split_draws
