#include "backend/gpu/launch_lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "backend/gpu/make.h"
#include "backend/gpu/memory_use.h"

namespace ridge::gpu {
namespace {

// Groups with equal signatures have equal texts, up to sizes.
std::string signature_of(const TileGroup& group) {
  std::string text = fmt::format("{};", int(group.form));
  for (const TileNode& n : group.nodes) {
    text += fmt::format("{} {} {} {} {} {} {} {}", int(n.kind), int(n.op), int(n.dtype), n.in[0], n.in[1], n.in[2], n.stream, n.value);
    if (n.access >= 0) {
      const TileAccess& a = group.accesses[size_t(n.access)];
      text += fmt::format(" {} {} {} {}", a.operand, int(a.dtype), a.gather, a.bounds.size());
    }
    text += ';';
  }
  return text;
}

class Lists {
 public:
  Lists(Program& program, std::span<const std::unique_ptr<Kernel>> alone, const KernelMaker& maker)
      : program_(program), alone_(alone), maker_(maker), most_bytes_(maker.chip().l2_bytes / 2) {}

  std::vector<LaunchList> find(const std::vector<char>& taken) {
    for (size_t i = 0; i < program_.kernels.size(); ++i) {
      const MemoryUse used = memory_use(program_, program_.kernels[i]);
      for (auto it = open_.begin(); it != open_.end();) it = it->second.used.conflicts(used) ? close(it) : std::next(it);
      const std::string key = taken[i] || !alone_[i] ? std::string() : key_of(program_.kernels[i]);
      if (key.empty() || bytes_of(used) > most_bytes_) continue;
      auto it = open_.find(key);
      if (it != open_.end() && bytes_of(together(it->second.used, used)) > most_bytes_) close(it), it = open_.end();
      Open& list = it == open_.end() ? open_[key] : it->second;
      list.kernels.push_back(i);
      list.used = together(list.used, used);
    }
    while (!open_.empty()) close(open_.begin());
    return std::move(lists_);
  }

 private:
  struct Open {
    std::vector<size_t> kernels;
    MemoryUse used;
  };

  int64_t bytes_of(const MemoryUse& used) const {
    int64_t bytes = 0;
    for (const std::set<int>* memory : {&used.read, &used.written})
      for (int i : *memory) bytes += program_.buffers[size_t(i)].bytes;
    return bytes;
  }

  std::string key_of(const ProgramKernel& kernel) const {
    if (kernel.group.kind == Group::Kind::matmul) return maker_.matmul_key(program_, kernel);
    if (kernel.group.kind != Group::Kind::tile || kernel.tiles.empty()) return {};
    std::string key = signature_of(kernel.tiles[0]);
    for (const TileGroup& t : kernel.tiles)
      if (t.accumulator >= 0 || (&t != &kernel.tiles[0] && signature_of(t) != key)) return {};
    return key;
  }

  std::map<std::string, Open>::iterator close(std::map<std::string, Open>::iterator it) {
    const std::vector<size_t>& kernels = it->second.kernels;
    if (kernels.size() > 1) {
      int launches = 0;
      for (size_t i : kernels) launches += alone_[i]->launches();
      std::unique_ptr<Kernel> kernel = made(kernels);
      if (kernel && kernel->launches() < launches) {
        for (size_t i : kernels) extend_lives(program_, program_.kernels[i], kernels.back());
        lists_.push_back({kernels, std::move(kernel)});
      }
    }
    return open_.erase(it);
  }

  std::unique_ptr<Kernel> made(const std::vector<size_t>& kernels) const {
    if (program_.kernels[kernels[0]].group.kind == Group::Kind::matmul) {
      std::vector<const ProgramKernel*> products;
      for (size_t i : kernels) products.push_back(&program_.kernels[i]);
      return maker_.matmuls(program_, products);
    }
    std::vector<TileGroup> groups;
    for (size_t i : kernels) groups.insert(groups.end(), program_.kernels[i].tiles.begin(), program_.kernels[i].tiles.end());
    return make_tile_kernel(groups, maker_.chip());
  }

  Program& program_;
  std::span<const std::unique_ptr<Kernel>> alone_;
  const KernelMaker& maker_;
  // What a list uses stays in the cache until its last kernel runs, so nothing is read from memory once more.
  const int64_t most_bytes_;
  std::map<std::string, Open> open_;  // by key
  std::vector<LaunchList> lists_;
};

}  // namespace

std::vector<LaunchList> find_launch_lists(Program& program, std::span<const std::unique_ptr<Kernel>> alone, const std::vector<char>& taken,
                                          const KernelMaker& maker) {
  return Lists(program, alone, maker).find(taken);
}

}  // namespace ridge::gpu
