#include "machine/machine.h"

#include <algorithm>
#include <set>

namespace ridge {

int Machine::cores() const {
  int n = 0;
  for (const CoreKind& k : usable) n += k.cores();
  return n;
}

int Machine::threads() const {
  int n = 0;
  for (const CoreKind& k : usable) n += k.threads();
  return n;
}

int Machine::parallel() const { return std::min(threads(), limits.threads()); }

Machine combine(Topology topology, Limits limits) {
  Machine m{std::move(topology), std::move(limits), {}};
  // A virtual machine's nodes may report only the memory it was started with.
  if (m.limits.memory_total > 0) m.topology.memory_bytes = m.limits.memory_total;
  const std::set<int> allowed(m.limits.cpus.begin(), m.limits.cpus.end());
  for (size_t k = 0; k < m.topology.kinds.size(); ++k) {
    CoreKind kind = m.topology.kinds[k];
    kind.cpus.clear(), kind.siblings.clear();
    for (const Core& core : m.topology.cores) {
      bool first = true;
      for (int cpu : core.cpus)
        if (core.kind == int(k) && allowed.count(cpu)) (first ? kind.cpus : kind.siblings).push_back(cpu), first = false;
    }
    if (!kind.cpus.empty()) m.usable.push_back(std::move(kind));
  }
  if (m.usable.empty()) {
    CoreKind& kind = m.usable.emplace_back();
    kind.name = "performance";
    kind.cpus = m.limits.cpus;
    m.topology.remarks.push_back("the CPUs that this process may use are not in the machine's topology; each is treated as a core");
  }
  return m;
}

Machine detect_machine(const MeasureCpu& measure) {
  Limits limits = read_limits();
  Topology topology = read_topology();
  if (measure && topology.can_pin) confirm_kinds(topology, measure, limits.cpus);
  return combine(std::move(topology), std::move(limits));
}

}  // namespace ridge
