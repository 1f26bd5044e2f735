// Base of tests that run on the machine's GPU or the simulated one, with separate caches.
#pragma once
#include <optional>

#include "support/cuda_device.h"
#include "support/simulator.h"
#include "support/temp_folder.h"
#include "support/variable.h"

namespace ridge::test {

class OnGpu : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    cache_.emplace("RIDGE_CACHE", folder_ / "cache");
    if (!tests_real_gpu()) simulator_.emplace();
  }

  TempFolder folder_;
  std::optional<Variable> cache_;
  std::optional<Simulator> simulator_;
};

}  // namespace ridge::test
