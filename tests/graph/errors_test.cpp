// A user's mistake is a typed error that names the op and the shapes, and leaves the graph usable.
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "graph/builder.h"
#include "graph/scan.h"
#include "input.h"

namespace ridge::test {
namespace {

struct Mistake {
  const char* name;
  ErrorCode code;
  std::vector<const char*> parts;  // of the message
  std::function<void(Builder&)> make;
};

std::vector<Mistake> mistakes() {
  using enum ErrorCode;
  auto raw = [](Builder& b, Op op, std::vector<NodeId> ins, std::vector<int64_t> ints = {}) { b.graph().add(op, ins, {ints, {}, nullptr}); };
  return {
      {"broadcast",
       shape,
       {"[add]", "[2, 3]", "[2, 4]", "reshape"},
       [](Builder& b) {
         b.add(in(b, {2, 3}), in(b, {2, 4}));
       }},
      {"raw_shapes",
       shape,
       {"[mul]", "f32[2]", "f32[3]", "broadcast"},
       [=](Builder& b) {
         raw(b, Op::mul, {in(b, {2}), in(b, {3})});
       }},
      {"raw_dtypes",
       dtype,
       {"[mul]", "f32[2]", "i64[2]", "cast"},
       [=](Builder& b) {
         raw(b, Op::mul, {in(b, {2}), in(b, {2}, DType::i64)});
       }},
      {"operand_count", value, {"[add]", "got 1", "takes 2"}, [=](Builder& b) { raw(b, Op::add, {in(b, {2})}); }},
      {"operand_count_unary",
       value,
       {"[exp]", "got 2", "takes 1"},
       [=](Builder& b) {
         raw(b, Op::exp, {in(b, {2}), in(b, {2})});
       }},
      {"select_condition",
       dtype,
       {"[select]", "bool"},
       [=](Builder& b) {
         raw(b, Op::select, {in(b, {2}), in(b, {2}), in(b, {2})});
       }},
      {"negative_size",
       shape,
       {"[input]", "[2, -1]"},
       [](Builder& b) {
         in(b, {2, -1});
       }},
      {"reshape",
       shape,
       {"[reshape]", "[2, 3]", "[4]", "6", "4"},
       [](Builder& b) {
         b.reshape(in(b, {2, 3}), {4});
       }},
      {"reshape_open",
       shape,
       {"[reshape]", "[2, 3]", "-1"},
       [](Builder& b) {
         b.reshape(in(b, {2, 3}), {4, -1});
       }},
      {"permute_axes",
       axis,
       {"[permute]"},
       [](Builder& b) {
         b.permute(in(b, {2, 3}), {0, 0});
       }},
      {"permute_count",
       axis,
       {"[permute]", "[2, 3]"},
       [](Builder& b) {
         b.permute(in(b, {2, 3}), {0});
       }},
      {"axis_range",
       axis,
       {"[cumsum]", "axis 2", "rank 2"},
       [](Builder& b) {
         b.cumsum(in(b, {2, 3}), 2);
       }},
      {"axis_twice",
       axis,
       {"[reduce_sum]", "twice"},
       [](Builder& b) {
         b.sum(in(b, {2, 3}), Shape{1, -1});
       }},
      {"sum_axis",
       axis,
       {"[reduce_sum]", "axis 5"},
       [](Builder& b) {
         b.sum(in(b, {2, 3}), Shape{5});
       }},
      {"empty_maximum",
       shape,
       {"[reduce_max]", "[0, 3]", "empty"},
       [](Builder& b) {
         b.reduce(Op::reduce_max, in(b, {0, 3}), Shape{0});
       }},
      {"empty_argument", shape, {"[arg_max]", "empty"}, [](Builder& b) { b.arg(Op::arg_max, in(b, {0})); }},
      {"expand",
       shape,
       {"[expand]", "[2, 3]", "[2, 4]"},
       [](Builder& b) {
         b.expand(in(b, {2, 3}), {2, 4});
       }},
      {"expand_rank",
       shape,
       {"[expand]", "[2, 3]", "[3]"},
       [](Builder& b) {
         b.expand(in(b, {2, 3}), {3});
       }},
      {"slice_step", value, {"[slice]", "step 0", "flip"}, [](Builder& b) { b.slice(in(b, {4}), 0, 0, 4, 0); }},
      {"pad_negative", value, {"[pad]", "-1", "slice"}, [](Builder& b) { b.pad(in(b, {4}), 0, -1, 0); }},
      {"windows", shape, {"[windows]", "[4]", "pad"}, [](Builder& b) { b.windows(in(b, {4}), 0, 5); }},
      {"windows_stride", value, {"[windows]", "stride 0"}, [](Builder& b) { b.windows(in(b, {4}), 0, 2, 0); }},
      {"concat",
       shape,
       {"[concat]", "[2, 3]", "[3, 3]"},
       [](Builder& b) {
         b.concat(std::vector{in(b, {2, 3}), in(b, {3, 3})}, 1);
       }},
      {"concat_nothing", value, {"[concat]"}, [](Builder& b) { b.concat({}, 0); }},
      {"stack",
       shape,
       {"[stack]", "[2]", "[3]"},
       [](Builder& b) {
         b.stack(std::vector{in(b, {2}), in(b, {3})}, 0);
       }},
      {"split",
       shape,
       {"[split]", "5", "[2, 4]"},
       [](Builder& b) {
         b.split(in(b, {2, 4}), Shape{2, 3}, 1);
       }},
      {"topk", value, {"[topk]", "k = 5", "[4]"}, [](Builder& b) { b.topk(in(b, {4}), 5, 0); }},
      {"gather",
       shape,
       {"[gather]", "[3]", "[2, 2]"},
       [](Builder& b) {
         b.gather(in(b, {2, 2}), in(b, {3}, DType::i64), 0);
       }},
      {"raw_index_dtype",
       dtype,
       {"[take]", "i64", "f32[3]"},
       [=](Builder& b) {
         raw(b, Op::take, {in(b, {2}), in(b, {3})}, {0});
       }},
      {"scatter", shape, {"[scatter_add]", "[2]", "[3]"}, [](Builder& b) { b.scatter_add(in(b, {5}), in(b, {3}, DType::i64), in(b, {2}), 0); }},
      {"dynamic_slice", shape, {"[dynamic_slice]", "[5]", "[4]"}, [](Builder& b) { b.dynamic_slice(in(b, {4}), std::vector{in(b, {}, DType::i64)}, {5}); }},
      {"dynamic_starts",
       value,
       {"[dynamic_slice]", "1 starts for 2 axes"},
       [](Builder& b) {
         b.dynamic_slice(in(b, {4, 4}), std::vector{in(b, {}, DType::i64)}, {2, 2});
       }},
      {"dynamic_start_shape", dtype, {"[dynamic_slice]", "scalars"}, [](Builder& b) { b.dynamic_slice(in(b, {4}), std::vector{in(b, {1}, DType::i64)}, {2}); }},
      {"matmul",
       shape,
       {"[matmul]", "[2, 3]", "[4, 5]", "3 and 4", "transpose"},
       [](Builder& b) {
         b.matmul(in(b, {2, 3}), in(b, {4, 5}));
       }},
      {"matmul_batch",
       shape,
       {"[matmul]", "[2]", "[3]"},
       [](Builder& b) {
         b.matmul(in(b, {2, 4, 5}), in(b, {3, 5, 6}));
       }},
      {"matmul_scalar", shape, {"[matmul]", "mul"}, [](Builder& b) { b.matmul(in(b, {}), in(b, {3})); }},
      {"conv_form",
       shape,
       {"[conv]", "[2, 3]"},
       [](Builder& b) {
         b.conv(in(b, {2, 3}), in(b, {4, 3}));
       }},
      {"conv_channels",
       shape,
       {"[conv]", "3 channels", "[4, 2, 3]"},
       [](Builder& b) {
         b.conv(in(b, {1, 3, 8}), in(b, {4, 2, 3}));
       }},
      {"conv_window",
       shape,
       {"[conv]", "pad"},
       [](Builder& b) {
         b.conv(in(b, {1, 3, 2}), in(b, {4, 3, 3}));
       }},
      {"conv_stride",
       value,
       {"[conv]", "stride"},
       [](Builder& b) {
         b.conv(in(b, {1, 3, 8}), in(b, {4, 3, 3}), {.stride = {0}});
       }},
      {"conv_padding_count",
       value,
       {"[conv]", "padding", "2 entries"},
       [](Builder& b) {
         b.conv(in(b, {1, 3, 8}), in(b, {4, 3, 3}), {.padding_low = {1, 1}});
       }},
      {"attention_form",
       shape,
       {"[attention]", "[2, 3]"},
       [](Builder& b) {
         b.attention(in(b, {2, 3}), in(b, {2, 3}), in(b, {2, 3}));
       }},
      {"attention_heads",
       shape,
       {"[attention]", "[1, 3, 2, 4]", "[1, 2, 2, 4]"},
       [](Builder& b) {
         b.attention(in(b, {1, 3, 2, 4}), in(b, {1, 2, 2, 4}), in(b, {1, 2, 2, 4}));
       }},
      {"attention_mask",
       shape,
       {"[attention]", "[2, 5]", "[1, 1, 2, 3]"},
       [](Builder& b) {
         b.attention(in(b, {1, 1, 2, 4}), in(b, {1, 1, 3, 4}), in(b, {1, 1, 3, 4}), {.mask = in(b, {2, 5})});
       }},
      {"attention_dropout",
       value,
       {"[attention]", "0.5", "random"},
       [](Builder& b) {
         b.attention(in(b, {1, 1, 2, 4}), in(b, {1, 1, 3, 4}), in(b, {1, 1, 3, 4}), {.dropout = 0.5});
       }},
      {"rope_odd",
       shape,
       {"[rope]", "[1, 1, 2, 3]", "even"},
       [](Builder& b) {
         b.rope(in(b, {1, 1, 2, 3}), in(b, {2}, DType::i64));
       }},
      {"cross_entropy",
       shape,
       {"[cross_entropy]", "[4, 5]", "[5]"},
       [](Builder& b) {
         b.cross_entropy(in(b, {4, 5}), in(b, {5}, DType::i64));
       }},
      {"dropout",
       value,
       {"[dropout]", "1"},
       [](Builder& b) {
         b.dropout(in(b, {3}), 1, {in(b, {}, DType::i64), in(b, {}, DType::i64), in(b, {}, DType::i64), 0});
       }},
      {"batch_norm", shape, {"[batch_norm]", "[3]"}, [](Builder& b) { b.batch_norm(in(b, {3}), kNone, kNone, kNone, kNone, true); }},
      {"random_operands",
       dtype,
       {"[random_uniform]", "i64 scalars", "f32[]"},
       [](Builder& b) {
         b.uniform({3}, {in(b, {}), in(b, {}, DType::i64), in(b, {}, DType::i64), 0});
       }},
      {"get", value, {"[get]", "result 1", "exp"}, [](Builder& b) { b.get(b.unary(Op::exp, in(b, {3})), 1); }},
      {"rank",
       shape,
       {"rank", "reshape"},
       [](Builder& b) {
         b.windows(b.reshape(in(b, {2}), {2, 1, 1, 1, 1, 1, 1, 1}), 0, 1);
       }},
      {"scan_types",
       shape,
       {"[scan]", "carry 0", "f32[3]", "f32[2]"},
       [](Builder& b) {
         auto body = std::make_shared<ScanBody>();
         NodeId h = body->graph.input({DType::f32, {2}}, "h");
         body->carry_in = {h}, body->carry_out = {h};
         NodeId wrong = in(b, {3});
         scan(b.graph(), body, {&wrong, 1}, {}, {}, 4);
       }},
      {"einsum_count",
       value,
       {"[einsum]", "2 operands", "1 were given"},
       [](Builder& b) {
         b.einsum("ij,jk", std::vector{in(b, {2, 3})});
       }},
      {"einsum_rank",
       shape,
       {"[einsum]", "[2, 3]", "ijk"},
       [](Builder& b) {
         b.einsum("ijk", std::vector{in(b, {2, 3})});
       }},
      {"einsum_sizes",
       shape,
       {"[einsum]", "'j'", "3 and 4"},
       [](Builder& b) {
         b.einsum("ij,jk", std::vector{in(b, {2, 3}), in(b, {4, 5})});
       }},
      {"einsum_unknown_output",
       value,
       {"[einsum]", "'k'"},
       [](Builder& b) {
         b.einsum("ij->ik", std::vector{in(b, {2, 3})});
       }},
      {"einsum_output_twice",
       value,
       {"[einsum]", "'i'", "twice"},
       [](Builder& b) {
         b.einsum("ij->ii", std::vector{in(b, {2, 3})});
       }},
      {"einsum_letter", value, {"[einsum]", "'1'"}, [](Builder& b) { b.einsum("i1->i", std::vector{in(b, {2})}); }},
      {"einsum_diagonal",
       shape,
       {"[einsum]", "2 and 3"},
       [](Builder& b) {
         b.einsum("ii", std::vector{in(b, {2, 3})});
       }},
  };
}

class Mistakes : public ::testing::TestWithParam<size_t> {};

TEST_P(Mistakes, AreTypedErrors) {
  Mistake m = mistakes()[GetParam()];
  Graph g;
  Builder b(g);
  try {
    m.make(b);
    ADD_FAILURE() << "no error was raised";
  } catch (const Error& e) {
    EXPECT_EQ(name(e.code()), name(m.code)) << e.what();
    for (const char* part : m.parts) EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << "\"" << part << "\" is missing in: " << e.what();
  }
  NodeId x = in(b, {2});
  EXPECT_EQ(to_string(g.type(b.add(x, x))), "f32[2]");  // the graph is still usable
}

INSTANTIATE_TEST_SUITE_P(All, Mistakes, ::testing::Range(size_t(0), mistakes().size()),
                         [](const auto& info) { return std::string(mistakes()[info.param].name); });

}  // namespace
}  // namespace ridge::test
