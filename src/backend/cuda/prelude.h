// The start of every kernel text: number types and their conversions, the random function, arithmetic that matches the CPU's, sums over warps and blocks, and
// the matrix units' instructions. It is our own, so that compiling needs no include path.
#pragma once
#include <string>
#include <string_view>

namespace ridge::gpu {
struct KernelText;
}

namespace ridge::cuda {

class Nvrtc;

std::string_view prelude();         // for every text
std::string_view tf32_prelude();    // products of a warp in tf32; after matrix_prelude()
std::string_view matrix_prelude();  // ldmatrix, mma, cp.async, mbarrier, wgmma, bulk copies; texts that multiply include it themselves

std::string source_of(const gpu::KernelText& text);  // the prelude and the text, and what an overlapping kernel needs in order to wait
std::string compile_text(const Nvrtc& nvrtc, const gpu::KernelText& text, const std::string& target);  // machine code of the prelude followed by the text

}  // namespace ridge::cuda
