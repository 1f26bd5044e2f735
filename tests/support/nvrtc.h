// The machine's own NVRTC, for tests that compile kernel texts for chips that are not here.
#pragma once
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/nvrtc.h"
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

  // Wherever Ridge would find it, and where the project's set-up puts it.
  static cuda::LibrarySearch search() {
    cuda::LibrarySearch search = cuda::library_search(0);
    std::error_code error;
    for (std::filesystem::directory_iterator at(source_dir() + "/build/nvrtc/nvidia", error), end; !error && at != end; at.increment(error))
      search.folders.push_back(at->path() / "lib");
    return search;
  }

  // Every text for its chip, on all cores. What a compiler refuses is a failure with its words.
  struct Job {
    cuda::KernelText text;
    std::string target;
  };
  std::vector<std::string> compile(std::span<const Job> jobs) const {
    std::vector<std::string> code(jobs.size()), errors(jobs.size());
    std::atomic<size_t> next = 0;
    auto work = [&] {
      for (size_t i = next++; i < jobs.size(); i = next++) try {
          code[i] = nvrtc_->compile(jobs[i].text, jobs[i].target);
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
    return code;
  }

  const cuda::Nvrtc& nvrtc() const { return *nvrtc_; }

 private:
  std::unique_ptr<cuda::Nvrtc> nvrtc_;
};

}  // namespace ridge::test
