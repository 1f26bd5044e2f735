// Products built by every variant: the bits of the model's choice where the variant promises them, and right results everywhere.
#include "matmul_case.h"

namespace ridge::cpu {
namespace {

std::vector<MatmulDesc> products() {
  std::vector<MatmulDesc> all;
  for (int form = 0; form < 8; ++form) all.push_back(plain(45 + 8 * form, 65, 90 + 80 * (form & 3), form & 1, form & 2, form & 4));
  all.push_back(plain(3, 301, 67)), all.push_back(plain(101, 12, 67)), all.push_back(plain(1, 64, 330)), all.push_back(plain(97, 64, 330, true));
  for (const DType t : {DType::bf16, DType::f16}) {
    MatmulDesc d = plain(40, 48, 330);
    d.a_type = d.b_type = d.c_type = t;
    all.push_back(d);
    d.m = {{40, 331, 0, 48}}, d.k = {{330, 1, 48, 0}};  // rows of A that are no whole pairs
    all.push_back(d);
  }
  for (size_t i = 0, count = all.size(); i < count; i += 3) all.push_back(all[i]), all.back().epilogue_scratch = 192;
  MatmulDesc batches = plain(40, 48, 33);
  batches.batch = {{3, 40 * 33, 33 * 48, 40 * 48}};
  all.push_back(batches);
  return all;
}

TEST(ProductVariants, KeepTheBitsOrTheValues) {
  for (const MatmulDesc& d : products())
    for (const bool small_caches : {false, true}) {
      for (const IsaTier tier : small_caches ? tiers() : std::vector<IsaTier>{isa_tier()}) {
        MatmulModel model;
        if (small_caches) model.l2 = 4096, model.tiny_flops = 0, model.depth = 70;  // many units, blocks and bands
        Case c(d, 3, model);
        const std::vector<std::byte> expected = c.run(tier, {.threads = 2, .run = 2, .seed = 4});
        const std::vector<Truth> truth = c.double_loop();
        for (const NamedVariant& v : kernel_variants()) {
          if (v.kind != Tunable::product) continue;
          SCOPED_TRACE(testing::Message() << v.name << ", " << size_of_loops(d.m) << "x" << size_of_loops(d.n) << "x" << size_of_loops(d.k) << " "
                                          << name(tier));
          c.variant = {}, v.set(c.variant);
          const std::vector<std::byte> got = c.run(tier, {.threads = 3, .run = 2, .seed = 5});
          if (v.same_bits) {
            EXPECT_EQ(got, expected);
          }
          c.compare(got, truth);
          if (HasFailure()) return;
        }
      }
    }
}

// Each of them changes something for at least one of these products; otherwise it would be measured in vain.
TEST(ProductVariants, Differ) {
  for (const NamedVariant& v : kernel_variants()) {
    if (v.kind != Tunable::product) continue;
    bool differs = false;
    for (const MatmulDesc& d :
         {plain(512, 512, 2048), plain(300, 4096, 600, true), plain(512, 4096, 640, false, true), plain(12, 2048, 600), plain(40, 96, 200)}) {
      MatmulDesc pairs = d;
      pairs.a_type = pairs.b_type = DType::bf16;
      for (const MatmulDesc& desc : {d, pairs}) {
        KernelVariant variant;
        v.set(variant);
        auto shape = [&](const KernelVariant& with) {
          const auto kernel = make_matmul(desc, with);
          std::vector<Task> tasks;
          const std::vector<Ref> refs = {{0, 0}, {1, 0}, {2, 0}};
          kernel->bind(refs, {3, 0}, tasks);
          std::vector<double> figures = {double(kernel->workspace_bytes()), double(kernel->scratch_bytes())};
          for (const Task& t : tasks) figures.push_back(double(t.units)), figures.push_back(t.unit_ns);
          return figures;
        };
        differs |= shape(variant) != shape({});
      }
    }
    // The order of units is not visible from outside, pairs only exist on some processors, and epilogues are added by the program.
    if (!v.name.starts_with("band=") && v.name != "pairs=off" && v.name != "epilogue=apart") {
      EXPECT_TRUE(differs) << v.name;
    }
  }
}

}  // namespace
}  // namespace ridge::cpu
