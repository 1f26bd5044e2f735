// Where and in which format a resumed run continues: as before, unless this call says otherwise or the device is missing; then that is reported.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "backend/backend.h"
#include "base/error.h"
#include "machine/gpus.h"
#include "support/cuda_device.h"
#include "support/variable.h"
#include "tasks/gpt/run.h"
#include "train/run_state.h"

namespace ridge {
namespace {

class DeviceResume : public test::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    if (test::tests_real_gpu()) GTEST_SKIP() << "needs the simulated GPU";
    cache_.emplace("RIDGE_CACHE", folder_ / "cache");
    simulator_.emplace(), two_gpus_.emplace("FAKE_GPU_COUNT", "2");
    std::ofstream file(folder_ / "text.txt");
    for (int i = 0; i < 400; ++i) file << "line " << i << " of a text that is long enough to be cut into windows\n";
  }

  // A run's newest checkpoint, with only the parts that planning reads.
  void leave_checkpoint(std::map<std::string, std::string> choices) const {
    StepChoices made;
    made.batch = made.micro = made.evaluation = 4, made.isa = "some device";
    RunState state;
    state.step.attempted = 2, state.choices = made.words();
    for (const auto& [what, value] : choices) state.choices[what] = value;
    std::filesystem::remove_all(folder_ / "run");
    CheckpointContent content;
    content.step = 2, content.texts["state.json"] = to_json(state);
    CheckpointStore(folder_ / "run/checkpoints").save(content);
  }
  GptRun resume_run(std::vector<std::string> words, bool resume = true) const {
    words.insert(words.begin(), {"preset=tiny", "layers=1", "width=16", "heads=2", "block=16", "batch=4", "steps=9", "sample_interval=none"});
    config::Sources sources;
    sources.task = config::task_bit("gpt"), sources.working_folder.reset(), sources.words = words;
    RunOptions options;
    options.data = folder_ / "text.txt", options.measure = false, options.folder = folder_ / "run", options.resume = resume;
    return plan_gpt_run(config::resolve(sources), options);
  }
  static Decision decision(const GptRun& run, const std::string& setting) {
    for (const Decision& d : run.decisions)
      if (d.setting == setting) return d;
    return {};
  }
  static bool told(const GptRun& run, const std::string& part) {
    return run.fallback.find(part) != std::string::npos ||
           std::any_of(run.notices.begin(), run.notices.end(), [&](const std::string& line) { return line.find(part) != std::string::npos; });
  }
  static int64_t host_bytes(const GptRun& run, const std::string& what) {
    for (const MemoryItem& item : run.host_memory)
      if (item.what == what) return item.bytes;
    return 0;
  }

  test::TempFolder folder_;
  std::optional<test::Variable> cache_, two_gpus_;
  std::optional<test::Simulator> simulator_;
};

TEST_F(DeviceResume, StaysOnTheDeviceOfTheRun) {
  leave_checkpoint({});  // from a time when only the CPU was available
  EXPECT_EQ(decision(resume_run({"device=auto"}), "device").value, "cpu");
  leave_checkpoint({{kDeviceChoice, "cuda:0"}});
  const GptRun same = resume_run({"device=auto"});
  EXPECT_EQ(decision(same, "micro-batch").decided_by, "the run so far");
  EXPECT_EQ(decision(same, "device").value, "cuda:0");
  EXPECT_EQ(decision(same, "device").decided_by, "the run so far");
  EXPECT_EQ(decision(resume_run({"device=cuda"}), "device").value, "cuda:0");
  EXPECT_EQ(decision(resume_run({"device=cpu"}), "device").value, "cpu");
  leave_checkpoint({{kDeviceChoice, "cuda:1"}});
  if (gpus().cuda_devices() > 1) {  // only if the machine was probed with two: the result is remembered
    EXPECT_EQ(decision(resume_run({"device=cuda"}), "device").value, "cuda:1") << "of two alike the one that the run was on";
  }
  EXPECT_EQ(decision(resume_run({"device=cuda:0"}), "device").value, "cuda:0");
  leave_checkpoint({{kDeviceChoice, "cuda:7"}});
  const GptRun other = resume_run({"device=cuda"});
  EXPECT_EQ(decision(other, "device").value, "cuda:0");
  EXPECT_TRUE(told(other, "cuda:7"));
}

TEST_F(DeviceResume, KeepsThePrecisionOfTheRun) {
  leave_checkpoint({{kDeviceChoice, "cuda:0"}, {"precision", "bf16"}});
  const GptRun narrow = resume_run({"device=cpu"});
  EXPECT_EQ(narrow.step->plan().choices.precision, Precision::bf16);
  EXPECT_EQ(decision(narrow, "precision").value, "bf16") << "what is shown is what is used";
  EXPECT_EQ(decision(narrow, "precision").decided_by, "the run so far");
  const GptRun told_otherwise = resume_run({"device=cpu", "precision=fp32"});
  EXPECT_EQ(told_otherwise.step->plan().choices.precision, Precision::fp32);
  EXPECT_EQ(decision(told_otherwise, "precision").value, "fp32");

  leave_checkpoint({{kDeviceChoice, "cuda:0"}, {"precision", "tf32"}});
  const GptRun coarse = resume_run({"device=cpu"});  // the CPU has no such unit
  EXPECT_EQ(coarse.step->plan().choices.precision, Precision::fp32);
  EXPECT_EQ(decision(coarse, "precision").value, "fp32");
  EXPECT_TRUE(told(coarse, "fp32 instead of tf32"));
  EXPECT_THROW(resume_run({"device=cpu", "no_fallback=true"}), Error);
  EXPECT_EQ(resume_run({"device=cuda"}).step->plan().choices.precision, Precision::tf32);
}

TEST_F(DeviceResume, CountsCheckpointCopiesOnlyIfSaved) {
  const GptRun keeps = resume_run({"device=cuda"}, false), none = resume_run({"device=cuda", "checkpoint_interval=none"}, false);
  EXPECT_GT(host_bytes(keeps, "copies for checkpoints"), 0);
  EXPECT_EQ(host_bytes(none, "copies for checkpoints"), 0);
  EXPECT_EQ(3 * host_bytes(none, "copy of the weights"), host_bytes(keeps, "copies for checkpoints"));
}

TEST_F(DeviceResume, AutoIsNotAUserDecision) {
  EXPECT_NE(decision(resume_run({"device=auto"}, false), "device").decided_by, "command line");
  EXPECT_EQ(decision(resume_run({"device=cuda"}, false), "device").decided_by, "command line");
}

}  // namespace
}  // namespace ridge
