// The parts of a kernel text's prelude that GPUs share. A backend's own prelude defines the types and instructions that they use, and includes them in this
// order between its own parts.
#pragma once
#include <string_view>

namespace ridge::gpu {

std::string_view elements_prelude();    // element types in memory and in registers
std::string_view random_prelude();      // the random function of base/rng.h
std::string_view arithmetic_prelude();  // arithmetic on one element; needs maximum() and minimum() of floats
std::string_view functions_prelude();   // activations, conversions, and the joins of reductions; needs near_quotient() and exp_below()
std::string_view joins_prelude();       // reductions over lanes and vectors; needs exchanged(), which exchanges a number between lanes

}  // namespace ridge::gpu
