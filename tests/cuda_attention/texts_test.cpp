// Every attention text compiles for every chip, without includes; those that decide training speed spill no registers.
#include <algorithm>

#include "backend/cuda/attention.h"
#include "support/cubin.h"
#include "support/nvrtc.h"

namespace ridge::cuda {
namespace {

class AttentionTexts : public test::NvrtcTest {
 protected:
  static AttentionDesc desc(DType dtype, int64_t dim, double dropout) {
    AttentionDesc d{.batch = 64, .heads = 12, .kv_heads = 12, .queries = 1024, .keys = 1024, .dim = dim, .dtype = dtype};
    d.causal = true, d.dropout = dropout, d.scale = 0.125;
    for (auto* s : {&d.q, &d.k, &d.v, &d.out, &d.dout, &d.dq, &d.dk, &d.dv}) *s = {12 * 1024 * dim, dim, 12 * dim, 1};
    return d;
  }
  static void add(std::vector<Job>& jobs, const AttentionDesc& d, const Chip& chip) {
    for (bool backward : {false, true})
      for (const KernelText& text : make_attention(d, backward, true, chip)->texts())
        if (std::none_of(jobs.begin(), jobs.end(), [&](const Job& j) { return j.text == text && j.target == chip.target(); }))
          jobs.push_back({text, chip.target()});
  }
};

TEST_F(AttentionTexts, CompileForEveryChip) {
  std::vector<Job> jobs;
  for (const Chip& chip : test::all_chips()) {
    AttentionDesc d = desc(chip.bf16() ? DType::bf16 : DType::f16, chip.major == 8 ? 64 : 80, 0.2);
    if (chip.minor) d.mask = AttentionDesc::Mask::boolean, d.has_length = true;
    add(jobs, d, chip);
  }
  AttentionDesc decode = desc(DType::f32, 64, 0);
  decode.queries = 1, decode.mask = AttentionDesc::Mask::additive;
  add(jobs, decode, chip_for(7, 5));
  compile(jobs);
}

TEST_F(AttentionTexts, HotOnesSpillNothing) {
  std::vector<Job> jobs;
  for (double dropout : {0.0, 0.2})
    for (int64_t batch : {1, 64}) {  // few heads are split among blocks
      AttentionDesc d = desc(DType::bf16, 64, dropout);
      d.batch = batch;
      add(jobs, d, chip_for(9, 0));
    }
  const std::vector<test::Cubin::Use> uses = compile(jobs);
  for (size_t i = 0; i < jobs.size(); ++i) EXPECT_EQ(uses[i].frame, 0) << jobs[i].text.entry;
}

}  // namespace
}  // namespace ridge::cuda
