#include "backend/cpu/node_kernels.h"

#include "backend/cpu/node_parts.h"
#include "backend/cpu/sort_kernel.h"

namespace ridge::cpu {
namespace {

constexpr int64_t kCopyBytes = 256 * 1024;

void run_copy(const void* args, int64_t begin, int64_t end, Worker& worker) {
  const FlatCopy& c = *static_cast<const FlatCopy*>(args);
  const int64_t first = begin * kCopyBytes, last = std::min(end * kCopyBytes, c.bytes);
  std::byte* to = worker.at<std::byte>(c.to);
  const std::byte* from = worker.at<std::byte>(c.from);
  if (to != from) std::memcpy(to + first, from + first, size_t(last - first));
}

}  // namespace

void FlatCopy::append(std::vector<Task>& tasks) const {
  if (from.base == to.base && from.offset == to.offset) return;
  append_task(tasks, run_copy, this, blocks(bytes, kCopyBytes), double(std::min(bytes, kCopyBytes)) * 0.1);
}

// Each is defined in its own file.
std::unique_ptr<Kernel> make_scatter(const Graph& graph, NodeId node);  // scatter and scatter_add
std::unique_ptr<Kernel> make_take_grad(const Graph& graph, NodeId node);
std::unique_ptr<Kernel> make_dynamic_update_slice(const Graph& graph, NodeId node);
std::unique_ptr<Kernel> make_pad(const Graph& graph, NodeId node);
std::unique_ptr<Kernel> make_fold(const Graph& graph, NodeId node);
std::unique_ptr<Kernel> make_cumsum(const Graph& graph, NodeId node);

std::unique_ptr<Kernel> make_node_kernel(const Graph& graph, NodeId node) {
  using Make = std::unique_ptr<Kernel>(const Graph&, NodeId);
  static constexpr NodeMaker<Make> makers[] = {
      {Op::scatter, make_scatter},
      {Op::scatter_add, make_scatter},
      {Op::take_grad, make_take_grad},
      {Op::fold, make_fold},
      {Op::cumsum, make_cumsum},
      {Op::sort, make_sort},
      {Op::pad, make_pad},
      {Op::dynamic_update_slice, make_dynamic_update_slice},
  };
  return maker_of<Make>(makers, graph[node].op)(graph, node);
}

}  // namespace ridge::cpu
