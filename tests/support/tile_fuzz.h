// Random fused groups of every form, and their memory.
#pragma once
#include "support/tile_case.h"

namespace ridge::tile_test {

struct Dice {
  uint64_t seed, count = 0;
  int64_t operator()(int64_t n) { return int64_t(random_word({seed, 1, 2}, count++) % uint64_t(n)); }
  bool chance(int percent) { return (*this)(100) < percent; }
};

struct Fuzz {
  Dice dice;
  Build b{Form::map, {}};
  std::vector<Memory> memory;
  std::vector<int> values, plain;  // f32 nodes; those among them that are loads

  explicit Fuzz(uint64_t seed) : dice{seed} {}

  int reduced_begin() const { return b.g.domain.rank() - b.g.reduced - (b.g.form == Form::column ? 1 : 0); }
  int reduced_end() const { return b.g.domain.rank() - (b.g.form == Form::column ? 1 : 0); }

  // Sets the strides of a new tensor over some of the axes, in random axis order; returns its size.
  int64_t layout(Shape& strides, bool all, bool kept_only) {
    const int rank = b.g.domain.rank();
    strides = Shape::filled(rank, 0);
    std::vector<int> order;
    for (int a = 0; a < rank; ++a) {
      bool reduced = a >= reduced_begin() && a < reduced_end();
      if ((kept_only && reduced) || (!all && dice.chance(30))) continue;
      order.push_back(a);
    }
    if (dice.chance(30) && order.size() > 1) std::swap(order[size_t(dice(int64_t(order.size())))], order[size_t(dice(int64_t(order.size())))]);
    int64_t size = 1;
    for (size_t k = order.size(); k-- > 0;) strides[order[k]] = size, size *= b.g.domain[order[k]];
    return size;
  }

  void load() {
    Shape strides;
    int64_t size = layout(strides, dice.chance(60), false);
    int64_t offset = 0;
    if (dice.chance(15)) {  // flip an axis
      int a = int(dice(b.g.domain.rank()));
      offset = strides[a] * (b.g.domain[a] - 1), strides[a] = -strides[a];
    }
    const DType types[] = {DType::f32, DType::f32, DType::f32, DType::bf16, DType::f16, DType::i32, DType::u8};
    DType t = types[dice(7)];
    memory.emplace_back(t, size);
    memory.back().fill(uint32_t(memory.size()), t == DType::u8 ? 0 : -2, t == DType::u8 ? 4 : 2);
    int fallback = t == DType::f32 && !plain.empty() && dice.chance(50) ? plain[size_t(dice(int64_t(plain.size())))] : -1;
    int n = b.load(b.operand(), t, strides, offset, fallback);
    if (dice.chance(20)) {
      int a = int(dice(b.g.domain.rank()));
      b.g.accesses[size_t(b.g.nodes[size_t(n)].access)].bounds = {{a, dice(2), b.g.domain[a] - dice(2)}};
    }
    if (t != DType::f32) n = b.op(Op::cast, n);
    values.push_back(n), plain.push_back(n);
  }

  int pick() { return values[size_t(dice(int64_t(values.size())))]; }

  void compute() {
    const Op binary[] = {Op::add, Op::sub, Op::mul, Op::maximum, Op::minimum}, unary[] = {Op::neg, Op::relu, Op::tanh, Op::sigmoid, Op::abs};
    int64_t kind = dice(10);
    if (kind < 6) {
      values.push_back(b.op(binary[dice(5)], pick(), pick()));
    } else if (kind < 8) {
      values.push_back(b.op(unary[dice(5)], pick()));
    } else if (kind == 8) {
      values.push_back(b.op(Op::mul, pick(), b.literal(0.5)));
    } else {
      int a = plain[size_t(dice(int64_t(plain.size())))], c = plain[size_t(dice(int64_t(plain.size())))];
      values.push_back(b.op(Op::select, b.op(Op::less, DType::boolean, a, c), pick(), pick()));
    }
  }

  int64_t length() const {
    int64_t n = 1;
    for (int a = reduced_begin(); a < reduced_end(); ++a) n *= b.g.domain[a];
    return n;
  }

  void store(int value, bool kept_only) {
    Shape strides;
    int64_t size = layout(strides, true, kept_only);
    int n = dice.chance(20) ? b.op(Op::cast, DType::bf16, value) : value;
    memory.emplace_back(b.g.nodes[size_t(n)].dtype, size);
    b.store(n, strides);
  }

  void make() {
    const int64_t sizes[] = {1, 2, 3, 5, 17, 33, 70};
    const int rank = 1 + int(dice(4));
    Shape domain;
    for (int a = 0; a < rank; ++a) domain.push_back(sizes[dice(rank > 2 ? 5 : 7)]);
    if (dice.chance(20)) domain[int(dice(rank))] = rank > 2 ? 300 : 5000;
    Form form = Form(dice(rank > 1 ? 3 : 2));
    int reduced = form == Form::map ? 0 : 1 + int(dice(rank - (form == Form::column ? 1 : 0)));
    b = Build(form, domain, reduced);
    load();
    const int64_t steps = 2 + dice(14);
    std::vector<int> late;  // stored values of whole rows or columns
    for (int64_t k = 0; k < steps; ++k) {
      if (dice.chance(25)) load();
      compute();
      if (form == Form::map || !dice.chance(25)) continue;
      const Op ops[] = {Op::reduce_sum, Op::reduce_max, Op::reduce_min};
      int r = b.op(Op::mul, b.reduce(ops[dice(3)], pick()), b.literal(1.0 / double(length())));
      values.push_back(r);
      if (dice.chance(40)) late.push_back(r);
    }
    for (int r : late) store(r, true);
    store(values.back(), false);
    if (dice.chance(30)) store(pick(), false);
  }
};

}  // namespace ridge::tile_test
