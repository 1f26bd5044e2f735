// Machines for the doctor's tests with made-up figures, including some we do not have.
#pragma once
#include <filesystem>
#include <fstream>
#include <sstream>

#include "doctor/report.h"
#include "machine/sizes.h"
#include "support/source_dir.h"

namespace ridge::doctor_machines {

inline Topology fixture(const std::string& name) {
  std::ifstream in(std::filesystem::path(source_dir()) / "tests/fixtures/topology" / (name + ".xml"));
  std::ostringstream text;
  text << in.rdbuf();
  Topology topology = topology_from_xml(text.str());
  confirm_kinds(topology, {});
  return topology;
}

// Every CPU of the topology is available.
inline DoctorFacts facts_of(Topology topology, int64_t memory) {
  Limits limits;
  for (const Core& core : topology.cores) limits.cpus.insert(limits.cpus.end(), core.cpus.begin(), core.cpus.end());
  std::sort(limits.cpus.begin(), limits.cpus.end());
  limits.online = limits.cpus;
  limits.memory_total = memory;
  limits.memory_available = memory / 10 * 8;
  DoctorFacts facts;
  facts.machine = combine(std::move(topology), std::move(limits));
  facts.version = "0.1.0", facts.isa = "avx2";
  facts.health.system = "Debian GNU/Linux 12 (bookworm)", facts.health.kernel = "6.1.0", facts.health.libc = "2.36";
  facts.health.huge_pages = "madvise";
  facts.gpus.no_cuda = "no NVIDIA driver (libcuda.so.1 was not found)";
  facts.threads = {"threads", std::to_string(facts.machine.cores()), "default", "one on each core"};
  return facts;
}

inline void measure(DoctorFacts& facts, double gflops, double gbs) {
  MachineCeilings c;
  const int threads = facts.machine.threads();
  c.rates = {
      {DType::f32, 1, {gflops / facts.machine.cores(), 0.01, 9}}, {DType::f32, threads, {gflops, 0.01, 9}}, {DType::bf16, threads, {2 * gflops, 0.01, 9}}};
  c.bandwidths = {{"L1", Movement::read, 1, 1 << 15, {4 * gbs, 0.01, 9}},
                  {"L1", Movement::read, threads, 1 << 15, {30 * gbs, 0.01, 9}},
                  {"L2", Movement::read, threads, 1 << 19, {12 * gbs, 0.01, 9}},
                  {"memory", Movement::copy, threads, kGiB, {gbs, 0.01, 9}},
                  {"memory", Movement::triad, threads, kGiB, {1.05 * gbs, 0.01, 9}},
                  {"memory", Movement::read, threads, kGiB, {1.2 * gbs, 0.01, 9}}};
  c.fork_joins = {{threads, {2.4, 0.05, 9}}};
  facts.ceilings = c;
  facts.measured = "2 hours ago";
}

inline DoctorFacts laptop() {
  DoctorFacts facts = facts_of(fixture("alder_lake_6p_8e"), 32 * kGiB);
  measure(facts, 910, 58);
  facts.threads = {"threads", "14", "measured", "measured: 6 P-cores 1.00×, 6 P-cores + 8 E-cores 1.31×", "6 P-cores"};
  facts.health.on_battery = true;
  facts.gpus.gpus = {{.vendor = Gpu::Vendor::intel, .name = "Intel GPU 46a6", .pci = "0000:00:02.0"}};
  return facts;
}

inline DoctorFacts server() {
  DoctorFacts facts = facts_of(fixture("epyc_384"), 1536 * kGiB);
  measure(facts, 14800, 710);
  facts.isa = "avx512";
  return facts;
}

inline DoctorFacts small_vm() {
  Topology topology;
  topology.cpu_name = "AMD EPYC 9R14", topology.architecture = "x86-64", topology.memory_bytes = 16 * kGiB;
  for (int cpu : {0, 1}) topology.cores.push_back({.cpus = {cpu}, .caches = {{1, 32 << 10, 1}, {2, 1 << 20, 1}, {3, 32 << 20, 2}}});
  set_kinds(topology, {1.0, 1.0}, true);
  DoctorFacts facts = facts_of(topology, 16 * kGiB);
  facts.isa = "avx512";
  facts.health.virtual_machine = true;
  measure(facts, 235, 33);
  return facts;
}

inline DoctorFacts two_gpus() {
  DoctorFacts facts = facts_of(fixture("zen5_4_8"), 64 * kGiB);
  measure(facts, 1350, 74);
  facts.gpus.no_cuda.clear();
  facts.gpus.driver = "550.54.15", facts.gpus.cuda = 12040;
  facts.gpus.gpus = {{.vendor = Gpu::Vendor::nvidia,
                      .name = "NVIDIA H200",
                      .pci = "0000:01:00.0",
                      .ordinal = 0,
                      .capability = 90,
                      .processors = 132,
                      .memory_total = 140 * kGiB,
                      .memory_free = 139 * kGiB,
                      .busy = 0,
                      .celsius = 34,
                      .watts = 76,
                      .watts_limit = 700},
                     {.vendor = Gpu::Vendor::nvidia,
                      .name = "NVIDIA GeForce RTX 4090",
                      .pci = "0000:02:00.0",
                      .ordinal = 1,
                      .capability = 89,
                      .processors = 128,
                      .memory_total = 24 * kGiB,
                      .memory_free = 7 * kGiB,
                      .busy = 63,
                      .celsius = 71,
                      .watts = 312,
                      .watts_limit = 450}};
  return facts;
}

inline DoctorFacts container() {
  DoctorFacts facts = facts_of(fixture("server_64"), 256 * kGiB);
  Limits limits = facts.machine.limits;
  limits.cpu_quota = 1.5;
  limits.cpus = {0, 1, 2, 3};
  limits.memory_limit = kGiB, limits.memory_available = 100 << 20;
  limits.reasons = {"1.5 CPUs: /sys/fs/cgroup/cpu.max", "1 GiB of memory: /sys/fs/cgroup/memory.max"};
  facts.machine = combine(facts.machine.topology, limits);
  facts.health.container = true;
  facts.threads.value = "2";
  return facts;
}

}  // namespace ridge::doctor_machines
