#include "doctor/report.h"

#include <algorithm>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "machine/utilisation.h"

namespace ridge {
namespace {

using Json = nlohmann::ordered_json;

BudgetFacts budget_facts_of(const DoctorReport& report) {
  const DoctorFacts& facts = report.facts;
  BudgetFacts budget = budget_facts(facts.machine.limits, facts.held);
  if (report.device.device.kind == Device::Kind::cuda)
    for (const Gpu& gpu : facts.gpus.gpus)
      if (gpu.ordinal == report.device.device.index) budget = budget_facts(gpu);
  budget.requested = facts.memory;
  budget.fraction = facts.memory_fraction;
  return budget;
}

Json cores_json(const std::vector<CoreKind>& kinds) {
  Json rows = Json::array();
  for (const CoreKind& kind : kinds) {
    Json caches = Json::array();
    for (const Cache& cache : kind.caches) caches.push_back({{"level", cache.level}, {"bytes", cache.bytes}, {"cores", cache.cores}});
    rows.push_back({{"name", kind.name},
                    {"cores", kind.cores()},
                    {"threads", kind.threads()},
                    {"speed", kind.speed},
                    {"measured", kind.measured},
                    {"caches", caches},
                    {"cpus", format_cpu_list(kind.cpus)},
                    {"siblings", format_cpu_list(kind.siblings)}});
  }
  return rows;
}

template <class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}
Json or_null(int64_t bytes) { return bytes > 0 ? Json(bytes) : Json(); }

Json machine_json(const DoctorFacts& facts) {
  const Topology& topology = facts.machine.topology;
  const Health& health = facts.health;
  return {{"cpu", topology.cpu_name},
          {"architecture", topology.architecture},
          {"isa", facts.isa},
          {"cores", topology.core_count()},
          {"threads", topology.thread_count()},
          {"packages", topology.packages},
          {"numa_nodes", topology.numa_nodes},
          {"kinds", cores_json(topology.kinds)},
          {"memory_bytes", or_null(topology.memory_bytes)},
          {"system", health.system},
          {"kernel", health.kernel},
          {"libc", health.libc},
          {"container", health.container},
          {"virtual_machine", health.virtual_machine}};
}

Json limits_json(const DoctorFacts& facts) {
  const Limits& limits = facts.machine.limits;
  return {{"cpus", format_cpu_list(limits.cpus)},
          {"offline", format_cpu_list(limits.offline)},
          {"cpu_quota", limits.cpu_quota > 0 ? Json(limits.cpu_quota) : Json()},
          {"usable_cores", facts.machine.cores()},
          {"usable_threads", facts.machine.threads()},
          {"parallel", facts.machine.parallel()},
          {"memory_limit_bytes", or_null(limits.memory_limit)},
          {"memory_available_bytes", or_null(limits.memory_available)},
          {"swap_total_bytes", limits.swap_total},
          {"swap_free_bytes", limits.swap_free},
          {"open_files", or_null(limits.open_files)},
          {"reasons", limits.reasons}};
}

Json gpus_json(const GpuScan& scan) {
  Json rows = Json::array();
  auto known = [](auto value) { return value >= 0 ? Json(value) : Json(); };
  for (const Gpu& gpu : scan.gpus)
    rows.push_back({{"name", gpu.name},
                    {"vendor", name(gpu.vendor)},
                    {"pci", gpu.pci},
                    {"cuda", gpu.ordinal >= 0 ? Json(gpu.ordinal) : Json()},
                    {"capability", gpu.capability ? Json(fmt::format("{}.{}", gpu.capability / 10, gpu.capability % 10)) : Json()},
                    {"processors", gpu.processors},
                    {"memory_total_bytes", or_null(gpu.memory_total)},
                    {"memory_free_bytes", or_null(gpu.memory_free)},
                    {"busy_percent", known(gpu.busy)},
                    {"celsius", known(gpu.celsius)},
                    {"watts", known(gpu.watts)}});
  return {{"driver", scan.driver}, {"cuda", scan.cuda}, {"no_cuda", scan.no_cuda}, {"devices", rows}, {"remarks", scan.remarks}};
}

Json devices_json(const DoctorReport& report) {
  Json rows = Json::array();
  for (const KnownDevice& known : report.devices)
    rows.push_back({{"device", to_string(known.device)}, {"name", known.name}, {"available", known.missing.empty()}, {"missing", known.missing}});
  return rows;
}

Json precisions_json(const DoctorReport& report) {
  Json rows = Json::array();
  for (const PrecisionFacts& facts : report.precisions)
    rows.push_back({{"precision", name(facts.precision)},
                    {"support", name(facts.support)},
                    {"unstable", facts.unstable},
                    {"speed", or_null(facts.speed)},
                    {"warning", facts.warning}});
  return rows;
}

Json budget_json(const MemoryBudget& budget) {
  Json lines = Json::array();
  for (const BudgetLine& line : budget.lines) lines.push_back({{"what", line.what}, {"bytes", line.bytes}, {"source", line.source}, {"decides", line.decides}});
  return {{"bytes", budget.bytes}, {"reason", budget.reason}, {"lines", lines}};
}

}  // namespace

std::string_view name(Finding::Level level) { return level == Finding::Level::error ? "error" : level == Finding::Level::warning ? "warning" : "note"; }

bool DoctorReport::can_run() const {
  return std::none_of(findings.begin(), findings.end(), [](const Finding& finding) { return finding.level == Finding::Level::error; });
}

DoctorReport examine(DoctorFacts given) {
  DoctorReport report{.facts = std::move(given), .devices = {}, .device = {}, .precision = {}, .precisions = {}, .budget = {}, .decisions = {}, .findings = {}};
  const DoctorFacts& facts = report.facts;
  report.devices = known_devices(facts.gpus, facts.backends);
  // If fallbacks are forbidden, one is a finding: the report says why a run would be refused.
  report.device = choose_device(facts.device, Fallback::allow, report.devices);
  const ArithmeticUnit unit = arithmetic_of(report.device.device, facts.gpus);
  report.precision = choose_precision(facts.precision, Fallback::allow, unit, facts.rates);
  // Doctor does not know the model: it uses matmuls of one size, while training measures steps of its own layers.
  const bool by_rates = !parse_precision(facts.precision) && facts.rates && facts.rates(report.device.device, Precision::fp32);
  if (by_rates) report.precision.reason += ", by matmuls; a training tries its own layers";
  for (Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16})
    report.precisions.push_back(facts_of(precision, unit, facts.rates));
  report.budget = memory_budget(budget_facts_of(report));

  report.decisions = {{"device", to_string(report.device.device), facts.device_source, report.device.reason, report.device.runner_up},
                      facts.threads,
                      {"precision", std::string(name(report.precision.precision)), by_rates ? "measured" : facts.precision_source, report.precision.reason,
                       report.precision.runner_up},
                      {"memory", size_text(report.budget.bytes), facts.memory_source, report.budget.reason}};
  report.findings = findings_of(report);
  return report;
}

std::vector<Finding> problems_of(const DoctorReport& report) {
  std::vector<Finding> problems;
  for (const Finding& finding : report.findings)
    if (finding.level != Finding::Level::note) problems.push_back(finding);
  return problems;
}

std::string verdict(const DoctorReport& report) {
  const size_t count = problems_of(report).size();
  if (count == 0) return "No problems";
  return fmt::format("{}{} problem{}", report.can_run() ? "" : "Ridge cannot run here: ", count, count == 1 ? "" : "s");
}

std::string finding_text(const Finding& finding) { return finding.number.empty() ? finding.what : fmt::format("{} ({})", finding.what, finding.number); }

std::string measured_text(const DoctorFacts& facts) {
  if (!facts.ceilings || facts.ceilings->others <= kQuiet) return facts.measured;
  return fmt::format("{}, others used {:.0f} %", facts.measured, 100 * facts.ceilings->others);
}

std::string core_summary(const Topology& topology) {
  std::string text;
  for (const CoreKind& kind : topology.kinds) {
    text += text.empty() ? "" : " + ";
    text += topology.kinds.size() > 1 ? fmt::format("{} {}", kind.cores(), kind.name) : fmt::format("{}", kind.cores());
  }
  text += topology.core_count() == 1 ? " core" : " cores";
  if (topology.has_smt()) text += fmt::format(", {} threads", topology.thread_count());
  if (topology.packages > 1) text += fmt::format(", {} sockets", topology.packages);
  if (topology.numa_nodes > 1) text += fmt::format(", {} NUMA nodes", topology.numa_nodes);
  return text;
}

std::string cache_summary(const CoreKind& kind) {
  std::string text;
  for (const Cache& cache : kind.caches) {
    text += fmt::format("{}L{} {}", text.empty() ? "" : ", ", cache.level, size_text(cache.bytes));
    if (cache.cores > 1) text += fmt::format(" for {} cores", cache.cores);
  }
  return text;
}

std::string gpu_summary(const Gpu& gpu) {
  std::string text;
  auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (gpu.capability) add(fmt::format("compute {}.{}", gpu.capability / 10, gpu.capability % 10));
  if (gpu.processors) add(fmt::format("{} processors", gpu.processors));
  if (gpu.memory_total && gpu.memory_free) add(fmt::format("{} of {} free", size_text(gpu.memory_free), size_text(gpu.memory_total)));
  if (gpu.memory_total && !gpu.memory_free) add(size_text(gpu.memory_total));
  if (gpu.busy >= 0) add(fmt::format("{} % busy", gpu.busy));
  if (gpu.celsius >= 0) add(fmt::format("{} °C", gpu.celsius));
  return text;
}

std::string measured_summary(const DoctorFacts& facts, const Gpu& gpu) {
  if (!facts.ceilings) return {};
  for (const GpuCeilings& measured : facts.ceilings->gpus) {
    if (measured.name != gpu.name) continue;
    std::string text;
    if (const GpuCeilings::Rate* rate = measured.fastest()) text = fmt::format("{} matmul {}", name(rate->precision), rate_text(rate->gflops.median));
    if (measured.copy_gbs.samples) text += fmt::format("{}copy {}", text.empty() ? "" : ", ", bandwidth_text(measured.copy_gbs.median));
    if (measured.upload_pinned_gbs.samples) text += fmt::format("{}upload {}", text.empty() ? "" : ", ", bandwidth_text(measured.upload_pinned_gbs.median));
    return text;
  }
  return {};
}

std::string to_json(const DoctorReport& report) {
  const DoctorFacts& facts = report.facts;
  Json decisions = Json::array(), findings = Json::array();
  for (const Decision& d : report.decisions)
    decisions.push_back({{"what", d.setting}, {"value", d.value}, {"reason", d.why}, {"runner_up", d.runner_up}, {"source", d.decided_by}});
  for (const Finding& f : report.findings) findings.push_back({{"level", name(f.level)}, {"what", f.what}, {"number", f.number}, {"remedy", f.remedy}});
  const Json document = {{"ridge", facts.version},
                         {"machine", machine_json(facts)},
                         {"limits", limits_json(facts)},
                         {"gpus", gpus_json(facts.gpus)},
                         {"devices", devices_json(report)},
                         {"measured", facts.ceilings ? Json::parse(to_json(*facts.ceilings)) : Json()},
                         {"measured_when", facts.measured},
                         {"kernels_measured", facts.kernels},
                         {"precisions", precisions_json(report)},
                         {"memory_budget", budget_json(report.budget)},
                         {"decisions", decisions},
                         {"findings", findings},
                         {"verdict", verdict(report)},
                         {"can_run", report.can_run()},
                         {"seconds", report.seconds}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ridge
