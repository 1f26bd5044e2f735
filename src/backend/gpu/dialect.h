// The constructs in which GPU languages differ. Shared generators write @words, and a dialect replaces each with its own spelling: text in, text out.
//
//   @entry(threads; name; arguments)  the signature of a kernel with this many threads per block ("256", or "256, 3": with 3 blocks per multiprocessor, or
//                                     "256, 1, 4": in clusters of 4 blocks)
//   @block, @thread                   index of the block in the launch, of the thread in its block
//   @barrier, @warp_barrier           waits for all threads of the block, of the warp
//   @shared                           before a declaration: in the block's shared memory; @aligned(bytes) may follow
//   @dynamic_shared                   declares shared_memory[], whose size the launch sets
//   @global, @in_shared, @constant    before a type: a pointer or reference to it refers to device memory, to the block's shared memory,
//                                     to the launch's arguments
//   @unroll                           before a loop; a number may follow
//   @near_division                    defines near_reciprocal(x), for x of at least 1, and full_quotient(a, b), both without branches and within 2 units in the
//                                     last place
//   @row_copies                       defines copy_ahead<V, aligned>(to, from, if), which asks for V elements in shared memory, for the same thread;
//   end_copies(),
//                                     which ends a group of them; wait_for_copies(left), which waits for all but the last `left` groups
//   @matrix_units                     defines what the following words need; only where GpuChip::matrix_units
//   @clusters                         defines what the following words need; only where GpuChip::blocks_of_cluster is more than 1
//   @cluster_rank, @cluster_barrier   the block's number in its cluster; waits for all threads of the cluster
//   @cluster_store(at, value, blocks) to where `at` is in the shared memory of each of the cluster's blocks
//   @cluster_prepare(barriers, warps) before the first turn, with a @cluster_barrier behind it: two u64 in shared memory that take turns
//   @cluster_send(at, quad, barriers, turn, rank, blocks)   four words to where `at` is in the other blocks of the cluster
//   @cluster_meet(barriers, turn, bytes)                    waits for all warps of the block and for `bytes` from the other blocks, which send what they have
//                                     read everything for. In each turn every warp sends something.
//   @tf32(word), @bf16_pair(low, high), @f16_pair(low, high)   factors of products as words: the bits of one f32 number, rounded, or of two numbers
//   @multiply_tf32(sums, a, b0, b1), @multiply_bf16(…), @multiply_f16(…)
//       A warp's sums += A · B; with g = lane / 4 and t = lane % 4, a lane has sums[4] of A's lines g, g, g + 8, g + 8 and B's columns 2t, 2t + 1, 2t, 2t + 1;
//       words a[4] of A's lines g, g + 8, g, g + 8, and words b0, b1 of B's column g. The depth of word i of lane t is the same in a[2i], a[2i + 1] and b[i].
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
