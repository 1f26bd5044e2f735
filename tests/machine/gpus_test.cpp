#include "machine/gpus.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>

#include "drivers/guarded_call.h"
#include "drivers/nvml.h"
#include "machine/gpus_sysfs.h"
#include "machine/machine_fixtures.h"
#include "support/fake_drivers.h"
#include "support/variable.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

using test::Variable;

std::string fake(const std::string& name) { return test::fake_driver(name); }

// Files of /sys and /proc.
struct Tree : FileTree {
  void pci(const std::string& address, const std::string& kind, const std::string& vendor, const std::string& device) {
    const std::string at = "sys/bus/pci/devices/" + address + "/";
    write(at + "class", kind + "\n"), write(at + "vendor", vendor + "\n"), write(at + "device", device + "\n");
  }
};

GpuScan scan(const std::string& cuda, const std::string& nvml, const fs::path& root = "/nowhere", double seconds = 5) {
  return scan_gpus({.cuda_library = cuda, .nvml_library = nvml, .root = root, .seconds = seconds});
}

TEST(Gpus, AWorkingDriverNamesItsDevices) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const GpuScan found = scan(fake("works"), fake("works"));
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");  // drivers may print, but it is not shown
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ASSERT_EQ(found.gpus.size(), 2u);
  EXPECT_EQ(found.cuda_devices(), 2);
  EXPECT_EQ(found.driver, "550.54.15");
  EXPECT_EQ(found.cuda, 12040);
  EXPECT_EQ(found.no_cuda, "");
  EXPECT_FALSE(found.broken);
  EXPECT_TRUE(found.remarks.empty());
  EXPECT_EQ(found.gpus[0].name, "Fake GPU one");  // tabs and newlines in a name do not break the answer
  EXPECT_EQ(found.gpus[0].pci, "0000:a1:00.0");
  EXPECT_EQ(found.gpus[0].ordinal, 0);
  EXPECT_EQ(found.gpus[0].capability, 90);
  EXPECT_EQ(found.gpus[0].processors, 132);
  EXPECT_EQ(found.gpus[0].memory_total, int64_t(80) << 30);
  EXPECT_EQ(found.gpus[0].memory_free, int64_t(70) << 30);
  EXPECT_EQ(found.gpus[0].busy, 37);
  EXPECT_EQ(found.gpus[0].celsius, 51);
  EXPECT_NEAR(found.gpus[0].watts, 123.456, 1e-9);
  EXPECT_EQ(found.gpus[1].capability, 86);
  EXPECT_EQ(found.gpus[1].busy, -1);  // 4000 % is rejected
}

TEST(Gpus, FreeMemoryComesFromAContextWhereNvmlIsMissing) {
  const GpuScan found = scan(fake("works"), "libno-such-nvml.so.1");
  ASSERT_EQ(found.cuda_devices(), 2);
  EXPECT_EQ(found.gpus[0].memory_free, (int64_t(70) << 30) - 1);
  EXPECT_EQ(found.gpus[1].memory_free, (int64_t(20) << 30) - 1);
  EXPECT_EQ(found.gpus[0].celsius, -1);
}

TEST(Gpus, HiddenDevicesAreNamed) {
  Variable few("FAKE_CUDA_DEVICES", "1");
  const GpuScan found = scan(fake("works"), fake("works"));
  ASSERT_EQ(found.gpus.size(), 2u);
  EXPECT_EQ(found.cuda_devices(), 1);
  EXPECT_EQ(found.gpus[1].ordinal, -1);
  ASSERT_EQ(found.remarks.size(), 1u);
  EXPECT_NE(found.remarks[0].find("1 of 2"), std::string::npos);
}

struct Fault {
  const char *library, *says;
};
class BrokenDriver : public testing::TestWithParam<Fault> {};

TEST_P(BrokenDriver, IsReportedInOneLine) {
  const GpuScan found = scan(fake(GetParam().library), "libno-such-nvml.so.1");
  EXPECT_EQ(found.cuda_devices(), 0);
  EXPECT_TRUE(found.broken);
  ASSERT_EQ(found.remarks.size(), 1u);
  EXPECT_NE(found.remarks[0].find(GetParam().says), std::string::npos) << found.remarks[0];
  EXPECT_EQ(found.remarks[0].find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Gpus, BrokenDriver,
                         testing::Values(Fault{"lacks_symbols", "lacks cuDriverGetVersion"}, Fault{"returns_errors", "cuInit failed"},
                                         Fault{"crashes", "crashed"}, Fault{"crashes_late", "crashed"}, Fault{"exits", "exit code 3"}),
                         [](const auto& info) { return std::string(info.param.library); });

TEST(Gpus, ErrorsHaveARemedy) {
  for (auto [code, remedy] : {std::pair{"100", "CUDA_VISIBLE_DEVICES"}, {"803", "different versions"}, {"802", "fabricmanager"}, {"34", "stub"}}) {
    Variable error("FAKE_CUDA_ERROR", code);
    EXPECT_NE(scan(fake("returns_errors"), "libno-such-nvml.so.1").no_cuda.find(remedy), std::string::npos) << code;
  }
}

TEST(Gpus, AHangingDriverIsAbandoned) {
  const auto start = std::chrono::steady_clock::now();
  const GpuScan found = scan(fake("hangs"), fake("hangs"), "/nowhere", 0.2);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));  // a test that would otherwise never end
  EXPECT_EQ(found.cuda_devices(), 0);
  EXPECT_TRUE(found.slow);
  EXPECT_NE(found.no_cuda.find("did not answer"), std::string::npos);
}

TEST(Gpus, ABrokenNvmlDoesNotDisableCuda) {
  const GpuScan found = scan(fake("works"), fake("crashes"));
  EXPECT_EQ(found.cuda_devices(), 2);
  EXPECT_EQ(found.gpus[0].memory_free, (int64_t(70) << 30) - 1);
  ASSERT_EQ(found.remarks.size(), 1u);
  EXPECT_NE(found.remarks[0].find("NVML"), std::string::npos);
}

TEST(Gpus, AnInvalidLibraryIsBroken) {
  Tree tree;
  tree.write("libcuda.so.1", "this is no library");
  const GpuScan found = scan((tree.root() / "libcuda.so.1").string(), "libno-such-nvml.so.1");
  EXPECT_TRUE(found.broken);
  EXPECT_NE(found.no_cuda.find("cannot be loaded"), std::string::npos);
}

TEST(Gpus, NoGpuIsNotAnError) {
  const GpuScan found = scan("libno-such-cuda.so.1", "libno-such-nvml.so.1");
  EXPECT_TRUE(found.gpus.empty());
  EXPECT_FALSE(found.broken);
  EXPECT_EQ(found.no_cuda, "no NVIDIA driver (libno-such-cuda.so.1 was not found)");
}

TEST(Gpus, OtherGpusAreNamedFromTheBus) {
  Tree tree;
  tree.pci("0000:00:02.0", "0x030000", "0x8086", "0x46a6");
  tree.pci("0000:03:00.0", "0x038000", "0x1002", "0x744c");
  tree.write("sys/bus/pci/devices/0000:03:00.0/mem_info_vram_total", "25753026560\n");
  tree.write("sys/bus/pci/devices/0000:03:00.0/mem_info_vram_used", "1000000000\n");
  tree.pci("0000:04:00.0", "0x030000", "0x1234", "0x1111");  // a virtual machine's display
  tree.pci("0000:05:00.0", "0x020000", "0x8086", "0x1572");  // a network card
  const GpuScan found = scan("libno-such-cuda.so.1", "libno-such-nvml.so.1", tree.root());
  ASSERT_EQ(found.gpus.size(), 2u);
  EXPECT_EQ(found.gpus[0].name, "Intel GPU 46a6");
  EXPECT_EQ(found.gpus[1].name, "AMD GPU 744c");
  EXPECT_EQ(found.gpus[1].memory_free, 24753026560);
  EXPECT_EQ(found.gpus[1].ordinal, -1);
}

TEST(Gpus, HardwareWithoutALibrarySaysWhatIsMissing) {
  Tree tree;
  tree.pci("0000:a1:00.0", "0x030200", "0x10de", "0x2330");
  GpuScan found = scan("libno-such-cuda.so.1", "libno-such-nvml.so.1", tree.root());
  EXPECT_TRUE(found.broken);
  EXPECT_NE(found.no_cuda.find("no NVIDIA driver: install"), std::string::npos) << found.no_cuda;
  tree.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: 12\n");
  found = scan("libno-such-cuda.so.1", "libno-such-nvml.so.1", tree.root());
  EXPECT_EQ(found.driver, "535.104.05");
  EXPECT_NE(found.no_cuda.find("535.104.05 is loaded"), std::string::npos) << found.no_cuda;
  // The driver's answer and the bus refer to the same card.
  found = scan(fake("works"), fake("works"), tree.root());
  EXPECT_EQ(found.gpus.size(), 2u);
}

TEST(Gpus, IgnoresGarbageInSystemFiles) {
  Tree tree;
  for (const std::string& text : {std::string(), std::string("\xff\xfe\n\n"), std::string("0x"), std::string(100000, '9'), std::string("0x03zz00")}) {
    tree.pci("0000:01:00.0", text, text, text);
    tree.pci("not an address", text, "0x1002", text);
    tree.write("sys/class/drm/card0/device/uevent", text);
    tree.write("proc/driver/nvidia/version", text);
    tree.write("sys/module/nvidia/version", "");
    EXPECT_TRUE(gpus_of_system(tree.root()).empty());
    EXPECT_TRUE(nvidia_kernel_driver(tree.root()).empty());
  }
}

TEST(Gpus, NormalizesAddresses) {
  EXPECT_EQ(canonical_pci("00000000:0A:00.0"), "0000:0a:00.0");
  EXPECT_EQ(canonical_pci("0001:0a:1f.7"), "0001:0a:1f.7");
  for (const char* none : {"", "0a:00.0", "0000:0a:00.0x", "zzzz:00:00.0", "0000:0a:00", "::.", "-1:00:00.0"}) EXPECT_EQ(canonical_pci(none), "") << none;
}

TEST(Nvml, ReadsAndReportsErrors) {
  std::string why;
  EXPECT_EQ(Nvml::open("libno-such-nvml.so.1", why), nullptr);
  EXPECT_FALSE(why.empty());
  EXPECT_EQ(Nvml::open(fake("lacks_symbols"), why), nullptr);
  EXPECT_NE(why.find("lacks"), std::string::npos);
  EXPECT_EQ(Nvml::open(fake("returns_errors"), why), nullptr);
  EXPECT_NE(why.find("NVML error 9"), std::string::npos);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  auto nvml = Nvml::open(fake("works"), why);
  testing::internal::GetCapturedStdout();
  testing::internal::GetCapturedStderr();
  ASSERT_NE(nvml, nullptr);
  EXPECT_EQ(nvml->count(), 2);
  EXPECT_EQ(nvml->read(1).memory_free, int64_t(20) << 30);
}

TEST(GuardedCall, ReadsAllOutput) {
  const std::string longest(100000, 'x');
  const auto answers = ask_children({[&](ChildOutput& v) { v.line("a\tb\r\nc"), v.line(""), v.line(longest); },
                                     [](ChildOutput& v) { v.line("before"), ::raise(SIGKILL); }, [](ChildOutput&) { throw 1; }},
                                    20);
  EXPECT_EQ(answers[0].end, ChildAnswer::End::finished);
  EXPECT_EQ(answers[0].lines, (std::vector<std::string>{"a\tb  c", "", longest}));
  EXPECT_EQ(answers[1].end, ChildAnswer::End::crashed);
  EXPECT_EQ(answers[1].lines, std::vector<std::string>{"before"});
  EXPECT_EQ(answers[2].end, ChildAnswer::End::exited);
  EXPECT_EQ(answers[2].code, 1);
}

TEST(GuardedCall, AChildThatNeverStopsWritingIsKilled) {
  const auto answers = ask_children({[](ChildOutput& v) {
                                      while (true) v.line(std::string(1000, 'x'));
                                    }},
                                    20);
  EXPECT_NE(answers[0].end, ChildAnswer::End::finished);
  EXPECT_LT(answers[0].lines.size(), 2000u);
}

TEST(GuardedCall, TheChildHasNoOpenFilesOfTheParent) {
  const int opened = ::fcntl(1, F_DUPFD, 20);  // above the one that the child answers through
  ASSERT_GE(opened, 20);
  const auto answers = ask_children({[&](ChildOutput& v) { v.line(::fcntl(opened, F_GETFD) < 0 ? "closed" : "open"); }}, 20);
  EXPECT_EQ(answers[0].lines, std::vector<std::string>{"closed"});
  EXPECT_GE(::fcntl(opened, F_GETFD), 0);
  ::close(opened);
}

TEST(GuardedCall, ReadsOutputThatWasWrittenInTime) {
  PendingChildren asked({[](ChildOutput& v) { v.line("x"); }}, 0);
  siginfo_t ended;
  ASSERT_EQ(::waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT), 0);
  const std::vector<ChildAnswer> answers = asked.answers();
  EXPECT_EQ(answers[0].end, ChildAnswer::End::finished);
  EXPECT_EQ(answers[0].lines, std::vector<std::string>{"x"});
}

TEST(GuardedCall, LeavesNoDescriptorsBehind) {
  auto open_files = [] { return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()); };
  const auto before = open_files();
  for (int i = 0; i < 3; ++i) ask_children({[](ChildOutput& v) { v.line("x"); }, [](ChildOutput&) { ::raise(SIGKILL); }}, 20);
  {
    const PendingChildren nobody_listens({[](ChildOutput&) { ::pause(); }}, 20);
  }
  EXPECT_EQ(open_files(), before);
}

}  // namespace
}  // namespace ridge
