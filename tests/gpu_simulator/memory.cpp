#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

namespace simulator {
namespace {

constexpr size_t kPage = 4096, kAligned = 256;
constexpr unsigned char kUnset = 0xff, kBorder = 0xa7;
constexpr size_t kUnsetBytes = 16 << 20;  // bytes of an allocation set to NaN; the rest is zero

struct Block {
  char* whole = nullptr;
  size_t mapped = 0, bytes = 0;
};

std::map<uint64_t, Block> memory;
std::map<uint64_t, size_t> pinned;

bool untouched(const char* from, const char* to) {
  return std::all_of(from, to, [](char byte) { return static_cast<unsigned char>(byte) == kBorder; });
}

std::string beside(uint64_t at, const Block& block) {
  const char* begin = reinterpret_cast<const char*>(at);
  const char* end = begin + block.bytes;
  const char* last = block.whole + block.mapped - kPage;
  if (!untouched(std::max(block.whole + kPage, const_cast<char*>(begin) - kAligned), begin))
    return "a write before an allocation of " + std::to_string(block.bytes) + " bytes";
  if (!untouched(end, last)) return "a write behind an allocation of " + std::to_string(block.bytes) + " bytes";
  return {};
}

}  // namespace

uint64_t allocate_memory(size_t bytes) {
  // Inaccessible pages at both ends; the last byte is as close to the end as the start's alignment allows.
  const size_t inner = (bytes + kAligned + kPage - 1) / kPage * kPage;
  auto* whole = static_cast<char*>(::mmap(nullptr, inner + 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (whole == MAP_FAILED) return 0;
  ::mprotect(whole, kPage, PROT_NONE), ::mprotect(whole + kPage + inner, kPage, PROT_NONE);
  char* first = whole + kPage + (inner - bytes) / kAligned * kAligned;
  std::memset(whole + kPage, kBorder, size_t(first - whole) - kPage);
  std::memset(first + bytes, kBorder, size_t(whole + kPage + inner - first) - bytes);
  std::memset(first, kUnset, std::min(bytes, kUnsetBytes));
  const auto pointer = reinterpret_cast<uint64_t>(first);
  memory[pointer] = {whole, inner + 2 * kPage, bytes};
  return pointer;
}

size_t size_of_memory(uint64_t pointer) {
  const auto found = memory.find(pointer);
  return found == memory.end() ? 0 : found->second.bytes;
}

std::string release_memory(uint64_t pointer) {
  const auto found = memory.find(pointer);
  std::string words = beside(found->first, found->second);
  ::munmap(found->second.whole, found->second.mapped);
  memory.erase(found);
  return words;
}

std::string check_memory() {
  for (const auto& [at, block] : memory)
    if (std::string words = beside(at, block); !words.empty()) return words;
  return {};
}

void* allocate_pinned(size_t bytes) {
  void* pointer = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  if (pointer) pinned[reinterpret_cast<uint64_t>(pointer)] = bytes;
  return pointer;
}

bool release_pinned(void* pointer) {
  if (pinned.erase(reinterpret_cast<uint64_t>(pointer)) == 0) return false;
  std::free(pointer);
  return true;
}

size_t pinned_bytes() {
  size_t sum = 0;
  for (const auto& [pointer, bytes] : pinned) sum += bytes;
  return sum;
}

bool on_device(uint64_t pointer, size_t bytes) {
  if (bytes == 0) return true;
  auto within = [&](uint64_t at, size_t size) { return pointer >= at && bytes <= size && pointer - at <= size - bytes; };
  auto block = memory.upper_bound(pointer);
  if (block != memory.begin() && (--block, within(block->first, block->second.bytes))) return true;
  auto host = pinned.upper_bound(pointer);
  return host != pinned.begin() && (--host, within(host->first, host->second));
}

}  // namespace simulator
