// Functions on tensors. Conventions (ties, NaN, negative axes, promotion) are PyTorch's; docs/ops.md lists them.
#pragma once
#include <functional>
#include <utility>
#include <vector>

#include "ridge/tensor.h"

namespace ridge {

using Axes = std::vector<int64_t>;  // empty: all

Tensor operator+(const Tensor& a, const Tensor& b);
Tensor operator-(const Tensor& a, const Tensor& b);
Tensor operator*(const Tensor& a, const Tensor& b);
Tensor operator/(const Tensor& a, const Tensor& b);
Tensor operator-(const Tensor& a);
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
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& a, const Tensor& b);
Tensor mod(const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor clamp(const Tensor& x, double low, double high);
Tensor cast(const Tensor& x, DType dtype);
Tensor stop_gradient(const Tensor& x);

// name, meaning as in <cmath> where there is one
#define RIDGE_UNARY_FUNCTIONS(X) \
  X(abs)                         \
  X(sign)                        \
  X(exp) X(expm1) X(log) X(log1p) X(sqrt) X(rsqrt) X(sin) X(cos) X(tanh) X(sigmoid) X(relu) X(silu) X(softplus) X(erf) X(floor) X(ceil) X(round) X(is_finite)
#define RIDGE_FUNCTION(name) Tensor name(const Tensor& x);
RIDGE_UNARY_FUNCTIONS(RIDGE_FUNCTION)
#undef RIDGE_FUNCTION
Tensor square(const Tensor& x);
Tensor gelu(const Tensor& x, bool exact = false);  // tanh form, or by erf

Tensor full(const Shape& shape, double value, DType dtype = DType::f32);
Tensor iota(const Shape& shape, int axis = 0, DType dtype = DType::i64);
Tensor one_hot(const Tensor& index, int64_t classes);
Tensor reshape(const Tensor& x, const Shape& shape);  // one size may be -1
Tensor permute(const Tensor& x, const Shape& axes);
Tensor transpose(const Tensor& x, int a = -2, int b = -1);
Tensor expand(const Tensor& x, const Shape& shape);
Tensor slice(const Tensor& x, int axis, int64_t start, int64_t stop, int64_t step = 1);
Tensor pad(const Tensor& x, int axis, int64_t low, int64_t high, double value = 0);
Tensor concat(const std::vector<Tensor>& parts, int axis = 0);
Tensor stack(const std::vector<Tensor>& parts, int axis = 0);
std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int axis = 0);
Tensor flip(const Tensor& x, const Axes& axes);
Tensor gather(const Tensor& x, const Tensor& index, int axis);
Tensor scatter(const Tensor& x, const Tensor& index, const Tensor& source, int axis);
Tensor scatter_add(const Tensor& x, const Tensor& index, const Tensor& source, int axis);
Tensor take(const Tensor& x, const Tensor& index, int axis = 0);
Tensor dynamic_slice(const Tensor& x, const std::vector<Tensor>& starts, const Shape& sizes);
Tensor dynamic_update_slice(const Tensor& x, const Tensor& update, const std::vector<Tensor>& starts);
std::pair<Tensor, Tensor> sort(const Tensor& x, int axis = -1, bool descending = false);
Tensor argsort(const Tensor& x, int axis = -1, bool descending = false);
std::pair<Tensor, Tensor> topk(const Tensor& x, int64_t k, int axis = -1, bool largest = true);

Tensor sum(const Tensor& x, const Axes& axes = {}, bool keep = false);
Tensor mean(const Tensor& x, const Axes& axes = {}, bool keep = false);
Tensor var(const Tensor& x, const Axes& axes = {}, bool keep = false, int64_t ddof = 1);
Tensor max(const Tensor& x, const Axes& axes = {}, bool keep = false);
Tensor min(const Tensor& x, const Axes& axes = {}, bool keep = false);
Tensor prod(const Tensor& x, const Axes& axes = {}, bool keep = false);
Tensor logsumexp(const Tensor& x, const Axes& axes = {}, bool keep = false);
Tensor argmax(const Tensor& x, std::optional<int64_t> axis = {}, bool keep = false);
Tensor argmin(const Tensor& x, std::optional<int64_t> axis = {}, bool keep = false);
Tensor cumsum(const Tensor& x, int axis);

Tensor matmul(const Tensor& a, const Tensor& b);
Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands);
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});  // weight [out, in]

struct ConvArgs {  // one entry per spatial axis, or none for 1 (padding: 0)
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups = 1;
};
Tensor conv1d(const Tensor& x, const Tensor& weight, const ConvArgs& args = {});
Tensor conv2d(const Tensor& x, const Tensor& weight, const ConvArgs& args = {});
Tensor max_pool(const Tensor& x, const std::vector<int64_t>& size, const std::vector<int64_t>& stride = {}, const std::vector<int64_t>& padding = {});
Tensor avg_pool(const Tensor& x, const std::vector<int64_t>& size, const std::vector<int64_t>& stride = {}, const std::vector<int64_t>& padding = {});

Tensor softmax(const Tensor& x, int axis = -1);
Tensor log_softmax(const Tensor& x, int axis = -1);
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double eps = 1e-5);
struct BatchNormResult {
  Tensor out, mean, var;
};
BatchNormResult batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean, const Tensor& var, bool training, double eps = 1e-5);
Tensor embedding(const Tensor& index, const Tensor& table);
struct AttentionArgs {
  double scale = 0;  // 0: 1 / sqrt(dim)
  bool causal = false;
  Tensor mask;    // boolean (true: may attend) or floating (added)
  Tensor length;  // i64 scalar: valid keys
  double dropout = 0;
};
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionArgs& args = {});  // [batch, heads, positions, dim]
Tensor rope(const Tensor& x, const Tensor& position, double theta = 10000);

// A figure that is reported with a loss, such as accuracy, entropy or KL: the mean sum / count, over all parts of a split batch.
struct NamedScalar {
  std::string name;
  Tensor sum, count;  // scalars
};
// A loss is a sum over samples and how many there are: that is what makes a split batch give the same gradients.
struct Loss {
  Tensor sum, count;
  std::vector<NamedScalar> scalars = {};  // at most 16; no gradients flow through them
  operator Tensor() const;                // the mean

  // The same loss with one more scalar: the mean of `values`, one or more for each sample, or of a sum and its count.
  //   return cross_entropy(logits, target).with("accuracy", equal(argmax(logits, -1), target));
  Loss with(std::string name, const Tensor& values) const;
  Loss with(std::string name, const Tensor& sum, const Tensor& count) const;
};
Loss cross_entropy(const Tensor& logits, const Tensor& target, std::optional<int64_t> ignore = {});
Loss mse(const Tensor& prediction, const Tensor& target);

// Randomness is a function of (seed, step, stream) and an element's index: each call takes the next stream of the default seed,
// or, inside a training step, of the step's own. Inside a scan's step it is a function of the time index too.
void seed(uint64_t value);
Tensor uniform(const Shape& shape);
Tensor normal(const Shape& shape);
Tensor bernoulli(const Shape& shape, double probability);
Tensor dropout(const Tensor& x, double probability);
Tensor categorical(const Tensor& logits);
Tensor permutation(int64_t n);

// A loop over the first axis of `sequences`: step(carry, x_t) -> (carry, y_t). With `reset` (boolean [T] or [T, B]) the initial carry
// comes back before step t wherever reset[t] is true.
struct ScanOutput {
  std::vector<Tensor> carry, outputs;
};
using ScanStep = std::function<ScanOutput(const std::vector<Tensor>& carry, const std::vector<Tensor>& x)>;
ScanOutput scan(const ScanStep& step, const std::vector<Tensor>& carry, const std::vector<Tensor>& sequences, const Tensor& reset = {}, bool reverse = false);

// Your own gradient: vjp(inputs, output, cotangent) -> one gradient per input (an undefined one for none).
using CustomForward = std::function<Tensor(const std::vector<Tensor>&)>;
using CustomVjp = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs, const Tensor& output, const Tensor& cotangent)>;
Tensor custom(const CustomForward& forward, const CustomVjp& vjp, const std::vector<Tensor>& inputs);

}  // namespace ridge
