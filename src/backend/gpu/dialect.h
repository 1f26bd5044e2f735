// The constructs in which GPU languages differ. Shared generators write @words, and a dialect replaces each with its own spelling: text in, text out.
//
//   @entry(threads; name; arguments)  the signature of a kernel with this many threads per block ("256", or "256, 3": with 3 blocks per multiprocessor)
//   @block, @thread                   index of the block in the launch, of the thread in its block
//   @barrier, @warp_barrier           waits for all threads of the block, of the warp
//   @shared                           before a declaration: in the block's shared memory; @aligned(bytes) may follow
//   @dynamic_shared                   declares shared_memory[], whose size the launch sets
//   @global, @in_shared, @constant    before a type: a pointer or reference to it refers to device memory, to the block's shared memory,
//                                     to the launch's arguments
//   @unroll                           before a loop; a number may follow
//   @shuffle(value, lane), @ballot(test), @count_bits(word), @high_product(a, b), @atomic_add(at, value), @atomic_max(at, value)
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace ridge::gpu {

struct KernelDialect {
  struct Word {
    std::string_view name;  // without @; a name that ends in "(" takes arguments
    std::string_view text;  // empty: the word and the space after it are removed
  };
  std::span<const Word> words;
  std::string (*entry)(std::string_view threads, std::string_view name, std::string_view arguments);

  std::string write(std::string_view text) const;  // replaces all @words
};

}  // namespace ridge::gpu
