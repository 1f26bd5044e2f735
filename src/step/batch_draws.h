// Makes random draws in a part of a batch use the element numbers of the whole batch.
#pragma once
#include <map>

#include "step/batch_axis.h"

namespace ridge {

// Gives each draw the base and strides of the whole batch of `whole` samples, using its sample axis (from follow_batch), so that elements have the
// same numbers as in a draw for the whole batch. Draws shared by all samples start at 0. `base` is the input with the index of the first
// sample. Draws that already count this way are left alone; `changed` is set if any draw was rewritten. ErrorCode::unsupported names a draw
// whose base is not a fixed number of elements per sample.
std::vector<NodeId> count_in_whole_batch(Graph& graph, std::span<const NodeId> roots, NodeId base, int64_t whole, const std::map<uint32_t, DrawAxis>& draws,
                                         bool& changed);

}  // namespace ridge
