// The machine's own NVRTC, for tests that compile kernel texts for chips that are not here.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "backend/cuda/kernel.h"
#include "backend/cuda/prelude.h"
#include "drivers/nvrtc.h"
#include "support/cubin.h"
#include "support/pins.h"
#include "support/source_dir.h"

namespace ridge::test {

// From the oldest chip that is served to the newest.
inline const std::vector<cuda::Chip>& all_chips() {
  static const std::vector<cuda::Chip> chips = {cuda::chip_for(7, 5), cuda::chip_for(8, 0), cuda::chip_for(8, 6), cuda::chip_for(8, 9), cuda::chip_for(9, 0)};
  return chips;
}

// Where continuous integration says that it is at work, NVRTC must be there; elsewhere these tests are skipped without it. Under sanitizers,
// which open libraries in their own way, it does not find its parts.
class NvrtcTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "NVRTC does not work under sanitizers";
#endif
    try {
      nvrtc_ = std::make_unique<cuda::Nvrtc>(search());
    } catch (const Error& e) {
      const char* ci = std::getenv("CI");
      if (ci && std::string(ci) == "true") FAIL() << e.what();
      GTEST_SKIP() << "NVRTC is not installed";
    }
  }

  // Where the project's set-up puts it, else wherever Ridge would find it.
  static cuda::LibrarySearch search() {
    cuda::LibrarySearch search = cuda::library_search(0);
    std::error_code error;
    for (std::filesystem::directory_iterator at(source_dir() + "/build/nvrtc/nvidia", error), end; !error && at != end; at.increment(error))
      search.first.push_back(at->path() / "lib");
    return search;
  }

  // Every text for its chip, on all cores. What a compiler refuses is a failure with its words; so is machine code other than that stored
  // for this test (`variant` tells apart sets of texts that one test compiles in turn).
  struct Job {
    cuda::KernelText text;
    std::string target;
  };
  std::vector<std::string> compile(std::span<const Job> jobs, const std::string& variant = {}) const {
    std::vector<std::string> code(jobs.size()), errors(jobs.size());
    std::atomic<size_t> next = 0;
    auto work = [&] {
      for (size_t i = next++; i < jobs.size(); i = next++) try {
          code[i] = cuda::compile_text(*nvrtc_, jobs[i].text, jobs[i].target);
        } catch (const std::exception& e) {
          errors[i] = e.what();
        }
    };
    {
      std::vector<std::jthread> team;
      for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) team.emplace_back(work);
    }
    for (size_t i = 0; i < jobs.size(); ++i)
      EXPECT_TRUE(errors[i].empty() && !code[i].empty()) << jobs[i].text.entry << " for " << jobs[i].target << ": " << errors[i];
    if (!HasFailure()) compare_digests(jobs, code, variant);
    return code;
  }

  const cuda::Nvrtc& nvrtc() const { return *nvrtc_; }

 private:
  void compare_digests(std::span<const Job> jobs, std::span<const std::string> code, const std::string& variant) const {
    constexpr const char* kPinned = "13.4 126425752";  // the version that tools/setup.sh installs
    const char* ci = std::getenv("CI");
    if (nvrtc_->identity() != kPinned && !(ci && std::string(ci) == "true"))
      GTEST_SKIP() << "digests are of NVRTC " << kPinned << ", this is " << nvrtc_->identity() << " (" << nvrtc_->path() << ")";
    std::vector<Pin> pins;
    for (size_t i = 0; i < jobs.size(); ++i) {
      const Cubin cubin(code[i]);
      const Cubin::Use use = cubin.use_of(jobs[i].text.entry);
      pins.push_back({fmt::format("{:7} {} {:3} registers {:4} frame {:6} + {:6} shared", jobs[i].target, cubin.digest(), use.registers, use.frame, use.shared,
                                  jobs[i].text.shared),
                      jobs[i].text.entry});
    }
    const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = fmt::format("{}.{}{}", test.test_suite_name(), test.name(), variant);
    std::replace(name.begin(), name.end(), '/', '.');
    expect_pins("digests/" + name, std::move(pins));
  }

  std::unique_ptr<cuda::Nvrtc> nvrtc_;
};

}  // namespace ridge::test
