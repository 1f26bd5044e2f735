// The machine's NVRTC, for tests that compile kernel texts for chips this machine does not have.
#pragma once
#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "backend/cuda/kernel.h"
#include "backend/cuda/prelude.h"
#include "drivers/nvrtc.h"
#include "support/cubin.h"
#include "support/pins.h"
#include "support/sanitized.h"
#include "support/source_dir.h"
#include "support/variable.h"

namespace ridge::test {

// From the oldest supported chip to the newest.
inline const std::vector<cuda::Chip>& all_chips() {
  static const std::vector<cuda::Chip> chips = {cuda::chip_for(7, 5), cuda::chip_for(8, 0), cuda::chip_for(8, 6), cuda::chip_for(8, 9), cuda::chip_for(9, 0)};
  return chips;
}

// In continuous integration NVRTC is required; elsewhere these tests are skipped without it. Under sanitizers, which intercept library loading, NVRTC cannot
// find its parts.
class NvrtcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (sanitized()) GTEST_SKIP() << "NVRTC does not work under sanitizers";
    try {
      nvrtc_ = std::make_unique<cuda::Nvrtc>(search());
    } catch (const Error& e) {
      if (is_continuous_integration()) FAIL() << e.what();
      GTEST_SKIP() << "NVRTC is not installed";
    }
  }

  // Where the project's setup installs it, else wherever Ridge would find it.
  static cuda::LibrarySearch search() {
    cuda::LibrarySearch search = cuda::library_search(0);
    std::error_code error;
    for (std::filesystem::directory_iterator at(source_dir() + "/build/nvrtc/nvidia", error), end; !error && at != end; at.increment(error))
      search.first.push_back(at->path() / "lib");
    return search;
  }

  struct Job {
    cuda::KernelText text;
    std::string target;
  };
  // Checks the resources that every text needs on its chip. For a text that the pinned compiler has already compiled, the machine code is stored by the text's
  // digest, so only changed texts are compiled, plus a sample to check that the compiler still matches the stored results; RIDGE_FULL=1 compiles all. A
  // compiler error fails the test with its message, and so does machine code that differs from the stored one (`variant` separates sets of texts that one test
  // compiles in turn).
  std::vector<Cubin::Use> compile(std::span<const Job> jobs, const std::string& variant = {}) const {
    const std::string name = pin_name(variant);
    std::map<std::string, std::string> known;  // text digest -> stored facts about its machine code
    if (is_pinned() && !is_set("RIDGE_FULL") && !is_set("TEST_WRITE_PINS"))
      for (Pin& pin : stored_pins(name))
        if (!pin.source.empty()) known[pin.source] = std::move(pin.line);
    std::vector<Pin> pins(jobs.size());
    std::vector<size_t> left;
    size_t changed = 0;
    for (size_t i = 0; i < jobs.size(); ++i) {
      pins[i] = {{}, jobs[i].text.entry, text_digest(jobs[i])};
      const auto found = known.find(pins[i].source);
      if (found != known.end()) pins[i].line = found->second;
      changed += found == known.end();
      if (found == known.end() || i % 16 == 0) left.push_back(i);
    }
    compile_now(jobs, left, pins);
    std::vector<Cubin::Use> uses(jobs.size());
    for (size_t i = 0; i < jobs.size(); ++i)
      std::ignore = std::sscanf(pins[i].line.c_str(), "%*s %*s %d registers %d frame %" SCNd64, &uses[i].registers, &uses[i].frame, &uses[i].shared);
    if (HasFailure()) return uses;
    if (!is_pinned()) return refuse_other_compiler(), uses;
    expect_pins(name, std::move(pins));
    if (!known.empty() && changed > 0 && !HasFailure())
      fmt::print("{} changed texts have the machine code that is stored; TEST_WRITE_PINS=1 stores the texts too, so that they are not compiled again\n",
                 changed);
    return uses;
  }

  const cuda::Nvrtc& nvrtc() const { return *nvrtc_; }

 private:
  static constexpr const char* kPinned = "13.4 126425752";  // the version that tools/setup.sh installs

  bool is_pinned() const { return nvrtc_->identity() == kPinned; }
  static bool is_continuous_integration() {
    const char* ci = std::getenv("CI");
    return ci && std::string(ci) == "true";
  }
  void refuse_other_compiler() const {
    const std::string why = fmt::format("digests are of NVRTC {}, this is {} ({})", kPinned, nvrtc_->identity(), nvrtc_->path());
    if (is_continuous_integration()) FAIL() << why;
    GTEST_SKIP() << why;
  }
  // Digest of all compiler inputs, including the requested shared memory.
  static std::string text_digest(const Job& job) {
    std::string all = fmt::format("{}\n{} {}", cuda::source_of(job.text), job.text.entry, job.text.shared);
    for (const std::string& option : cuda::Nvrtc::options(job.target)) all += ' ' + option;
    return checksum_of(all).substr(0, 16);
  }
  // Compiles the jobs with these indices on all cores.
  void compile_now(std::span<const Job> jobs, std::span<const size_t> numbers, std::vector<Pin>& pins) const {
    std::vector<std::string> errors(jobs.size());
    std::atomic<size_t> next = 0;
    auto work = [&] {
      for (size_t n = next++; n < numbers.size(); n = next++) try {
          const size_t i = numbers[n];
          const std::string code = cuda::compile_text(*nvrtc_, jobs[i].text, jobs[i].target);
          const Cubin cubin(code);
          const Cubin::Use use = cubin.use_of(jobs[i].text.entry);
          pins[i].line = fmt::format("{:7} {} {:3} registers {:4} frame {:6} + {:6} shared", jobs[i].target, cubin.digest(), use.registers, use.frame,
                                     use.shared, jobs[i].text.shared);
        } catch (const std::exception& e) {
          errors[numbers[n]] = e.what();
        }
    };
    {
      std::vector<std::jthread> team;
      for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) team.emplace_back(work);
    }
    for (size_t i : numbers) EXPECT_TRUE(errors[i].empty()) << jobs[i].text.entry << " for " << jobs[i].target << ": " << errors[i];
  }
  static std::string pin_name(const std::string& variant) {
    const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = fmt::format("{}.{}{}", test.test_suite_name(), test.name(), variant);
    std::replace(name.begin(), name.end(), '/', '.');
    return "digests/" + name;
  }

  std::unique_ptr<cuda::Nvrtc> nvrtc_;
};

}  // namespace ridge::test
