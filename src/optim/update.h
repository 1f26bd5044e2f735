// Shared by the optimizers: argument checks, decay per parameter, and the guard against non-finite gradients.
#pragma once
#include <span>

#include "graph/builder.h"

namespace ridge {

void check_update(const Builder& b, const char* op, std::span<const NodeId> parameters, std::span<const NodeId> gradients, std::span<const double> decay);
void check_state(const Builder& b, const char* op, std::span<const NodeId> parameters, std::span<const NodeId> state);

// One value per parameter, one for all, or none for 0.
inline double decay_of(std::span<const double> decay, size_t i) { return decay.empty() ? 0 : decay.size() == 1 ? decay[0] : decay[i]; }

// `next` if good, else `old`; always `next` when there is no guard.
inline NodeId keep_unless(Builder& b, NodeId good, NodeId next, NodeId old) { return good ? b.select(good, next, old) : next; }

}  // namespace ridge
