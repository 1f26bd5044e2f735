// Every attention text compiles for every chip, without includes.
#include "backend/cuda/attention.h"
#include "support/nvrtc.h"

namespace ridge::cuda {
namespace {

class AttentionTexts : public test::NvrtcTest {};

TEST_F(AttentionTexts, CompileForEveryChip) {
  std::vector<Job> jobs;
  for (const Chip& chip : test::all_chips())
    for (DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (bool backward : {false, true}) {
        AttentionDesc d{.heads = 4, .kv_heads = 4, .queries = 256, .keys = 256, .dim = dtype == DType::f16 ? 128 : 64, .dtype = dtype};
        d.causal = true;
        if (dtype == DType::f32) d.mask = AttentionDesc::Mask::additive, d.has_length = true;
        d.dropout = chip.major == 7 || dtype == DType::f16 ? 0.2 : 0;
        for (auto* s : {&d.q, &d.k, &d.v, &d.out, &d.dout, &d.dq, &d.dk, &d.dv}) *s = {4 * 256 * d.dim, d.dim, 4 * d.dim, 1};
        for (const KernelText& text : make_attention(d, backward, true, chip)->texts()) jobs.push_back({text, chip.target()});
      }
  compile(jobs);
}

}  // namespace
}  // namespace ridge::cuda
