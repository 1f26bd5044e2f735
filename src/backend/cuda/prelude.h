// What every kernel text begins with: number types and their conversion, the random function, arithmetic as the CPU does it, sums over
// warps and blocks, and the instructions of the matrix units. Our own, so that compiling needs no include path.
#pragma once
#include <string>
#include <string_view>

namespace ridge::gpu {
struct KernelText;
}

namespace ridge::cuda {

class Nvrtc;

std::string_view prelude();         // for every text
std::string_view matrix_prelude();  // ldmatrix, mma, cp.async, mbarrier, wgmma, bulk copies: texts that multiply put it first themselves

std::string compile_text(const Nvrtc& nvrtc, const gpu::KernelText& text, const std::string& target);  // machine code of the prelude and the text

}  // namespace ridge::cuda
