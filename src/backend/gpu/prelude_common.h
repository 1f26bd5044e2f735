// The parts of a kernel text's prelude that GPUs share. A backend's own prelude defines the types and instructions that they use, and puts them
// between its parts in this order.
#pragma once
#include <string_view>

namespace ridge::gpu {

std::string_view elements_prelude();    // element types as they are in memory and in registers
std::string_view random_prelude();      // the random function, as base/rng.h
std::string_view arithmetic_prelude();  // arithmetic of one element, after maximum() and minimum() of floats
std::string_view functions_prelude();   // activations, conversions and what reductions join, after near_quotient() and exp_below()
std::string_view joins_prelude();       // reductions over lanes and vectors, after exchanged() of a number between lanes

}  // namespace ridge::gpu
