// Random draws of a part of a batch, counted as in the whole batch.
#pragma once
#include <map>

#include "step/batch_axis.h"

namespace ridge {

// Gives each draw the base and strides of the whole batch, of `whole` samples, by where its samples are (follow_batch): element numbers are
// those of the draw that the whole batch would make. Draws that all samples share begin at 0. `base` is the input that numbers the first
// sample. Draws that count so already stay as they are; `changed` says whether there were others. ErrorCode::unsupported names a draw
// whose base is not so many elements for each sample.
std::vector<NodeId> count_in_whole_batch(Graph& graph, std::span<const NodeId> roots, NodeId base, int64_t whole, const std::map<uint32_t, DrawAxis>& draws,
                                         bool& changed);

}  // namespace ridge
