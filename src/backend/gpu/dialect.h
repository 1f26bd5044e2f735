// The words in which the languages of GPUs differ. Generators that GPUs share write @words instead, and a dialect puts its own in their place:
// text in, text out.
//
//   @entry(threads; name; arguments)  the head of a kernel of so many threads a block ("256", or "256, 3": with so many blocks on a multiprocessor)
//   @block, @thread                   number of the block in the launch, of the thread in its block
//   @barrier, @warp_barrier           all threads of the block, of the warp have come here
//   @shared                           before a declaration: in the memory that a block shares; @aligned(bytes) may follow
//   @dynamic_shared                   declares shared_memory[], of a size that the launch gives
//   @global, @in_shared, @constant    before a type: what a pointer or reference to it points to is in the device's memory, in that which a block shares,
//                                     among the launch's arguments
//   @unroll                           before a loop; a number may follow
//   @shuffle(value, lane), @ballot(test), @count_bits(word), @high_product(a, b), @atomic_add(at, value), @atomic_max(at, value)
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace ridge::gpu {

struct KernelDialect {
  struct Word {
    std::string_view name;  // without @; those that end in "(" take arguments
    std::string_view text;  // empty: the word goes, and the space after it
  };
  std::span<const Word> words;
  std::string (*entry)(std::string_view threads, std::string_view name, std::string_view arguments);

  std::string write(std::string_view text) const;  // with all @words replaced
};

}  // namespace ridge::gpu
