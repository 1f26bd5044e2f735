// The kernels of loops over time on every chip: they compile, and everything that a step needs stays in registers and shared memory.
#include <gtest/gtest.h>

#include "backend/gpu/loop_kernel.h"
#include "bench/loop_rows.h"
#include "compile/autocast.h"
#include "compile/pipeline.h"
#include "support/nvrtc.h"

namespace ridge::test {
namespace {

class LoopTexts : public NvrtcTest {};

// The loops of the benchmark's rows, forward and backward; and with factors of fewer bits, on matrix units.
TEST_F(LoopTexts, CompileWithoutSpills) {
  struct Candidates {
    std::string name;
    size_t first, end;
  };
  std::vector<Job> jobs;
  std::vector<Candidates> loops;
  std::vector<std::string> notes;
  for (cuda::Chip chip : all_chips()) {
    if (!chip.wgmma() && !is_set("RIDGE_FULL")) continue;
    for (Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16}) {
      chip.f32_products = precision == Precision::tf32 ? precision : Precision::fp32;
      for (const bench::LoopRow& row : bench::loop_formulas()) {
        Graph graph;
        Builder b(graph);
        bench::Formula f = row.trace(b);
        if (precision == Precision::bf16) f.outputs = autocast(graph, f.outputs, DType::bf16);
        const Program program = compile_graph(graph, f.inputs, f.outputs, {}, {});
        for (const ProgramKernel& kernel : program.kernels) {
          if (!kernel.loop) continue;
          const size_t first = jobs.size();
          for (const auto& candidate : gpu::make_loop_kernels(kernel, chip).kernels)
            if (precision == Precision::fp32 || candidate->note().find("on matrix units") != std::string::npos)
              jobs.push_back({candidate->texts()[0], chip.target()}), notes.push_back(candidate->note());
          if (jobs.size() > first) loops.push_back({fmt::format("{} {} {}", row.name, name(precision), chip.target()), first, jobs.size()});
        }
      }
    }
  }
  EXPECT_GE(loops.size(), 35u);
  const std::vector<Cubin::Use> uses = compile(jobs, is_set("RIDGE_FULL") ? ".full" : "");
  for (const Candidates& loop : loops) {
    bool fits = false;
    for (size_t i = loop.first; i < loop.end; ++i) {
      if (std::getenv("TEST_PRINT")) fmt::print("{:40} {} registers, frame {}: {}\n", loop.name, uses[i].registers, uses[i].frame, notes[i]);
      EXPECT_GT(uses[i].registers, 0) << loop.name;
      fits |= uses[i].frame == 0;
    }
    EXPECT_TRUE(fits || loop.name.find("sm_90a") == std::string::npos) << loop.name << ": every candidate spills";
  }
}

}  // namespace
}  // namespace ridge::test
