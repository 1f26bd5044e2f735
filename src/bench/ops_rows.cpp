// The rows of the suite "ops": single ops against their ceilings, dispatch, and the compiler itself.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "autograd/gradients.h"
#include "backend/backend.h"
#include "bench/bench.h"
#include "bench/compiled.h"
#include "bench/loop_rows.h"
#include "graph/scan.h"
#include "nn/gpt.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "runtime/arena.h"
#include "runtime/buffer_pool.h"
#include "runtime/executable.h"

namespace ridge::bench {
namespace {

// C = A · B of M x N x K; form "nt": B is stored transposed, "tn": A is.
Row matmul(int64_t m, int64_t n, int64_t k, const std::string& form = "", State state = State::hot, DType dtype = DType::f32) {
  Row row{
      .suite = "ops", .name = fmt::format("matmul/{}x{}x{}{}{}", m, n, k, form.empty() ? "" : "-", form), .dtype = dtype, .state = state, .bound = Bound::fma};
  row.flops = 2.0 * double(m) * double(n) * double(k);
  row.bytes = double(size_of(dtype)) * double(m * k + k * n + m * n);
  row.make = [=](const Context& context) {
    return compile(context, [=](Builder& b) {
      Formula f;
      NodeId a = form == "tn" ? b.transpose(input(b, f, {k, m}, dtype)) : input(b, f, {m, k}, dtype);
      NodeId w = form == "nt" ? b.transpose(input(b, f, {n, k}, dtype)) : input(b, f, {k, n}, dtype);
      f.outputs = {b.matmul(a, w)};
      return f;
    });
  };
  return row;
}

// A formula of several inputs of the same shape.
Row formula(const std::string& name, const Shape& shape, int inputs, Bound bound, double bytes,
            const std::function<NodeId(Builder&, std::span<const NodeId>)>& body) {
  Row row{.suite = "ops", .name = name, .state = State::cold, .bound = bound, .bytes = bytes};
  row.make = [=](const Context& context) {
    return compile(context, [=](Builder& b) {
      Formula f;
      for (int i = 0; i < inputs; ++i) input(b, f, shape);
      f.outputs = {body(b, f.inputs)};
      return f;
    });
  };
  return row;
}

Row affine(int64_t n) {
  Row row{.suite = "ops", .name = fmt::format("affine/{}", n), .state = State::cold, .bound = Bound::copy, .bytes = 8.0 * double(n)};
  row.make = [=](const Context& context) {
    return compile(context, [=](Builder& b) {
      Formula f;
      NodeId x = input(b, f, {n}), scale = input(b, f, {}), shift = input(b, f, {});
      f.outputs = {b.add(b.mul(x, scale), shift)};
      return f;
    });
  };
  return row;
}

// layer_norm, rms_norm and softmax over the last axis. Small ones reuse their operands, as a step does.
void add_norms(std::vector<Row>& rows, int64_t lines, int64_t width) {
  for (const std::string name : {"layer_norm", "rms_norm", "softmax"}) {
    Row row{.suite = "ops",
            .name = fmt::format("{}/{}x{}", name, lines, width),
            .state = lines * width <= 1'000'000 ? State::hot : State::cold,
            .bound = Bound::copy,
            .bytes = 8.0 * double(lines * width),
            .make = {}};
    row.make = [=](const Context& context) {
      return compile(context, [=](Builder& b) {
        Formula f;
        const NodeId x = input(b, f, {lines, width});
        if (name == "softmax") {
          f.outputs = {b.softmax(x)};
        } else {
          const NodeId weight = input(b, f, {width});
          f.outputs = {name == "rms_norm" ? b.rms_norm(x, weight) : b.layer_norm(x, weight, input(b, f, {width}))};
        }
        return f;
      });
    };
    rows.push_back(std::move(row));
  }
}

// The loss of rows of logits and its gradient: reads them twice and writes the gradient.
Row cross_entropy(int64_t lines, int64_t classes) {
  Row row{.suite = "ops",
          .name = fmt::format("cross_entropy/{}x{}", lines, classes),
          .state = lines * classes <= 1'000'000 ? State::hot : State::cold,
          .bound = Bound::copy,
          .bytes = 12.0 * double(lines * classes),
          .make = {}};
  row.make = [=](const Context& context) {
    return compile(context, [=](Builder& b) {
      Formula f;
      const NodeId logits = input(b, f, {lines, classes}), loss = b.cross_entropy(logits, b.iota({lines}, 0, DType::i32)).sum;
      f.outputs = gradients(b.graph(), loss, std::vector{logits});
      f.outputs.push_back(loss);
      return f;
    });
  };
  return row;
}

// Causal, forward and backward; counts the flops of five products forward and backward, halved by the mask. `split`: operands and results are stored as in a
// model, with the heads of a position next to each other; otherwise head by head.
Row attention(int64_t batch, int64_t heads, int64_t time, int64_t dim, State state, DType dtype = DType::f32, bool split = false) {
  Row row{.suite = "ops", .name = fmt::format("attention/{}x{}x{}x{}", batch, heads, time, dim), .dtype = dtype, .state = state, .bound = Bound::fma};
  row.flops = 3.5 * 4 * double(batch * heads * time) * double(time * dim) / 2;
  row.bytes = double(size_of(dtype)) * 8 * double(batch * heads * time * dim);
  row.make = [=](const Context& context) {
    return compile(context, [=](Builder& b) {
      Formula f;
      const Shape shape = split ? Shape{batch, time, heads, dim} : Shape{batch, heads, time, dim};
      auto operand = [&] { return input(b, f, shape, dtype); };
      auto by_head = [&](NodeId x) { return split ? b.permute(x, {0, 2, 1, 3}) : x; };
      NodeId q = operand(), k = operand(), v = operand(), g = operand();
      AttentionOptions options;
      options.causal = true;
      NodeId out = by_head(b.attention(by_head(q), by_head(k), by_head(v), options));
      const NodeId outputs[] = {out}, cotangents[] = {g}, wrt[] = {q, k, v};
      f.outputs = vector_jacobian(b.graph(), outputs, cotangents, wrt);
      f.outputs.push_back(out);
      return f;
    });
  };
  return row;
}

struct ConvShape {
  int64_t images, channels, size, outputs, window, stride = 1, groups = 1;
};

// Forward, or forward and backward. `last`: channels are the last axis of images and results, as in image programs.
Row conv(const ConvShape& c, DType dtype, bool backward, bool last = false) {
  const int64_t padding = c.window / 2, out = (c.size + 2 * padding - c.window) / c.stride + 1, x = c.images * c.channels * c.size * c.size,
                y = c.images * c.outputs * out * out;
  std::string name = fmt::format("conv/{0}x{1}x{2}x{2}-", c.images, c.channels, c.size);
  if (c.outputs != c.channels) name += fmt::format("{}x", c.outputs);
  name += fmt::format("{0}x{0}", c.window);
  if (c.stride > 1) name += fmt::format("-s{}", c.stride);
  if (c.groups > 1) name += fmt::format("-g{}", c.groups);
  name += fmt::format("{}{}", last ? "-last" : "", backward ? "-grad" : "");
  // A network's first layer needs no gradient for its images.
  const bool first = c.channels < 8;
  Row row{.suite = "ops", .name = name, .dtype = dtype, .bound = c.groups > 1 ? Bound::copy : Bound::fma};
  row.flops = 2 * double(y) * double(c.channels / c.groups * c.window * c.window) * (!backward ? 1 : first ? 2 : 3);
  row.bytes = double(size_of(dtype)) * (backward ? 2.0 * double(x + y) + double(first ? 0 : x) + double(y) : double(x + y));
  row.make = [=](const Context& context) {
    return compile(context, [=](Builder& b) {
      Formula f;
      auto images = [&](int64_t channels, int64_t size) {
        const NodeId i = input(b, f, last ? Shape{c.images, size, size, channels} : Shape{c.images, channels, size, size}, dtype);
        return last ? b.permute(i, {0, 3, 1, 2}) : i;
      };
      const NodeId in = images(c.channels, c.size), w = input(b, f, {c.outputs, c.channels / c.groups, c.window, c.window}, dtype);
      ConvOptions o;
      o.stride = {c.stride, c.stride}, o.padding_low = o.padding_high = {padding, padding}, o.groups = c.groups;
      auto put = [&](NodeId i) { f.outputs.push_back(last ? b.permute(i, {0, 2, 3, 1}) : i); };
      const NodeId result = b.conv(in, w, o);
      put(result);
      if (!backward) return f;
      const NodeId cotangent = images(c.outputs, out);
      const std::vector<NodeId> gradients =
          vector_jacobian(b.graph(), std::vector{result}, std::vector{cotangent}, first ? std::vector{w} : std::vector{w, in});
      f.outputs.push_back(gradients[0]);
      if (!first) put(gradients[1]);
      return f;
    });
  };
  return row;
}

// One convolution of the Nature network: forward with bias and relu, or one of its gradients. The first layer reads bytes and scales them.
struct NatureConv {
  int64_t channels, size, outputs, window, stride;
};
enum class ConvPart { forward, weights, images };

Row nature_conv(int64_t images, const NatureConv& c, ConvPart part, DType dtype) {
  const int64_t out = (c.size - c.window) / c.stride + 1;
  const bool bytes = c.channels == 4;
  const char* form = part == ConvPart::forward ? "" : part == ConvPart::weights ? "-dw" : "-dx";
  Row row{.suite = "ops",
          .name = fmt::format("conv/nature-{0}x{1}x{2}x{2}-{3}x{4}x{4}-s{5}{6}{7}", images, c.channels, c.size, c.outputs, c.window, c.stride, form,
                              dtype == DType::bf16 ? "-bf16" : ""),
          .dtype = dtype,
          .bound = Bound::fma};
  const double x = double(images * c.channels * c.size * c.size), y = double(images * c.outputs * out * out);
  row.flops = 2 * y * double(c.channels * c.window * c.window);
  row.bytes = x * double(bytes ? 1 : size_of(dtype)) + y * double(size_of(dtype));
  row.make = [=](const Context& context) {
    return compile(context, [=](Builder& b) {
      Formula f;
      NodeId x = input(b, f, {images, c.channels, c.size, c.size}, bytes ? DType::u8 : dtype);
      if (bytes) x = b.cast(b.mul(b.cast(x, DType::f32), 1.0 / 255), dtype);
      const NodeId w = input(b, f, {c.outputs, c.channels, c.window, c.window}, dtype), bias = input(b, f, {c.outputs, 1, 1}, dtype);
      ConvOptions o;
      o.stride = {c.stride, c.stride};
      const NodeId sums = b.conv(x, w, o);
      if (part == ConvPart::forward) {
        f.outputs = {b.unary(Op::relu, b.add(sums, bias))};
      } else {
        const NodeId cotangent = input(b, f, b.shape(sums), dtype);
        f.outputs = vector_jacobian(b.graph(), std::vector{sums}, std::vector{cotangent}, std::vector{part == ConvPart::weights ? w : x});
      }
      return f;
    });
  };
  return row;
}

// An LSTM over time, forward and backward; stepwise: all products stay in the loop.
Row lstm(int64_t time, int64_t batch, int64_t width, bool stepwise) {
  Row row{.suite = "ops", .name = fmt::format("scan/lstm-{}x{}x{}{}", time, batch, width, stepwise ? "-stepwise" : ""), .bound = Bound::fma};
  row.flops = 3 * double(time * batch) * 2 * double(2 * width) * double(4 * width);
  row.make = [=](const Context& context) {
    return compile(
        context,
        [=](Builder& b) {
          Formula f;
          const Shape state{batch, width}, weight{4 * width, width};
          NodeId x = input(b, f, {time, batch, width}), g = input(b, f, {time, batch, width});
          std::vector<NodeId> carry = {input(b, f, state), input(b, f, state)};
          std::vector<NodeId> weights = {input(b, f, weight), input(b, f, weight), input(b, f, {4 * width})};
          auto body = std::make_shared<ScanBody>();
          Builder s(body->graph);
          auto inner = [&](std::vector<NodeId>& list, const Shape& shape) {
            list.push_back(body->graph.input({DType::f32, shape}, "step"));
            return list.back();
          };
          NodeId h = inner(body->carry_in, state), c = inner(body->carry_in, state), step = inner(body->sequence_in, state);
          NodeId wx = inner(body->constant_in, weight), wh = inner(body->constant_in, weight), bias = inner(body->constant_in, {4 * width});
          NodeId gates = s.add(s.linear(step, wx, bias), s.linear(h, wh));
          auto gate = [&](Op op, int64_t i) { return s.unary(op, s.slice(gates, 1, i * width, (i + 1) * width)); };
          NodeId next_c = s.add(s.mul(gate(Op::sigmoid, 1), c), s.mul(gate(Op::sigmoid, 0), gate(Op::tanh, 2)));
          NodeId next_h = s.mul(gate(Op::sigmoid, 3), s.unary(Op::tanh, next_c));
          body->carry_out = {next_h, next_c}, body->step_out = {next_h};
          ScanResult r = scan(b.graph(), body, carry, {&x, 1}, weights, time);
          std::vector<NodeId> wrt = weights;
          wrt.push_back(x);
          f.outputs = vector_jacobian(b.graph(), r.outputs, {&g, 1}, wrt);
          f.outputs.push_back(r.outputs[0]);
          return f;
        },
        stepwise ? "-scan_hoist" : "");
  };
  return row;
}

// A chain of dependent elementwise ops on a few elements: the cost of starting a kernel.
Row dispatch(int64_t ops, int64_t width, bool fused) {
  Row row{.suite = "ops", .name = fmt::format("dispatch/{}x{}{}", ops, width, fused ? "-fused" : ""), .parts = double(ops), .part = "op"};
  row.make = [=](const Context& context) {
    return compile(
        context,
        [=](Builder& b) {
          Formula f;
          NodeId x = input(b, f, {width}), y = input(b, f, {width}), z = input(b, f, {width});
          for (int64_t i = 0; i < ops; ++i) x = i % 2 ? b.mul(x, z) : b.add(x, y);
          f.outputs = {x};
          return f;
        },
        fused ? "" : "-fuse");
  };
  return row;
}

// A matrix-vector product, then its maximum subtracted from it: two kernels per pair, whatever the fuser does.
Row unfusable(int64_t pairs, int64_t width) {
  Row row{.suite = "ops", .name = "dispatch/unfusable", .parts = double(pairs), .part = "pair"};
  row.make = [=](const Context& context) {
    return compile(context, [=](Builder& b) {
      Formula f;
      NodeId w = input(b, f, {width, width}), x = input(b, f, {width, 1});
      for (int64_t i = 0; i < pairs; ++i) {
        NodeId y = b.matmul(w, x);
        x = b.sub(y, b.reduce(Op::reduce_max, y, {}, true));
      }
      f.outputs = {x};
      return f;
    });
  };
  return row;
}

// Moves n floats through the backend's own copies: within the host, within the device, or between them.
enum class Way { within, to_device, from_device };

Row copy_row(int64_t n, Way way, const char* place) {
  const int64_t bytes = 4 * n;
  Row row{.suite = "ops", .name = fmt::format("copy/{}-{}", place, n), .bytes = double(way == Way::within ? 2 * bytes : bytes)};
  if (way == Way::within) row.bound = Bound::copy;
  row.make = [=](const Context& context) -> Call {
    auto pool = std::make_shared<BufferPool>();
    auto host = std::make_shared<BufferPool::Buffer>(pool->acquire(2 * bytes, BufferPool::Fill::zero));
    auto device = std::make_shared<Arena>(context.backend);
    device->require(2 * bytes);
    return [=, &backend = context.backend](int64_t) {
      if (way == Way::within) backend.copy(device->data() + bytes, device->data(), bytes);
      if (way == Way::to_device) backend.upload(device->data(), host->data(), bytes);
      if (way == Way::from_device) backend.download(host->data(), device->data(), bytes);
    };
  };
  return row;
}

class DeviceBlocks : public BlockSource {
 public:
  explicit DeviceBlocks(Backend& device) : device_(device) {}
  std::byte* get(int64_t bytes, bool& zeroed) override { return zeroed = true, device_.allocate(bytes); }
  void put(std::byte* block, int64_t bytes) override { device_.release(block, bytes); }

 private:
  Backend& device_;
};

// Takes a block from the pool of eager tensors and returns it.
Row pool_row(int64_t bytes) {
  Row row{.suite = "ops", .name = fmt::format("pool/{}", bytes)};
  row.make = [=](const Context& context) -> Call {
    PoolOptions options;
    if (!context.backend.host_memory()) options.source = std::make_shared<DeviceBlocks>(context.backend);
    auto pool = std::make_shared<BufferPool>(options);
    return [=](int64_t) { pool->acquire(bytes); };
  };
  return row;
}

// Traces, differentiates and compiles a GPT training step with its update. Its sizes are small, but its graph is that of any twelve layers.
Row compile_gpt(int64_t layers) {
  Row row{.suite = "ops", .name = fmt::format("compile/gpt{}", layers)};
  row.make = [=](const Context& context) -> Call {
    return [=, &backend = context.backend](int64_t) {
      const GptConfig config{.vocab = 65, .block = 64, .layers = layers, .heads = 4, .width = 128};
      Graph graph;
      Builder b(graph);
      Formula f;
      NodeId tokens = input(b, f, {12, 64}, DType::i64), targets = input(b, f, {12, 64}, DType::i64), rate = input(b, f, {});
      AdamState state;
      state.applied = input(b, f, {}, DType::i64);
      const std::vector<Parameter> parameters = gpt_parameters(config);
      for (auto* group : {&state.parameters, &state.first, &state.second})
        for (const Parameter& p : parameters) group->push_back(input(b, f, p.shape));
      auto [sum, count] = b.cross_entropy(gpt_forward(b, config, state.parameters, tokens), targets);
      NodeId loss = b.div(sum, b.cast(count, DType::f32));
      Clipped clipped = clip_global_norm(b, gradients(graph, loss, state.parameters), 1.0);
      AdamState next = adamw(b, state, clipped.gradients, rate, decay_values(parameters, 0.1));
      CompileOptions options(backend);
      f.outputs = {loss, next.applied};
      options.state.emplace_back(3, 1);
      for (auto [from, to] : {std::pair{&state.parameters, &next.parameters}, {&state.first, &next.first}, {&state.second, &next.second}})
        for (size_t i = 0; i < to->size(); ++i) {
          const auto at = std::find(f.inputs.begin(), f.inputs.end(), (*from)[i]) - f.inputs.begin();
          options.state.emplace_back(int(at), int(f.outputs.size()));
          f.outputs.push_back((*to)[i]);
        }
      Executable executable(graph, f.inputs, f.outputs, options);
    };
  };
  return row;
}

}  // namespace

std::vector<Row> ops_rows() {
  std::vector<Row> rows;
  for (State state : {State::hot, State::cold}) {
    for (int64_t n : {512, 1024, 2048}) rows.push_back(matmul(n, n, n, "", state));
    for (auto [m, n, k] : {std::array<int64_t, 3>{768, 384, 128}, {768, 512, 128}, {768, 128, 512}}) rows.push_back(matmul(m, n, k, "", state));
  }
  // The gradients of those three with respect to their left (nt) and right (tn) operands, and the same sizes in these forms.
  for (auto [m, n, k] : {std::array<int64_t, 3>{768, 384, 128}, {768, 512, 128}, {768, 128, 512}}) {
    rows.push_back(matmul(m, n, k, "nt"));
    rows.push_back(matmul(m, n, k, "tn"));
  }
  for (int64_t size : {512, 1024, 2048}) rows.push_back(matmul(size, size, size, "bf16", State::hot, DType::bf16));
  for (int64_t size : {64, 128, 256, 4096}) rows.push_back(matmul(size, size, size));
  rows.push_back(matmul(768, 128, 384, "nt"));
  for (auto [n, k] : {std::array<int64_t, 2>{384, 128}, {512, 128}, {128, 512}}) rows.push_back(matmul(k, n, 768, "tn"));

  const int64_t n = int64_t(1) << 26;
  const double bytes = double(n) * 4;
  using In = std::span<const NodeId>;
  auto add = [](Builder& b, In x) { return b.add(x[0], x[1]); };
  auto long_row = [&](const std::string& name, int inputs, Bound bound, double moved, auto body) {
    rows.push_back(formula(fmt::format("{}/{}", name, n), {n}, inputs, bound, moved, body));
  };
  long_row("add", 2, Bound::triad, 3 * bytes, add);
  long_row("mul", 2, Bound::triad, 3 * bytes, [](Builder& b, In x) { return b.mul(x[0], x[1]); });
  long_row("add_relu", 2, Bound::triad, 3 * bytes, [](Builder& b, In x) { return b.unary(Op::relu, b.add(x[0], x[1])); });
  rows.push_back(affine(n));
  long_row("gelu", 1, Bound::copy, 2 * bytes, [](Builder& b, In x) { return b.unary(Op::gelu_tanh, x[0]); });
  long_row("sum", 1, Bound::read, bytes, [](Builder& b, In x) { return b.sum(x[0]); });
  long_row("chain8", 2, Bound::triad, 3 * bytes, [](Builder& b, In in) {
    NodeId x = in[0], y = in[1];
    NodeId t = b.binary(Op::maximum, b.add(b.mul(x, y), x), y);
    return b.neg(b.add(b.binary(Op::minimum, b.mul(b.sub(t, x), y), x), y));
  });
  rows.back().rival = formula("add", {n}, 2, Bound::triad, 3 * bytes, add).make;
  // From the first cache to main memory. What fits into caches reuses its operands, as a step does.
  for (int64_t size = 1000; size <= 100'000'000; size *= 10) {
    auto sized = [&](const char* name, int inputs, Bound bound, double moved, auto body) {
      rows.push_back(formula(fmt::format("{}/{}", name, size), {size}, inputs, bound, moved * double(size), body));
      if (size <= 1'000'000) rows.back().state = State::hot;
    };
    sized("add", 2, Bound::triad, 12, add);
    sized("gelu", 1, Bound::copy, 8, [](Builder& b, In x) { return b.unary(Op::gelu_tanh, x[0]); });
    sized("sum", 1, Bound::read, 4, [](Builder& b, In x) { return b.sum(x[0]); });
    rows.push_back(copy_row(size, Way::within, "host"));
  }
  for (auto [lines, width] : {std::array<int64_t, 2>{1024, 128}, {16384, 384}, {65536, 768}, {8192, 4096}}) add_norms(rows, lines, width);
  for (int64_t lines : {1, 16, 768}) rows.push_back(cross_entropy(lines, 50257));
  for (int64_t size : {4096, int(1 << 20), int(64 << 20)}) rows.push_back(pool_row(size));

  for (State state : {State::hot, State::cold})
    for (int64_t time : {64, 256}) rows.push_back(attention(12, 4, time, 32, state));
  for (bool backward : {false, true})
    for (const ConvShape& c : {ConvShape{8, 16, 28, 32, 3}, {8, 3, 56, 16, 7, 2}, {8, 32, 28, 32, 3, 1, 32}}) rows.push_back(conv(c, DType::f32, backward));
  for (bool backward : {false, true})
    for (bool last : {false, true}) rows.push_back(conv({256, 64, 9, 64, 3}, DType::f32, backward, last));
  for (const NatureConv& c : {NatureConv{4, 84, 32, 8, 4}, {32, 20, 64, 4, 2}, {64, 9, 64, 3, 1}}) {
    for (DType dtype : {DType::f32, DType::bf16})
      for (ConvPart part : {ConvPart::forward, ConvPart::weights, ConvPart::images})
        if (part != ConvPart::images || c.channels != 4) rows.push_back(nature_conv(256, c, part, dtype));  // nothing needs the gradient of bytes
    rows.push_back(nature_conv(8, c, ConvPart::forward, DType::f32));
  }
  for (auto [batch, width] : {std::array<int64_t, 2>{32, 128}, {16, 32}, {64, 512}})
    for (bool stepwise : {false, true}) rows.push_back(lstm(64, batch, width, stepwise));
  rows.push_back(dispatch(1, 1, false));
  rows.push_back(dispatch(1000, 64, false));
  rows.push_back(dispatch(1000, 64, true));
  rows.push_back(unfusable(100, 64));
  rows.push_back(compile_gpt(12));
  return rows;
}

std::vector<Row> device_ops_rows() {
  std::vector<Row> rows;
  for (int64_t n : {64, 256, 512, 1024, 2048, 4096, 8192})
    for (DType dtype : {DType::bf16, DType::f32}) rows.push_back(matmul(n, n, n, "", State::hot, dtype));
  const int64_t n = int64_t(1) << 28;
  const double bytes = double(n) * 4;
  using In = std::span<const NodeId>;
  auto long_row = [&](const std::string& name, int inputs, double moved, auto body) {
    rows.push_back(formula(fmt::format("{}/{}", name, n), {n}, inputs, Bound::copy, moved, body));
  };
  long_row("add", 2, 3 * bytes, [](Builder& b, In x) { return b.add(x[0], x[1]); });
  long_row("mul", 2, 3 * bytes, [](Builder& b, In x) { return b.mul(x[0], x[1]); });
  long_row("gelu", 1, 2 * bytes, [](Builder& b, In x) { return b.unary(Op::gelu_tanh, x[0]); });
  long_row("sum", 1, bytes, [](Builder& b, In x) { return b.sum(x[0]); });
  for (int64_t size = 1000; size <= 100'000'000; size *= 10) {
    auto sized = [&](const char* name, int inputs, double moved, auto body) {
      rows.push_back(formula(fmt::format("{}/{}", name, size), {size}, inputs, Bound::copy, moved * double(size), body));
      if (size <= 1'000'000) rows.back().state = State::hot;
    };
    sized("add", 2, 12, [](Builder& b, In x) { return b.add(x[0], x[1]); });
    sized("gelu", 1, 8, [](Builder& b, In x) { return b.unary(Op::gelu_tanh, x[0]); });
    sized("sum", 1, 4, [](Builder& b, In x) { return b.sum(x[0]); });
  }
  for (auto [lines, width] : {std::array<int64_t, 2>{4096, 384}, {65536, 768}, {262144, 768}, {32768, 4096}}) add_norms(rows, lines, width);
  for (int64_t size : {4096, int(1 << 20), int(64 << 20)}) rows.push_back(pool_row(size));
  rows.push_back(attention(64, 12, 1024, 64, State::hot, DType::bf16, true));
  for (DType dtype : {DType::bf16, DType::f32})
    for (const ConvShape& c :
         {ConvShape{64, 64, 56, 64, 3}, {64, 256, 14, 256, 3}, {64, 3, 224, 64, 7, 2}, {64, 128, 56, 128, 3, 1, 128}, {64, 128, 56, 128, 3, 2}})
      for (bool last : {false, true})
        for (bool backward : {false, true}) rows.push_back(conv(c, dtype, backward, last));
  rows.push_back(dispatch(100, 10000, false));
  rows.back().name = "small_ops/100x10000";
  for (int64_t size : {1000, 1'000'000, 100'000'000}) {
    rows.push_back(copy_row(size, Way::within, "device"));
    rows.push_back(copy_row(size, Way::to_device, "to_device"));
    rows.push_back(copy_row(size, Way::from_device, "from_device"));
  }
  for (Row& row : loop_rows()) rows.push_back(std::move(row));
  return rows;
}

}  // namespace ridge::bench
