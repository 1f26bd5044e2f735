// Functions on tensors. Conventions (ties, NaN, negative axes, promotion) are PyTorch's; docs/ops.md lists them.
#pragma once
#include <functional>
#include <utility>
#include <vector>

#include "ridge/tensor.h"

namespace ridge {

using Axes = std::vector<int64_t>;  // the axes of a reduction; empty: all

// Elementwise arithmetic. Operands broadcast, and their types are promoted.
Tensor operator+(const Tensor& a, const Tensor& b);
Tensor operator-(const Tensor& a, const Tensor& b);
Tensor operator*(const Tensor& a, const Tensor& b);
Tensor operator/(const Tensor& a, const Tensor& b);  // integers give f32
Tensor operator-(const Tensor& a);
// Elementwise comparisons and logic; the result is boolean.
Tensor operator<(const Tensor& a, const Tensor& b);
Tensor operator<=(const Tensor& a, const Tensor& b);
Tensor operator>(const Tensor& a, const Tensor& b);
Tensor operator>=(const Tensor& a, const Tensor& b);
Tensor equal(const Tensor& a, const Tensor& b);
Tensor not_equal(const Tensor& a, const Tensor& b);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_xor(const Tensor& a, const Tensor& b);
Tensor logical_not(const Tensor& a);

Tensor minimum(const Tensor& a, const Tensor& b);                         // NaN wins
Tensor maximum(const Tensor& a, const Tensor& b);                         // NaN wins
Tensor pow(const Tensor& a, const Tensor& b);                             // a to the power of b
Tensor mod(const Tensor& a, const Tensor& b);                             // the remainder, with the sign of b
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);  // a where the condition is true, else b
Tensor clamp(const Tensor& x, double low, double high);
Tensor cast(const Tensor& x, DType dtype);
Tensor stop_gradient(const Tensor& x);  // x, but gradients do not flow through it

// Elementwise functions of one tensor; functions that also exist in <cmath> behave the same here.
#define RIDGE_UNARY_FUNCTIONS(X) \
  X(abs)                         \
  X(sign)                        \
  X(exp) X(expm1) X(log) X(log1p) X(sqrt) X(rsqrt) X(sin) X(cos) X(tanh) X(sigmoid) X(relu) X(silu) X(softplus) X(erf) X(floor) X(ceil) X(round) X(is_finite)
#define RIDGE_FUNCTION(name) Tensor name(const Tensor& x);
RIDGE_UNARY_FUNCTIONS(RIDGE_FUNCTION)
#undef RIDGE_FUNCTION
Tensor square(const Tensor& x);
Tensor gelu(const Tensor& x, bool exact = false);  // the tanh approximation, or exact using erf

// Creation.
Tensor full(const Shape& shape, double value, DType dtype = DType::f32);  // every element is `value`
Tensor iota(const Shape& shape, int axis = 0, DType dtype = DType::i64);  // every element is its index along the axis
Tensor one_hot(const Tensor& index, int64_t classes);                     // f32 with a new last axis of `classes`

// Moving elements.
Tensor reshape(const Tensor& x, const Shape& shape);                                     // one size may be -1 and is inferred
Tensor permute(const Tensor& x, const Shape& axes);                                      // axis i of the result is axis axes[i] of x
Tensor transpose(const Tensor& x, int a = -2, int b = -1);                               // swaps two axes
Tensor expand(const Tensor& x, const Shape& shape);                                      // repeats axes of size 1 without copying
Tensor slice(const Tensor& x, int axis, int64_t start, int64_t stop, int64_t step = 1);  // start, start + step, … below stop
Tensor pad(const Tensor& x, int axis, int64_t low, int64_t high, double value = 0);      // adds elements before and after
Tensor concat(const std::vector<Tensor>& parts, int axis = 0);                           // along an existing axis
Tensor stack(const std::vector<Tensor>& parts, int axis = 0);                            // along a new axis
std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int axis = 0);
Tensor flip(const Tensor& x, const Axes& axes);

// Indexing. An index out of range throws an Error after the run in which it occurred.
Tensor gather(const Tensor& x, const Tensor& index, int axis);                                          // as torch.gather: index has x's rank
Tensor scatter(const Tensor& x, const Tensor& index, const Tensor& source, int axis);                   // as torch.scatter; of equal indices the last one wins
Tensor scatter_add(const Tensor& x, const Tensor& index, const Tensor& source, int axis);               // adds to x instead of replacing
Tensor take(const Tensor& x, const Tensor& index, int axis = 0);                                        // index of any rank replaces the axis
Tensor dynamic_slice(const Tensor& x, const std::vector<Tensor>& starts, const Shape& sizes);           // starts are tensors, clamped so that the slice fits
Tensor dynamic_update_slice(const Tensor& x, const Tensor& update, const std::vector<Tensor>& starts);  // x with the slice replaced by `update`

// Sorting: values and their indices. Stable; NaN counts as the largest value.
std::pair<Tensor, Tensor> sort(const Tensor& x, int axis = -1, bool descending = false);
Tensor argsort(const Tensor& x, int axis = -1, bool descending = false);  // the indices alone
std::pair<Tensor, Tensor> topk(const Tensor& x, int64_t k, int axis = -1, bool largest = true);

// Reductions. `keep` keeps reduced axes with size 1.
Tensor sum(const Tensor& x, const Axes& axes = {}, bool keep = false);  // of integers: i64
Tensor mean(const Tensor& x, const Axes& axes = {}, bool keep = false);
Tensor var(const Tensor& x, const Axes& axes = {}, bool keep = false, int64_t ddof = 1);  // the variance, divided by n - ddof
Tensor max(const Tensor& x, const Axes& axes = {}, bool keep = false);
Tensor min(const Tensor& x, const Axes& axes = {}, bool keep = false);
Tensor prod(const Tensor& x, const Axes& axes = {}, bool keep = false);
Tensor logsumexp(const Tensor& x, const Axes& axes = {}, bool keep = false);
Tensor argmax(const Tensor& x, std::optional<int64_t> axis = {}, bool keep = false);  // i64, the first of equal elements; no axis: over all elements
Tensor argmin(const Tensor& x, std::optional<int64_t> axis = {}, bool keep = false);
Tensor cumsum(const Tensor& x, int axis);  // running sums

// Products.
Tensor matmul(const Tensor& a, const Tensor& b);                                  // vectors, matrices, and batches that broadcast
Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands);  // "ij,jk->ik"
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});    // x · weightᵀ + bias; weight [out, in]

// Convolution options: one entry per spatial axis, or none for 1 (padding: 0).
struct ConvArgs {
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups = 1;
};
Tensor conv1d(const Tensor& x, const Tensor& weight, const ConvArgs& args = {});  // x [batch, in, length], weight [out, in / groups, window]
Tensor conv2d(const Tensor& x, const Tensor& weight, const ConvArgs& args = {});  // x [batch, in, height, width], weight [out, in / groups, height, width]
// Pooling over the third and later axes; one entry per spatial axis; an empty stride equals the size. Averages include the padding.
Tensor max_pool(const Tensor& x, const std::vector<int64_t>& size, const std::vector<int64_t>& stride = {}, const std::vector<int64_t>& padding = {});
Tensor avg_pool(const Tensor& x, const std::vector<int64_t>& size, const std::vector<int64_t>& stride = {}, const std::vector<int64_t>& padding = {});

// Normalisation. layer_norm and rms_norm work on the last axis; weight and bias are optional.
Tensor softmax(const Tensor& x, int axis = -1);
Tensor log_softmax(const Tensor& x, int axis = -1);
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double eps = 1e-5);
// The normalised tensor, and the mean and variance (divided by n) used.
struct BatchNormResult {
  Tensor out, mean, var;
};
// x is [batch, channels, …]. Training uses the mean and variance of the batch; otherwise the arguments are used.
BatchNormResult batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean, const Tensor& var, bool training, double eps = 1e-5);

Tensor embedding(const Tensor& index, const Tensor& table);  // rows of the table
// Options of attention.
struct AttentionArgs {
  double scale = 0;     // of the scores; 0: 1 / sqrt(dim)
  bool causal = false;  // query i sees keys up to i + keys - queries
  Tensor mask;          // boolean (true: may attend) or floating point (added to the scores)
  Tensor length;        // i64 scalar: the number of valid keys
  double dropout = 0;   // of the probabilities
};
// q, k and v are [batch, heads, positions, dim]; k and v may have fewer heads. A query that may attend to nothing gives zeros.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionArgs& args = {});
Tensor rope(const Tensor& x, const Tensor& position, double theta = 10000);  // rotary positions: x [batch, heads, T, dim], position i64 [T]

// A metric reported with a loss, such as accuracy, entropy or KL: the mean sum / count, over all parts of a split batch.
struct NamedScalar {
  std::string name;
  Tensor sum, count;  // scalars
};
// A loss is a sum over samples and the sample count, so that a split batch gives the same gradients as the whole batch.
struct Loss {
  Tensor sum, count;
  std::vector<NamedScalar> scalars = {};  // at most 16; no gradients flow through them
  operator Tensor() const;                // the mean

  // The same loss with one more scalar: the mean of `values` (one or more per sample), or sum / count.
  //   return cross_entropy(logits, target).with("accuracy", equal(argmax(logits, -1), target));
  Loss with(std::string name, const Tensor& values) const;
  Loss with(std::string name, const Tensor& sum, const Tensor& count) const;
};
Loss cross_entropy(const Tensor& logits, const Tensor& target, std::optional<int64_t> ignore = {});  // targets equal to `ignore` are skipped
Loss mse(const Tensor& prediction, const Tensor& target);                                            // mean squared error

// Random numbers are a function of (seed, step, stream) and the element's index. Each call takes the next stream of the default seed or, inside a
// training step, of the step's own seed; inside a scan they also depend on the time index.
void seed(uint64_t value);                                 // sets the default seed
Tensor uniform(const Shape& shape);                        // in [0, 1)
Tensor normal(const Shape& shape);                         // mean 0, variance 1
Tensor bernoulli(const Shape& shape, double probability);  // boolean: true with this probability
Tensor dropout(const Tensor& x, double probability);       // zeroes elements with this probability and scales the others up
Tensor categorical(const Tensor& logits);                  // i64: class indices drawn from softmax(logits) over the last axis
Tensor permutation(int64_t n);                             // i64: 0 … n - 1 in random order

// What a scan, or one step of it, returns.
struct ScanOutput {
  std::vector<Tensor> carry, outputs;
};
// One step: takes the carry and this step's slice of each sequence, returns the next carry and this step's outputs.
using ScanStep = std::function<ScanOutput(const std::vector<Tensor>& carry, const std::vector<Tensor>& x)>;
// Loops over the first axis of `sequences`; outputs are stacked along it. Where `reset` (boolean [T] or [T, B]) is true at t, the initial carry is
// restored before step t. `reverse` runs from the last step to the first.
ScanOutput scan(const ScanStep& step, const std::vector<Tensor>& carry, const std::vector<Tensor>& sequences, const Tensor& reset = {}, bool reverse = false);

// A function with a user-defined gradient: vjp(inputs, output, cotangent) returns one gradient per input; an undefined tensor means no gradient.
using CustomForward = std::function<Tensor(const std::vector<Tensor>&)>;
using CustomVjp = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs, const Tensor& output, const Tensor& cotangent)>;
Tensor custom(const CustomForward& forward, const CustomVjp& vjp, const std::vector<Tensor>& inputs);

}  // namespace ridge
