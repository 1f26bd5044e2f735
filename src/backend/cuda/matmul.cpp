#include "backend/cuda/matmul.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "backend/cuda/make.h"
#include "backend/cuda/matmul_text.h"
#include "backend/cuda/matmul_tune.h"
#include "backend/cuda/prelude.h"
#include "backend/cuda/thin_matmul.h"
#include "backend/gpu/memory_use.h"
#include "backend/gpu/node_parts.h"
#include "base/error.h"

namespace ridge::cuda {
namespace {

constexpr int64_t kMaxWorkspace = int64_t(32) << 20, kMinWorkspace = int64_t(1) << 20;  // for the library
constexpr int64_t kPlannedAlignment = 64;                                               // of every value's memory
constexpr int64_t kProductAlignment = 256;                                              // of the library's workspace, which it requires

constexpr const char* kConvertBias = R"(
extern "C" __global__ void ridge_matmul_bias(const float* from, half_bits* to, long long count, int type) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = (half_bits)(type == 1 ? pack_bf16(from[i], 0.f) : pack_f16(from[i], 0.f));
}
)";

// One way to compute the whole product and its epilogue.
struct Way {
  MatmulEpilogue epilogue;
  std::optional<LibraryCall> library;
  std::unique_ptr<OwnMatmul> own;
  std::unique_ptr<Kernel> rest;  // reads the result that the product stored
  bool detached = false;         // the product's result is in workspace and is the last operand of `rest`
  int64_t sums_bytes = 0;
};

class MatmulKernel final : public Kernel {
 public:
  static std::unique_ptr<MatmulKernel> of(const Program& program, const ProgramKernel& kernel, const Chip& chip);
  MatmulKernel(const MatmulDesc& desc, const Chip& chip) : chip_(chip), problem_(make_problem(desc.loops, desc.a, desc.b)) {
    problem_.f32_products = chip.f32_products;
    alignments_ = desc.alignments;
    alignment_a_ = alignment(0), alignment_b_ = alignment(1);
    if (desc.epilogue) {
      add_epilogue(*desc.epilogue, desc.memory);
    } else {
      MatmulEpilogue e;
      e.result.operand = 0, e.result.type = desc.result;
      add_way(problem_, e);
    }
    lay_out_workspace();
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  // Texts for all of the library's ways, because which one has good algorithms is not known yet, and for measuring them. Our own products are included only if
  // there is no such way: the library seldom refuses one, and then they are compiled late.
  std::vector<KernelText> texts() const override {
    const std::vector<int> ways = library_ways();
    std::vector<KernelText> all;
    auto add = [&](std::vector<KernelText> more) { std::move(more.begin(), more.end(), std::back_inserter(all)); };
    for (int w : ways) {
      if (ways_[size_t(w)].rest) add(ways_[size_t(w)].rest->texts());
      if (ways_[size_t(w)].library->convert_bias) all.push_back(bias_text());
    }
    if (!ways.empty()) {
      add(tuning_texts());
      return all;
    }
    if (ways_[0].rest) add(ways_[0].rest->texts());
    add(ways_[0].own->texts());
    return all;
  }

  void load(gpu::Loader& given) override {
    Loader& loader = cuda_loader(given);
    driver_ = &loader.driver();
    const std::vector<int> index = library_ways();
    std::vector<const LibraryCall*> ways;
    for (int w : index) ways.push_back(&*ways_[size_t(w)].library);
    if (const auto choice = choose_matmul(loader, ways, library_bytes_)) {
      choice_ = *choice;
      way_ = index[size_t(choice->way)];
      library_ = std::make_unique<LibraryMatmul>(*loader.cublas_lt(), *ways_[size_t(way_)].library);
      if (way().library->convert_bias) convert_bias_ = loader.function(bias_text());
    } else {
      way().own->load(loader);
    }
    if (way().rest) way().rest->load(loader);
  }

  void bind(std::span<const Place> operands, Place workspace, Place fault) override {
    a_ = operands[0], b_ = operands[1], workspace_ = workspace;
    operands_.assign(operands.begin() + 2, operands.end());
    for (Way& w : ways_) {
      if (!w.rest) continue;
      std::vector<Place> places = operands_;
      if (w.detached) places.push_back(moved(workspace, sums_at_));
      w.rest->bind(places, moved(workspace, rest_at_), fault);
    }
  }

  void enqueue(Bases bases, LaunchSink& sink) const override {
    const StreamHandle stream = stream_of(sink);
    const Way& w = ways_[size_t(way_)];
    const OwnMatmul::Addresses to_product = addresses(bases);
    if (library_) {
      const auto& [a, b, result, bias, addend, aux, space] = to_product;
      DevicePointer library_bias = bias;
      if (w.library->convert_bias) {
        DevicePointer to = at(bases, workspace_);
        long long count = problem_.columns;
        int type = w.epilogue.result.type == DType::bf16 ? 1 : 2;
        void* parameters[] = {&library_bias, &to, &count, &type};
        driver_->launch(convert_bias_, unsigned((count + 255) / 256), 1, 1, 256, 1, 1, 0, stream, parameters, nullptr);
        library_bias = to;
      }
      const bool swapped = w.library->product.swapped;
      library_->enqueue(choice_.algorithm, {swapped ? b : a, swapped ? a : b, result, library_bias, addend, aux, space}, library_bytes_, stream);
    } else {
      w.own->enqueue(to_product, stream);
    }
    if (w.rest) w.rest->enqueue(bases, sink);
  }

  // Our own product, if it is all that there is to do; else null.
  const OwnMatmul* own_alone() const { return library_ways().empty() && !ways_[0].rest ? ways_[0].own.get() : nullptr; }

  OwnMatmul::Addresses addresses(Bases bases) const {
    const Way& w = ways_[size_t(way_)];
    const MatmulEpilogue& e = w.epilogue;
    auto array = [&](const MatmulArray& x) { return x ? at(bases, moved(operands_[size_t(x.operand)], x.offset * size_of(x.type))) : DevicePointer(0); };
    const DevicePointer workspace = at(bases, workspace_);
    return {.a = at(bases, a_),
            .b = at(bases, b_),
            .result = w.detached ? workspace + DevicePointer(sums_at_) : array(e.result),
            .bias = array(e.bias),
            .addend = array(e.addend),
            .aux = array(e.aux),
            .workspace = (workspace + DevicePointer(product_at_ + kProductAlignment - 1)) / kProductAlignment * kProductAlignment};
  }

  int launches() const override {
    const Way& w = ways_[size_t(way_)];
    const int product = library_ ? int(w.library->product.calls()) + w.library->convert_bias : w.own->launches();
    return product + (w.rest ? w.rest->launches() : 0);
  }

  std::string note() const override {
    const Way& w = ways_[size_t(way_)];
    std::string text = library_ ? fmt::format("cublasLt #{}", choice_.proposal) : "own";
    if (!w.epilogue.name().empty()) text += " " + w.epilogue.name();
    if (w.rest) text += w.detached ? ", sums to memory, then the epilogue" : ", then the rest";
    if (library_ && choice_.ms == 0)
      text += ", not measured: there was no memory for it";
    else if (library_)
      text += fmt::format(", {:.0f} us, {:.0f} TFLOP/s (#0: {:.0f} us)", choice_.ms * 1e3, w.library->flops() / choice_.ms * 1e-9, choice_.first_ms * 1e3);
    return text;
  }

 private:
  Way& way() { return ways_[size_t(way_)]; }
  // The library's ways, in order of preference. This is a rule and not a measurement, because each way rounds in different places. The library's gelu on f32 is
  // slower than a separate kernel.
  std::vector<int> library_ways() const {
    auto slow = [](const MatmulEpilogue& e) {
      return e.result.type == DType::f32 && (e.function == MatmulEpilogue::Function::gelu || e.function == MatmulEpilogue::Function::gelu_grad);
    };
    std::vector<int> order;
    for (bool last : {false, true})
      for (size_t w = 0; w < ways_.size(); ++w)
        if (ways_[w].library && slow(ways_[w].epilogue) == last) order.push_back(int(w));
    return order;
  }
  static KernelText bias_text() { return {"ridge_matmul_bias", std::string(matrix_prelude()) + kConvertBias, 0}; }

  int64_t alignment(size_t operand) const { return operand < alignments_.size() ? std::gcd(kPlannedAlignment, alignments_[operand]) : kPlannedAlignment; }
  int64_t alignment(const MatmulArray& x) const { return std::gcd(alignment(2 + size_t(x.operand)), x.offset * size_of(x.type)); }

  Way& add_way(const MatmulProblem& problem, const MatmulEpilogue& e, bool detached = false) {
    Way& w = ways_.emplace_back();
    w.epilogue = e, w.detached = detached;
    if (chip_.cublas_lt && !OwnMatmul::suits(problem)) w.library = library_call(problem, e);
    if (w.library && e.aux && alignment(e.aux) < 16) w.library.reset();
    if (w.library) {
      const bool swapped = w.library->product.swapped;
      w.library->alignment_first = swapped ? alignment_b_ : alignment_a_, w.library->alignment_second = swapped ? alignment_a_ : alignment_b_;
      if (!detached) w.library->alignment_result = alignment(e.result);
      if (e.addend) w.library->alignment_addend = alignment(e.addend);
      if (e.bias && !w.library->convert_bias) w.library->alignment_bias = alignment(e.bias);
    }
    w.own = std::make_unique<OwnMatmul>(problem, e, chip_, alignment_a_, alignment_b_);
    return w;
  }

  // Uses the whole epilogue, or its beginning plus a kernel for the rest; if neither is possible, the sums are first written to memory.
  void add_epilogue(const TileGroup& group, const std::vector<int>& memory) {
    auto together = [&](const MatmulArray& x, const MatmulArray& y) {
      return x && y && !memory.empty() && memory[size_t(x.operand) + 2] == memory[size_t(y.operand) + 2];
    };
    auto add_split = [&](const SplitEpilogue& split) {
      Way& w = add_way(with_result(problem_, split.first.result), split.first);
      w.rest = make_tile_kernel({&split.rest, 1}, chip_);
    };
    // The rest must not read the previous contents of memory that the first part overwrites.
    auto distinct = [&](const SplitEpilogue& split) {
      return std::none_of(split.rest.nodes.begin(), split.rest.nodes.end(), [&](const TileNode& n) {
        if (n.kind != TileNode::Kind::load) return false;
        const int operand = split.rest.accesses[size_t(n.access)].operand;
        return operand >= 0 && operand != split.first.result.operand && together(split.first.result, MatmulArray{.operand = operand});
      });
    };
    std::optional<MatmulEpilogue> whole = match_epilogue(group);
    // A single row added to the result looks like a bias; if it is in the result's own memory, it is an addend.
    if (whole && together(whole->result, whole->bias)) {
      if (whole->addend)
        whole.reset();
      else
        whole->addend = std::exchange(whole->bias, {}), whole->addend.row = problem_.columns;
    }
    if (whole) {
      add_way(with_result(problem_, whole->result), *whole);
      if (!together(whole->result, whole->aux))
        if (const auto split = finish_in_place(*whole, group.domain, group.operands); split && distinct(*split)) add_split(*split);
    }
    if (const auto split = split_epilogue(group); split && distinct(*split)) add_split(*split);
    if (!ways_.empty()) return;
    DetachedEpilogue detached = detach_epilogue(group);
    MatmulEpilogue e;
    e.result = {0, detached.sums, 0, problem_.rows * problem_.columns, problem_.columns, 1};
    Way& w = add_way(with_result(problem_, e.result), e, true);
    w.sums_bytes = problem_.batches * problem_.rows * problem_.columns * size_of(detached.sums);
    w.rest = make_tile_kernel({&detached.group, 1}, chip_);
  }

  // The bias, the sums, the workspace of the rest, then the library's workspace or partial sums.
  void lay_out_workspace() {
    int64_t product = 0, bias = 0, sums = 0, rest = 0;
    for (const Way& w : ways_) {
      product = std::max(product, w.own->workspace_bytes());
      if (w.library) {
        library_bytes_ = std::clamp(rounded(8 * 4 * problem_.batches * problem_.rows * problem_.columns), kMinWorkspace, kMaxWorkspace);
        product = std::max(product, library_bytes_);
        if (w.library->convert_bias) bias = rounded(2 * problem_.columns);
      }
      sums = std::max(sums, rounded(w.sums_bytes));
      if (w.rest) rest = std::max(rest, w.rest->workspace_bytes());
    }
    sums_at_ = bias, rest_at_ = sums_at_ + sums, product_at_ = rest_at_ + rounded(rest);
    workspace_bytes_ = product_at_ + (product ? product + kProductAlignment : 0);
  }

  Chip chip_;
  MatmulProblem problem_;
  std::vector<int64_t> alignments_;  // of all operands' addresses
  int64_t alignment_a_ = kPlannedAlignment, alignment_b_ = kPlannedAlignment;
  std::vector<Way> ways_;  // at least one; without a library the first is used
  int64_t library_bytes_ = 0, sums_at_ = 0, rest_at_ = 0, product_at_ = 0, workspace_bytes_ = 0;
  int way_ = 0;
  MatmulChoice choice_;
  std::unique_ptr<LibraryMatmul> library_;
  FunctionHandle convert_bias_ = nullptr;
  const Driver* driver_ = nullptr;
  Place a_, b_, workspace_;
  std::vector<Place> operands_;  // the result, or the epilogue's operands
};

MatmulDesc desc_of(const Program& program, const ProgramKernel& kernel) {
  const Graph& g = program.graph;
  const Node& node = g[kernel.group.node];
  MatmulDesc desc;
  desc.loops = kernel.loops;
  desc.a = g.dtype(node.in[0]), desc.b = g.dtype(node.in[1]), desc.result = node.type().dtype;
  if (!kernel.tiles.empty()) desc.epilogue = &kernel.tiles[0];
  // The program's own memory is aligned; memory from outside may be an element of a sequence of arrays.
  for (const ProgramOperand& o : kernel.operands) {
    const ProgramBuffer* buffer = &program.buffer_of(o.owner);
    desc.alignments.push_back(std::gcd(o.offset, buffer->place == ProgramBuffer::Place::arena ? kPlannedAlignment : buffer->bytes));
    while (buffer->alias >= 0) buffer = &program.buffers[size_t(buffer->alias)];
    if (const int state = buffer->place == ProgramBuffer::Place::output ? program.state_input[size_t(buffer->index)] : -1; state >= 0)
      buffer = &program.buffer_of(program.inputs[size_t(state)]);
    desc.memory.push_back(int(buffer - program.buffers.data()));
  }
  return desc;
}

std::unique_ptr<MatmulKernel> MatmulKernel::of(const Program& program, const ProgramKernel& kernel, const Chip& chip) {
  return std::make_unique<MatmulKernel>(desc_of(program, kernel), chip);
}

std::unique_ptr<Kernel> thin_matmul(const Program& program, const ProgramKernel& kernel, const ThinRow& row, const Chip& chip) {
  int64_t rows = 1;
  for (const auto* loops : {&kernel.loops.m, &kernel.loops.batch})
    for (const MatmulLoop& l : *loops) rows *= l.size;
  if (!chip.thin || rows != 1) return nullptr;
  return make_thin_matmul(desc_of(program, kernel), row, is_constant(program, kernel.operands[1].owner), chip);
}

class MatmulListKernel final : public Kernel {
 public:
  MatmulListKernel(const Program& program, std::span<const ProgramKernel* const> kernels, const Chip& chip) {
    std::vector<const OwnMatmul*> products;
    for (const ProgramKernel* k : kernels) {
      const MatmulKernel& one = *each_.emplace_back(MatmulKernel::of(program, *k, chip));
      products.push_back(one.own_alone());
      operands_.push_back(k->operands.size()), workspace_at_.push_back(workspace_bytes_);
      workspace_bytes_ += rounded(one.workspace_bytes());
    }
    list_ = std::make_unique<OwnMatmulList>(std::move(products));
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }
  std::vector<KernelText> texts() const override { return list_->texts(); }
  void load(gpu::Loader& loader) override { list_->load(cuda_loader(loader)); }
  void bind(std::span<const Place> operands, Place workspace, Place fault) override {
    for (size_t i = 0; i < each_.size(); ++i) {
      each_[i]->bind(operands.first(operands_[i]), moved(workspace, workspace_at_[i]), fault);
      operands = operands.subspan(operands_[i]);
    }
  }
  void enqueue(Bases bases, LaunchSink& sink) const override {
    std::vector<OwnMatmul::Addresses> at;
    for (const auto& one : each_) at.push_back(one->addresses(bases));
    list_->enqueue(at, sink);
  }
  int launches() const override { return list_->launches(); }
  std::string note() const override { return fmt::format("own, {} products in a list", each_.size()); }

 private:
  std::vector<std::unique_ptr<MatmulKernel>> each_;
  std::vector<size_t> operands_;  // number of each
  std::vector<int64_t> workspace_at_;
  int64_t workspace_bytes_ = 0;
  std::unique_ptr<OwnMatmulList> list_;
};

}  // namespace

std::unique_ptr<Kernel> make_matmul(const MatmulDesc& desc, const Chip& chip) { return std::make_unique<MatmulKernel>(desc, chip); }

std::unique_ptr<Kernel> make_matmul_kernel(const Program& program, const ProgramKernel& kernel, const Chip& chip) {
  if (std::unique_ptr<Kernel> thin = thin_matmul(program, kernel, {}, chip)) return thin;
  return MatmulKernel::of(program, kernel, chip);
}

std::unique_ptr<Kernel> make_matmul_with_row(const Program& program, const ProgramKernel& row, const ProgramKernel& kernel, const Chip& chip) {
  if (row.group.kind != Group::Kind::tile || row.tiles.size() != 1 || kernel.operands[0].offset != 0) return nullptr;
  int result = -1;
  for (size_t i = 0; i < row.operands.size(); ++i)
    if (row.operands[i].owner == kernel.operands[0].owner && row.operands[i].written && row.operands[i].offset == 0) result = int(i);
  // Nothing but A may be read of it.
  for (size_t i = 1; i < kernel.operands.size(); ++i)
    if (kernel.operands[i].owner == kernel.operands[0].owner) return nullptr;
  return result < 0 ? nullptr : thin_matmul(program, kernel, {&row.tiles[0], result}, chip);
}

std::string matmul_list_key(const Program& program, const ProgramKernel& kernel, const Chip& chip) {
  const Graph& g = program.graph;
  const Node& node = g[kernel.group.node];
  if (!OwnMatmul::suits(make_problem(kernel.loops, g.dtype(node.in[0]), g.dtype(node.in[1])))) return {};
  const std::unique_ptr<MatmulKernel> made = MatmulKernel::of(program, kernel, chip);
  const OwnMatmul* own = made->own_alone();
  return own ? own->list_key() : std::string();
}

std::unique_ptr<Kernel> make_matmul_list(const Program& program, std::span<const ProgramKernel* const> kernels, const Chip& chip) {
  return std::make_unique<MatmulListKernel>(program, kernels, chip);
}

}  // namespace ridge::cuda
