// A graph input, for tests that only check shapes and types.
#pragma once

#include "graph/builder.h"

namespace ridge::test {

inline NodeId in(Builder& b, Shape s, DType t = DType::f32) { return b.graph().input({t, s}, "x"); }

}  // namespace ridge::test
