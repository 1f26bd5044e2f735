#include "backend/cuda/conv_library.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "backend/cuda/conv_text.h"
#include "base/error.h"

namespace ridge::cuda {
namespace {

constexpr int64_t kSpareWorkspace = int64_t(8) << 20;
constexpr int64_t kLibraryAlignment = 256;  // of the library's workspace
constexpr const char* kOwnKernels = "own";  // as a stored choice

using ArraySizes = std::array<int64_t, 4>;

// The strides of packed arrays in the order [first, second, down, across] or [first, down, across, second].
ArraySizes packed_strides(const ArraySizes& s, bool channels_last) {
  if (channels_last) return {s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
  return {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1};
}

bool is_packed(const CudnnArray& a, bool channels_last) {
  const ArraySizes packed = packed_strides(a.sizes, channels_last);
  for (size_t i = 0; i < 4; ++i)
    if (a.sizes[i] > 1 && a.strides[i] != packed[i]) return false;
  return true;
}

int64_t elements(const CudnnArray& a) { return a.sizes[0] * a.sizes[1] * a.sizes[2] * a.sizes[3]; }
int64_t bytes_of(const CudnnArray& a) { return elements(a) * size_of(a.type); }

// False if the array is reversed.
bool lay_out(CudnnArray& a, DType type, const ArraySizes& sizes, const ArraySizes& strides, int64_t alignment) {
  a.type = type, a.sizes = sizes, a.strides = strides, a.alignment = std::min<int64_t>(alignment, 16);
  return std::all_of(strides.begin(), strides.end(), [](int64_t s) { return s >= 0; });
}

// The padding at the end that gives a source this many windows; empty if the source would have to be cropped instead. Prefers the same padding as at the
// beginning.
std::optional<int64_t> padding_after(int64_t source, int64_t window, int64_t dilation, int64_t stride, int64_t low, int64_t windows) {
  const int64_t reach = (window - 1) * dilation + 1;
  if (low < 0) return std::nullopt;
  for (int64_t high : {low, std::max<int64_t>((windows - 1) * stride + reach - source - low, 0)})
    if (const int64_t room = source + low + high - reach; room >= 0 && room / stride + 1 == windows) return high;
  return std::nullopt;
}

}  // namespace

int64_t LibraryConv::w_bytes() const { return w_in_workspace ? (bytes_of(conv.w) + kLibraryAlignment - 1) / kLibraryAlignment * kLibraryAlignment : 0; }

// Room for partial sums and, if the library's kernels need channels last and the arrays are not, for copies of all arrays.
int64_t LibraryConv::workspace_bytes() const {
  const bool as_it_is = conv.channels_last() || (conv.x.type == DType::f32 && conv.exact);
  return kSpareWorkspace + 2 * bytes_of(conv.w) + (as_it_is ? 0 : bytes_of(conv.x) + bytes_of(conv.y));
}

std::optional<LibraryConv> library_conv(const ConvDesc& d, const Chip& chip) {
  if (d.groups > 1) return std::nullopt;
  LibraryConv call;
  CudnnConv& c = call.conv;
  c.exact = chip.f32_products == Precision::fp32;
  const auto &x = d.x_steps, &w = d.w_steps, &out = d.out_steps;
  const bool spread = d.spread != ConvDesc::Axes{1, 1}, gradient = d.taps() > d.positions();
  bool forward = true, backward = true;  // the direction of the weights
  for (size_t i : {0, 1}) forward &= d.window[i] == 1 || w.axes[i] > 0, backward &= d.window[i] == 1 || w.axes[i] < 0;
  ConvDesc::Axes pad = d.low;
  bool fits = true;
  if (gradient) {
    // Images and channels are swapped.
    if (spread || !forward) return std::nullopt;
    c.result = CudnnConv::Result::w;
    fits &= lay_out(c.x, d.x, {d.channels, d.images, d.source[0], d.source[1]}, {x.second, x.first, x.axes[0], x.axes[1]}, x.alignment);
    fits &= lay_out(c.y, d.w, {d.channels, d.outputs, d.window[0], d.window[1]}, {w.second, w.first, w.axes[0], w.axes[1]}, w.alignment);
    fits &= lay_out(c.w, d.result, {d.outputs, d.images, d.out[0], d.out[1]}, {out.second, out.first, out.axes[0], out.axes[1]}, out.alignment);
    c.stride = d.dilation, c.dilation = d.stride;
  } else if (spread || !forward) {
    // Reversed weights with inputs and outputs swapped: the gradient with respect to x of a convolution with that stride.
    if (!backward || d.stride != ConvDesc::Axes{1, 1}) return std::nullopt;
    c.result = CudnnConv::Result::x;
    ConvDesc::Axes steps = w.axes;
    for (size_t i : {0, 1})
      if (d.window[i] > 1) call.w_offset += (d.window[i] - 1) * w.axes[i] * size_of(d.w), steps[i] = -w.axes[i];
    fits &= lay_out(c.y, d.x, {d.images, d.channels, d.source[0], d.source[1]}, {x.first, x.second, x.axes[0], x.axes[1]}, x.alignment);
    fits &= lay_out(c.w, d.w, {d.channels, d.outputs, d.window[0], d.window[1]}, {w.second, w.first, steps[0], steps[1]},
                    std::gcd(w.alignment, std::abs(call.w_offset)));
    fits &= lay_out(c.x, d.result, {d.images, d.outputs, d.out[0], d.out[1]}, {out.first, out.second, out.axes[0], out.axes[1]}, out.alignment);
    c.stride = d.spread, c.dilation = d.dilation;
    for (size_t i : {0, 1}) pad[i] = (d.window[i] - 1) * d.dilation[i] - d.low[i];
  } else {
    fits &= lay_out(c.x, d.x, {d.images, d.channels, d.source[0], d.source[1]}, {x.first, x.second, x.axes[0], x.axes[1]}, x.alignment);
    fits &= lay_out(c.w, d.w, {d.outputs, d.channels, d.window[0], d.window[1]}, {w.first, w.second, w.axes[0], w.axes[1]}, w.alignment);
    fits &= lay_out(c.y, d.result, {d.images, d.outputs, d.out[0], d.out[1]}, {out.first, out.second, out.axes[0], out.axes[1]}, out.alignment);
    c.stride = d.stride, c.dilation = d.dilation;
  }
  if (!fits) return std::nullopt;
  for (size_t i : {0, 1}) {
    const auto high = padding_after(c.x.sizes[2 + i], c.w.sizes[2 + i], c.dilation[i], c.stride[i], pad[i], c.y.sizes[2 + i]);
    if (!high) return std::nullopt;
    c.low[i] = pad[i], c.high[i] = *high;
  }
  // All arrays must have the same order, which also determines the strides of axes of one element.
  for (bool last : {false, true}) {
    if (!is_packed(c.x, last) || !is_packed(c.y, last)) continue;
    call.w_in_workspace = !is_packed(c.w, last);
    if (call.w_in_workspace && !gradient && !is_packed(c.w, false)) continue;
    if (call.w_in_workspace) c.w.alignment = 16;
    for (CudnnArray* a : {&c.x, &c.w, &c.y}) a->strides = packed_strides(a->sizes, last);
    return call;
  }
  return std::nullopt;
}

// Measured on an H200 with cuDNN 9.14 and 64 images, in microseconds: our own kernels, the library with channels first (NCHW), the library with channels last
// (NHWC).
//                          64 of 56 x 56     256 of 14 x 14    128 of 56 x 56, stride 2    3 of 224 x 224, window 7 x 7, stride 2
//   bf16  y                  80   92   40      51   48   29       90   90   31              251   638   451
//         by x               80  100   46      52   48   29       98  107   40
//         by w, in bf16     142   93   45      79   53   35      195  102   44              452   481   300
//         by w, in f32      142 1051 1005      79   90   69      195  315  257
//   tf32  y                 231  142   73     195   71   45      251  137   58              338   614   404
//         by x              230  143   77     195   79   54      247  156   78
//         by w              406  220  159     203  126  101      400  171   96              804   531   464
//   f32   y                 545  356  422     587  490  514      642  460  535              816   733   750
//         by x              545  627  692     586  596  620      556 1046 1125
//         by w              689  574  640     445 (175)(202)     672  808  835             1254  1996  1951
// The figures in parentheses imply more products than the chip can do in that time, so the library computes something else. Depthwise convolutions (100 against
// 230 for the kernels that need no compilation) and windows of one element (products in both cases) also use our own kernels.
bool library_wins(const ConvDesc& d, CudnnConv::Result result, bool channels_last, const Chip& chip) {
  const bool by_weights = result == CudnnConv::Result::w;
  const int64_t channels = by_weights ? d.images : d.channels, window = by_weights ? d.positions() : d.taps();
  if (d.groups > 1 || std::min(channels, d.outputs) < 16 || window == 1) return false;
  if (d.x != d.w || d.x != d.result || (d.x == DType::bf16 && !chip.bf16())) return false;
  if (d.x != DType::f32) return channels_last || by_weights;
  if (chip.f32_products == Precision::fp32) return result == CudnnConv::Result::y && !channels_last;
  return chip.at_least(8, 0);
}

namespace {

class LibraryConvKernel final : public NodeKernel {
 public:
  LibraryConvKernel(const ConvDesc& desc, const LibraryConv& call, std::unique_ptr<Kernel> own, const Chip& chip)
      : NodeKernel(chip), d_(desc), call_(call), own_(std::move(own)), there_(chip.cudnn) {
    if (!there_ || !call_.w_in_workspace) return;
    order_ = add(conv_finish_text(d_.result, elements(call_.conv.w), by_weights() && call_.conv.channels_last(), true));
  }

  int64_t workspace_bytes() const override {
    if (!there_) return own_->workspace_bytes();
    return std::max(own_->workspace_bytes(), call_.w_bytes() + call_.workspace_bytes() + kLibraryAlignment);
  }

  // Without the library, the texts of our own kernels. If the library refuses later, those are compiled then.
  std::vector<KernelText> texts() const override { return there_ ? NodeKernel::texts() : own_->texts(); }

  void load(gpu::Loader& given) override {
    Loader& loader = cuda_loader(given);
    // The stored value lets a resumed run check that it continues with the same kernel.
    const std::string key = "convolution " + call_.conv.key(), kept = loader.choice(key);
    try {
      if (const Cudnn* cudnn = there_ ? loader.cudnn() : nullptr; cudnn && kept != kOwnKernels) loader.as_library_memory([&] { choose(loader, *cudnn, kept); });
    } catch (const DriverError&) {
      throw;
    } catch (const Error& error) {
      plan_.reset(), refusal_ = error.what();
    }
    loader.record_choice(key, plan_ ? chosen_ : kOwnKernels);
    if (plan_)
      NodeKernel::load(loader);
    else
      own_->load(loader);
  }

  void bind(std::span<const Place> operands, Place workspace, Place fault) override {
    own_->bind(operands, workspace, fault);
    clear();
    x_ = operands[0], w_ = operands[1], out_ = operands[2], space_ = workspace;
    if (!there_ || !call_.w_in_workspace) return;
    const int64_t blocks = blocks_of(elements(call_.conv.w), kBlock);
    if (by_weights()) return launch(order_, blocks, conv_finish_words(d_, out_, space_, 1, d_.images, call_.conv.channels_last() ? d_.images : 0));
    // [output, channel, tap] to [output, tap, channel].
    const ArraySizes &sizes = call_.conv.w.sizes, &strides = call_.conv.w.strides;
    ConvDesc to;
    to.outputs = sizes[0], to.out = {sizes[2], sizes[3]};
    to.out_steps.first = strides[1], to.out_steps.second = strides[0], to.out_steps.axes = {strides[2], strides[3]};
    launch(order_, blocks, conv_finish_words(to, space_, moved(w_, call_.w_offset), 1, sizes[1], 0));
  }

  void enqueue(Bases bases, LaunchSink& sink) const override {
    if (!plan_) return own_->enqueue(bases, sink);
    if (!by_weights()) NodeKernel::enqueue(bases, sink);
    const DevicePointer x = at(bases, x_), w = at(bases, moved(w_, call_.w_offset)), out = at(bases, out_), space = at(bases, space_);
    CudnnConvolution::Addresses to;
    switch (call_.conv.result) {
      case CudnnConv::Result::y: to = {x, w, out, 0}; break;
      case CudnnConv::Result::x: to = {out, w, x, 0}; break;
      case CudnnConv::Result::w: to = {x, out, w, 0}; break;
    }
    if (call_.w_in_workspace) to.w = space;
    to.workspace = (space + DevicePointer(call_.w_bytes() + kLibraryAlignment - 1)) / kLibraryAlignment * kLibraryAlignment;
    convolution_->enqueue(*plan_, to, stream_of(sink));
    if (by_weights()) NodeKernel::enqueue(bases, sink);
  }

  int launches() const override { return plan_ ? 1 + NodeKernel::launches() : own_->launches(); }

  std::string note() const override {
    if (plan_) return fmt::format("cuDNN #{}, engine {}", proposal_, engine_);
    return own_->note() + (!there_ ? "; no cuDNN, which would be faster" : refusal_.empty() ? "" : "; not cuDNN: " + refusal_);
  }

 private:
  bool by_weights() const { return call_.conv.result == CudnnConv::Result::w; }

  // Takes the library's first lawful proposal. This is a rule and not a measurement, because each proposal adds in a different order.
  void choose(Loader& loader, const Cudnn& cudnn, const std::string& kept) {
    convolution_ = std::make_unique<CudnnConvolution>(cudnn, call_.conv);
    std::vector<CudnnConvolution::Proposal> proposals = convolution_->proposals();
    for (bool as_kept : {true, false})
      for (size_t i = 0; i < proposals.size(); ++i) {
        CudnnConvolution::Proposal& p = proposals[i];
        chosen_ = fmt::format("cuDNN {} {} {}", cudnn.version(), i, p.engine);
        if (!p.allowed || (chosen_ == kept) != as_kept) continue;
        engine_ = p.engine;
        plan_ = convolution_->plan(std::move(p));
        if (plan_ && plan_->workspace_bytes <= call_.workspace_bytes() && runs(loader)) {
          proposal_ = int(i);
          return;
        }
        plan_.reset();
      }
    refusal_ = fmt::format("none of its {} proposals can be used", proposals.size());
  }

  // Some proposals fail only when they run. If there is no memory to try one, assume that it works.
  bool runs(Loader& loader) const {
    const Driver& driver = loader.driver();
    const CudnnConv& c = call_.conv;
    const int64_t x = rounded(bytes_of(c.x)), w = rounded(bytes_of(c.w)), y = rounded(bytes_of(c.y)), total = x + w + y + plan_->workspace_bytes;
    if (total > loader.chip().memory_bytes / 64) return true;
    try {
      const DeviceMemory memory = allocate(driver, total);
      driver.fill_bytes(memory.get(), 0, size_t(total), loader.stream());
      const DevicePointer at = memory.get();
      convolution_->enqueue(*plan_, {at, at + DevicePointer(x), at + DevicePointer(x + w), at + DevicePointer(x + w + y)}, loader.stream());
      driver.stream_wait(loader.stream());
    } catch (const Error& error) {
      if (error.code() == ErrorCode::memory) return true;
      if (dynamic_cast<const DriverError*>(&error)) throw;
      return false;
    }
    return true;
  }

  ConvDesc d_;
  LibraryConv call_;
  std::unique_ptr<Kernel> own_;
  std::unique_ptr<CudnnConvolution> convolution_;
  std::optional<CudnnConvolution::Plan> plan_;
  bool there_;  // the library is available
  int order_ = -1, proposal_ = 0;
  int64_t engine_ = 0;
  std::string chosen_, refusal_;
  Place x_, w_, out_, space_;
};

}  // namespace

std::unique_ptr<Kernel> make_library_conv(const ConvDesc& desc, const LibraryConv& call, std::unique_ptr<Kernel> own, const Chip& chip) {
  return std::make_unique<LibraryConvKernel>(desc, call, std::move(own), chip);
}

}  // namespace ridge::cuda
