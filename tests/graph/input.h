// An input of a graph, for tests that ask for shapes and types alone.
#pragma once

#include "graph/builder.h"

namespace ridge::test {

inline NodeId in(Builder& b, Shape s, DType t = DType::f32) { return b.graph().input({t, s}, "x"); }

}  // namespace ridge::test
