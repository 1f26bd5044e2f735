#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/svg.h"
#include "base/text.h"
#include "doctor/floor_plan.h"
#include "doctor/report.h"
#include "machine/doctor_machines.h"

namespace ridge {
namespace {

using namespace doctor_machines;
using Level = Finding::Level;

const Finding* find(const DoctorReport& report, std::string_view part) {
  for (const Finding& finding : report.findings)
    if (finding.what.find(part) != std::string::npos) return &finding;
  return nullptr;
}

int warnings(const DoctorReport& report) {
  return int(std::count_if(report.findings.begin(), report.findings.end(), [](const Finding& f) { return f.level != Level::note; }));
}

struct Named {
  const char* name;
  DoctorFacts (*make)();
};
const Named kMachines[] = {{"laptop", laptop}, {"server", server}, {"small_vm", small_vm}, {"two_gpus", two_gpus}, {"container", container}};

TEST(Doctor, AHealthyMachineHasNoProblems) {
  const DoctorReport report = examine(small_vm());
  EXPECT_EQ(warnings(report), 0);
  EXPECT_TRUE(report.can_run());
  EXPECT_NE(to_text(report).find("No problems"), std::string::npos);
}

// The text, the picture and the JSON document report the same problems.
TEST(Doctor, TextAndPictureAgreeAboutProblems) {
  auto troubled = [](int problems) {
    DoctorFacts facts = small_vm();
    if (problems > 0) facts.health.on_battery = true;
    if (problems > 1) facts.health.governor = "powersave";
    if (problems > 2) facts.health.clock_cap = 0.5;
    if (problems > 3) facts.health.throttled = 0.4;
    if (problems > 4) facts.health.load = 99;
    if (problems > 5) facts.configuration = "train.yaml:3: unknown key";
    if (problems > 6) facts.device = "cuda";
    if (problems > 7) facts.memory = int64_t(1) << 60;
    return examine(std::move(facts));
  };
  for (int problems = 0; problems <= 8; ++problems) {
    const DoctorReport report = troubled(problems);
    const std::vector<Finding> found = problems_of(report);
    ASSERT_EQ(int(found.size()), problems) << to_text(report);
    const std::string text = to_text(report, {.width = 160}), picture = to_svg(report);
    for (const std::string& where : {text, picture, to_json(report)}) EXPECT_NE(where.find(verdict(report)), std::string::npos) << verdict(report) << where;
    size_t drawn = 0;
    for (const Finding& f : found) {
      EXPECT_NE(text.find(f.what), std::string::npos) << f.what;
      drawn += picture.find(svg::escape(f.what.substr(0, 24))) != std::string::npos;
    }
    EXPECT_EQ(drawn, std::min<size_t>(found.size(), 6)) << problems;
    EXPECT_EQ(picture.find("more, which ridge doctor lists") != std::string::npos, problems > 6);
  }
  EXPECT_EQ(verdict(troubled(0)), "No problems");
  EXPECT_EQ(verdict(troubled(2)), "2 problems");
  EXPECT_EQ(verdict(troubled(6)), "Ridge cannot run here: 6 problems");
}

TEST(Doctor, ReportsMeasurementsAndLoad) {
  DoctorFacts facts = small_vm();
  measure(facts, 100, 10);
  facts.ceilings->others = 0.4, facts.kernels = "kernels in fp32";
  const DoctorReport report = examine(facts);
  EXPECT_NE(to_text(report, {.width = 160}).find("2 hours ago, others used 40 %"), std::string::npos) << to_text(report);
  EXPECT_NE(to_text(report, {.width = 160}).find("for plans: kernels in fp32"), std::string::npos);
  EXPECT_NE(find(report, "busy machine"), nullptr);
  facts.ceilings->others = 0;
  EXPECT_EQ(find(examine(facts), "busy machine"), nullptr);
}

// A run that may not use measurements says so, and so does the doctor.
TEST(Doctor, ReportsHowPrecisionWasDecided) {
  DoctorFacts facts = small_vm();
  auto decided_by = [&] { return examine(facts).decisions[2].decided_by; };
  facts.rates = {};
  EXPECT_EQ(decided_by(), "default");
  facts.rates = [](const Device&, Precision precision) { return std::optional(precision == Precision::fp32 ? 100.0 : 150.0); };
  EXPECT_EQ(decided_by(), "measured");
  facts.precision = "fp32", facts.precision_source = "command line";
  EXPECT_EQ(decided_by(), "command line");
}

TEST(Doctor, EveryDecisionHasAReason) {
  for (const Named& machine : kMachines) {
    const DoctorReport report = examine(machine.make());
    std::vector<std::string> what;
    for (const Decision& d : report.decisions) {
      what.push_back(d.setting);
      EXPECT_FALSE(d.value.empty()) << machine.name << d.setting;
      EXPECT_FALSE(d.why.empty()) << machine.name << d.setting;
    }
    EXPECT_EQ(what, (std::vector<std::string>{"device", "threads", "precision", "memory"}));
  }
}

// Every problem, the finding it causes, and its severity.
struct KnownProblem {
  const char* name;
  std::function<void(DoctorFacts&)> cause;
  const char *finding, *number;
  Level level = Level::warning;
};

Machine limited(const DoctorFacts& facts, const std::function<void(Limits&)>& change) {
  Limits limits = facts.machine.limits;
  change(limits);
  return combine(facts.machine.topology, limits);
}

class DoctorProblem : public testing::TestWithParam<KnownProblem> {};

TEST_P(DoctorProblem, IsReportedWithNumberAndRemedy) {
  DoctorFacts facts = small_vm();
  GetParam().cause(facts);
  const DoctorReport report = examine(std::move(facts));
  const Finding* finding = find(report, GetParam().finding);
  ASSERT_NE(finding, nullptr) << to_text(report);
  EXPECT_EQ(finding->level, GetParam().level);
  EXPECT_NE(finding->number.find(GetParam().number), std::string::npos) << finding->number;
  EXPECT_FALSE(finding->remedy.empty());
  EXPECT_EQ(report.can_run(), GetParam().level != Level::error);
  EXPECT_NE(to_json(report).find(finding->what), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Doctor, DoctorProblem,
    testing::Values(
        KnownProblem{"powersave", [](DoctorFacts& f) { f.health.governor = "powersave", f.health.clock_driver = "acpi-cpufreq"; }, "governor", "powersave"},
        KnownProblem{"energy_preference",
                     [](DoctorFacts& f) { f.health.governor = "powersave", f.health.clock_driver = "intel_pstate", f.health.energy_preference = "power"; },
                     "save energy", "power"},
        KnownProblem{"clock_cap", [](DoctorFacts& f) { f.health.clock_cap = 0.5; }, "clock is capped", "50 %"},
        KnownProblem{"battery", [](DoctorFacts& f) { f.health.on_battery = true; }, "battery", "discharging"},
        KnownProblem{"quota", [](DoctorFacts& f) { f.machine = limited(f, [](Limits& l) { l.cpu_quota = 0.5; }); }, "quota", "0.5 of 2"},
        KnownProblem{"mask", [](DoctorFacts& f) { f.machine = limited(f, [](Limits& l) { l.cpus = {1}; }); }, "affinity mask", "1 of 2"},
        KnownProblem{"offline", [](DoctorFacts& f) { f.machine = limited(f, [](Limits& l) {
                                                       l.offline = {2, 3};
                                                     }); }, "switched off", "2-3", Level::note},
        KnownProblem{"throttled", [](DoctorFacts& f) { f.health.throttled = 0.4; }, "stops this control group", "40 %"},
        KnownProblem{"load", [](DoctorFacts& f) { f.health.load = 7.25; }, "overloaded", "load 7.2 on 2"},
        KnownProblem{"some_load", [](DoctorFacts& f) { f.health.load = 1.5; }, "other programs", "1.5", Level::note},
        KnownProblem{"stolen", [](DoctorFacts& f) { f.health.stolen = 0.2; }, "hypervisor", "20 %"},
        KnownProblem{"memory_limit", [](DoctorFacts& f) { f.machine = limited(f, [](Limits& l) { l.memory_limit = kGiB; }); }, "memory limit is small",
                     "1 GiB"},
        KnownProblem{"half_the_memory", [](DoctorFacts& f) { f.machine = limited(f, [](Limits& l) { l.memory_limit = 4 * kGiB; }); }, "excludes most",
                     "4 GiB of 16 GiB", Level::note},
        KnownProblem{"memory_in_use", [](DoctorFacts& f) { f.machine = limited(f, [](Limits& l) { l.memory_available = 2 * kGiB; }); }, "in use",
                     "2 GiB of 16 GiB"},
        KnownProblem{"no_memory", [](DoctorFacts& f) { f.machine = limited(f, [](Limits& l) { l.memory_available = 1 << 20; }); }, "not enough memory",
                     "512 KiB", Level::error},
        KnownProblem{"pressure", [](DoctorFacts& f) { f.health.memory_pressure = 0.3; }, "waiting for memory", "30 %"},
        KnownProblem{"swapped", [](DoctorFacts& f) { f.machine = limited(f, [](Limits& l) { l.swap_total = 8 * kGiB, l.swap_free = 2 * kGiB; }); },
                     "swapped out", "6 GiB", Level::note},
        KnownProblem{"huge_pages", [](DoctorFacts& f) { f.health.huge_pages = "never"; }, "huge pages", "never"},
        KnownProblem{"files", [](DoctorFacts& f) { f.machine = limited(f, [](Limits& l) { l.open_files = 64; }); }, "files", "64"},
        KnownProblem{"driver", [](DoctorFacts& f) { f.gpus.broken = true, f.gpus.driver = "535.1", f.gpus.no_cuda = "cuInit failed"; }, "CUDA cannot be used",
                     "535.1"},
        KnownProblem{"device", [](DoctorFacts& f) { f.device = "cuda", f.device_source = "config_gpu.ini:2"; }, "cuda was asked for", "config_gpu.ini:2"},
        KnownProblem{"no_fallback", [](DoctorFacts& f) { f.device = "mps", f.fallback = Fallback::forbid; }, "fallbacks are forbidden", "default",
                     Level::error},
        KnownProblem{"precision", [](DoctorFacts& f) { f.precision = "tf32"; }, "tf32 was asked for", "default"},
        KnownProblem{"emulated", [](DoctorFacts& f) { f.precision = "fp16"; }, "fp16", "precision fp16"},
        KnownProblem{"wish", [](DoctorFacts& f) { f.memory = 100 * kGiB; }, "memory=100 GiB", "default"},
        KnownProblem{"configuration", [](DoctorFacts& f) { f.configuration = "train.yaml:3: unknown key"; }, "configuration", "train.yaml:3", Level::error},
        KnownProblem{"unmeasured", [](DoctorFacts& f) { f.ceilings.reset(); }, "nothing has been measured", "", Level::note}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Doctor, OrdinaryGovernorsAreNoProblem) {
  for (auto [driver, governor, preference] : {std::tuple{"intel_pstate", "powersave", "balance_performance"},
                                              {"amd-pstate-epp", "powersave", "performance"},
                                              {"acpi-cpufreq", "schedutil", ""},
                                              {"acpi-cpufreq", "performance", ""},
                                              {"", "", ""}}) {
    DoctorFacts facts = small_vm();
    facts.health.clock_driver = driver, facts.health.governor = governor, facts.health.energy_preference = preference;
    EXPECT_EQ(warnings(examine(std::move(facts))), 0) << driver << governor;
  }
}

TEST(Doctor, GpusAreNamedAndChecked) {
  DoctorFacts facts = two_gpus();
  facts.backends = {};  // a build without a backend for them
  DoctorReport report = examine(std::move(facts));
  EXPECT_EQ(report.device.device, Device{});
  EXPECT_NE(find(report, "NVIDIA H200 is not used"), nullptr);
  EXPECT_NE(find(report, "use the memory of cuda:1"), nullptr);
  report = examine(two_gpus());
  EXPECT_EQ(to_string(report.device.device), "cuda:0");
  EXPECT_EQ(find(report, "is not used"), nullptr);
  EXPECT_GT(report.budget.bytes, 100 * kGiB);  // the GPU's memory, not the machine's
}

TEST(Doctor, MissingCudnnIsNamed) {
  DoctorFacts facts = two_gpus();
  EXPECT_EQ(find(examine(two_gpus()), "cuDNN"), nullptr);
  facts.backends.no_cudnn = "cuDNN was not found; pip install nvidia-cudnn-cu13";
  const DoctorReport report = examine(facts);
  ASSERT_NE(find(report, "cuDNN"), nullptr);
  EXPECT_EQ(find(report, "cuDNN")->level, Finding::Level::note);
  EXPECT_EQ(find(report, "cuDNN")->remedy, facts.backends.no_cudnn);
  facts.backends.cuda_missing = "no NVRTC";
  EXPECT_EQ(find(examine(facts), "cuDNN"), nullptr) << "the GPU is not used at all";
}

TEST(Doctor, SevereFindingsComeFirst) {
  const DoctorReport report = examine(container());
  EXPECT_TRUE(std::is_sorted(report.findings.begin(), report.findings.end(), [](const Finding& a, const Finding& b) { return a.level < b.level; }));
  EXPECT_FALSE(report.can_run());
}

TEST(Doctor, TextKeepsToTheWidth) {
  for (const Named& machine : kMachines)
    for (int width : {40, 60, 80, 100, 160}) {
      const std::string text = to_text(examine(machine.make()), {.width = width});
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), width) << machine.name << ": " << line;
      EXPECT_EQ(text.find('\033'), std::string::npos);
    }
  EXPECT_NE(to_text(examine(laptop()), {.colours = true}).find("\033[1m"), std::string::npos);
}

TEST(Doctor, TextNamesASourceOnce) {
  DoctorFacts facts = small_vm();
  facts.threads.decided_by = "train.yaml:3";
  facts.threads.why = "one thread each";
  EXPECT_NE(to_text(examine(facts)).find("one thread each [train.yaml:3]"), std::string::npos);
  facts.threads.why = "1 asked for by train.yaml:3";
  EXPECT_EQ(to_text(examine(facts)).find("[train.yaml:3]"), std::string::npos);
}

TEST(Doctor, JsonIsOneCompleteDocument) {
  for (const Named& machine : kMachines) {
    const DoctorReport report = examine(machine.make());
    const auto document = nlohmann::json::parse(to_json(report));
    for (const char* key :
         {"ridge", "machine", "limits", "gpus", "devices", "measured", "precisions", "memory_budget", "decisions", "findings", "can_run", "seconds"})
      EXPECT_TRUE(document.contains(key)) << machine.name << " " << key;
    EXPECT_EQ(document["decisions"].size(), 4u);
    EXPECT_EQ(document["findings"].size(), report.findings.size());
    EXPECT_EQ(document["memory_budget"]["bytes"], report.budget.bytes);
    EXPECT_EQ(document["machine"]["cores"], report.facts.machine.topology.core_count());
  }
}

TEST(Doctor, InvalidNamesBreakNothing) {
  DoctorFacts facts = two_gpus();
  facts.gpus.gpus[0].name = "<&\"\xff\xfe" + std::string(5000, 'x');
  facts.machine.topology.cpu_name = "<script>\x01" + std::string(5000, 'y');
  const DoctorReport report = examine(std::move(facts));
  EXPECT_FALSE(nlohmann::json::parse(to_json(report)).empty());
  const std::string picture = to_svg(report);
  EXPECT_EQ(picture.find("<script>"), std::string::npos);
  EXPECT_EQ(picture.find('\xff'), std::string::npos);
}

// A document's elements are balanced, and none is outside the picture.
void check_picture(const std::string& svg) {
  ASSERT_EQ(svg.rfind("<svg", 0), 0u);
  ASSERT_NE(svg.find("</svg>"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  auto count = [&](std::string_view part) {
    int n = 0;
    for (size_t at = 0; (at = svg.find(part, at)) != std::string::npos; at += part.size()) ++n;
    return n;
  };
  EXPECT_EQ(count("<text"), count("</text>"));
  EXPECT_EQ(count("<g"), count("</g>"));
  EXPECT_EQ(count("width=\"-"), 0);
  EXPECT_EQ(count("height=\"-"), 0);
}

TEST(Doctor, DrawsEveryMachine) {
  for (const Named& machine : kMachines) {
    SCOPED_TRACE(machine.name);
    check_picture(to_svg(examine(machine.make())));
  }
  for (const char* name : {"one_cpu", "arm_10_10", "arm_128", "intel_2p_8e_2lp", "zen5_4_8", "some_offline", "server_64"}) {
    SCOPED_TRACE(name);
    check_picture(to_svg(examine(facts_of(fixture(name), 8 * kGiB))));
  }
  DoctorFacts nothing = facts_of(Topology{}, 0);  // a machine about which nothing is known
  check_picture(to_svg(examine(std::move(nothing))));
}

bool overlap(const svg::Box& a, const svg::Box& b) {
  constexpr double kSlack = 0.01;
  return a.x + a.width > b.x + kSlack && b.x + b.width > a.x + kSlack && a.y + a.height > b.y + kSlack && b.y + b.height > a.y + kSlack;
}
bool inside(const svg::Box& a, const svg::Box& b) {
  constexpr double kSlack = 0.01;
  return a.x >= b.x - kSlack && a.y >= b.y - kSlack && a.x + a.width <= b.x + b.width + kSlack && a.y + a.height <= b.y + b.height + kSlack;
}

TEST(FloorPlan, EveryCoreIsPlaced) {
  for (const char* name : {"alder_lake_6p_8e", "epyc_384", "one_cpu", "arm_10_10", "arm_128", "intel_2p_8e_2lp", "zen5_4_8", "some_offline", "server_64"}) {
    SCOPED_TRACE(name);
    const Machine machine = facts_of(fixture(name), kGiB).machine;
    const FloorPlan plan = plan_floor(machine, 700, 640);
    EXPECT_LE(plan.height, 640);
    std::vector<svg::Box> boxes;
    for (const PlannedSocket& socket : plan.sockets)
      for (const PlannedCluster& cluster : socket.clusters) {
        EXPECT_TRUE(inside(cluster.box, socket.box));
        EXPECT_TRUE(cluster.cache_bar.height <= 0 || inside(cluster.cache_bar, cluster.box));
        for (const PlannedCore& core : cluster.cores) {
          EXPECT_TRUE(inside(core.box, cluster.box));
          EXPECT_FALSE(overlap(core.box, cluster.cache_bar));
          boxes.push_back(core.box);
        }
        for (const PlannedModule& module : cluster.modules) EXPECT_TRUE(inside(module.box, cluster.box));
      }
    EXPECT_EQ(int(boxes.size()), machine.topology.core_count());
    for (size_t i = 0; i < boxes.size(); ++i)
      for (size_t j = i + 1; j < boxes.size(); ++j) ASSERT_FALSE(overlap(boxes[i], boxes[j])) << i << " and " << j;
  }
}

TEST(FloorPlan, SharedCachesAreDrawnOnce) {
  const FloorPlan laptop_plan = plan_floor(laptop().machine, 700, 640);
  ASSERT_EQ(laptop_plan.sockets.size(), 1u);
  ASSERT_EQ(laptop_plan.sockets[0].clusters.size(), 1u);             // one L3 for all 14 cores
  EXPECT_EQ(laptop_plan.sockets[0].clusters[0].modules.size(), 2u);  // and an L2 for each four of the slow ones
  const FloorPlan server_plan = plan_floor(server().machine, 700, 640);
  ASSERT_EQ(server_plan.sockets.size(), 2u);
  EXPECT_EQ(server_plan.sockets[0].clusters.size(), 12u);
  EXPECT_GE(server_plan.core_size, 14);  // large enough to be visible
}

TEST(FloorPlan, VeryManyCoresAreCountedByCluster) {
  Topology topology;
  for (int cpu = 0; cpu < 4096; ++cpu) topology.cores.push_back({.cpus = {cpu}, .cluster = cpu / 64, .caches = {{3, 32 << 20, 64}}});
  set_kinds(topology, std::vector<double>(4096, 1.0), false);
  const FloorPlan plan = plan_floor(facts_of(topology, kGiB).machine, 700, 640);
  ASSERT_EQ(plan.sockets.size(), 1u);
  EXPECT_EQ(plan.sockets[0].clusters.size(), 64u);
  EXPECT_EQ(plan.sockets[0].cores, 4096);
  for (const PlannedCluster& cluster : plan.sockets[0].clusters) ASSERT_EQ(cluster.cores.size(), 1u);
}

}  // namespace
}  // namespace ridge
