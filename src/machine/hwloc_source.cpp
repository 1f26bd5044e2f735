#include "machine/hwloc_source.h"

#include <hwloc.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "base/error.h"

// hwloc's archive can ask libudev for disk names, and Debian ships no static libudev. Ridge does not need disks: these stubs make hwloc omit their names, so
// that the program does not depend on libudev.
extern "C" {
struct udev;
struct udev_device;
udev* udev_new() { return nullptr; }
udev* udev_unref(udev*) { return nullptr; }
udev_device* udev_device_new_from_subsystem_sysname(udev*, const char*, const char*) { return nullptr; }
udev_device* udev_device_unref(udev_device*) { return nullptr; }
const char* udev_device_get_property_value(udev_device*, const char*) { return nullptr; }
}

namespace ridge {
namespace {

struct Destroy {
  void operator()(hwloc_topology* t) const { hwloc_topology_destroy(t); }
  void operator()(hwloc_bitmap_s* b) const { hwloc_bitmap_free(b); }
};
using Handle = std::unique_ptr<hwloc_topology, Destroy>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, Destroy>;

Handle make_handle() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return nullptr;
  Handle handle(raw);
  // CPUs that this process may not use are handled by the limits, not the topology.
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  // The x86 component visits every CPU to read what Linux already reports.
  hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
  return handle;
}

std::string info(hwloc_obj_t object, const char* name) {
  const char* value = object ? hwloc_obj_get_info_by_name(object, name) : nullptr;
  return value ? value : "";
}

std::string cpu_name(hwloc_topology_t t) {
  hwloc_obj_t package = hwloc_get_obj_by_type(t, HWLOC_OBJ_PACKAGE, 0), machine = hwloc_get_root_obj(t);
  for (hwloc_obj_t object : {package, machine})
    if (std::string name = info(object, "CPUModel"); !name.empty()) return name;
  for (hwloc_obj_t object : {package, machine})  // on Arm, Linux reports numbers instead of names
    if (std::string part = info(object, "CPUPart"); !part.empty()) return "part " + part + " of vendor " + info(object, "CPUImplementer");
  return "";
}

std::string architecture(hwloc_topology_t t) {
  std::string name = info(hwloc_get_root_obj(t), "Architecture");
  return name == "x86_64" ? "x86-64" : name == "aarch64" ? "arm64" : name;
}

int count_cores(hwloc_topology_t t, hwloc_const_cpuset_t cpus) {
  const int cores = hwloc_get_nbobjs_inside_cpuset_by_type(t, cpus, HWLOC_OBJ_CORE);
  return std::max(1, cores > 0 ? cores : hwloc_bitmap_weight(cpus));
}

double number(const std::string& text) {
  const double value = std::strtod(text.c_str(), nullptr);
  return value > 0 && value < 1e9 ? value : 0;
}

// The system's hint about a kind's speed: its capacity, or its highest frequency.
double guess_speed(unsigned count, const hwloc_info_s* infos) {
  double capacity = 0, highest = 0, base = 0, atom = 1;
  for (unsigned i = 0; i < count; ++i) {
    const std::string name = infos[i].name, value = infos[i].value;
    if (name == "LinuxCapacity") capacity = number(value);
    if (name == "FrequencyMaxMHz") highest = number(value);
    if (name == "FrequencyBaseMHz") base = number(value);
    if (name == "CoreType" && value == "IntelAtom") atom = 0.6;  // does less per cycle
  }
  return capacity > 0 ? capacity : atom * (highest > 0 ? highest : base);
}

void read_kinds(hwloc_topology_t t, Topology& out, const std::vector<hwloc_obj_t>& objects) {
  const int kinds = hwloc_cpukinds_get_nr(t, 0);
  std::vector<double> guess(std::max(kinds, 0));
  for (int k = 0; k < kinds; ++k) {
    unsigned count = 0;
    hwloc_info_s* infos = nullptr;
    Bitmap cpus(hwloc_bitmap_alloc());
    int efficiency = -1;
    if (hwloc_cpukinds_get_info(t, unsigned(k), cpus.get(), &efficiency, &count, &infos, 0) == 0) guess[k] = guess_speed(count, infos);
  }
  for (size_t i = 0; i < objects.size(); ++i) {
    const int k = kinds > 0 ? hwloc_cpukinds_get_by_cpuset(t, objects[i]->cpuset, 0) : -1;
    out.cores[i].reported = k >= 0 && k < kinds ? k : -1;
    out.cores[i].guess = out.cores[i].reported >= 0 ? guess[k] : 0;
  }
}

Topology convert(hwloc_topology_t t) {
  Topology out;
  out.cpu_name = cpu_name(t);
  out.architecture = architecture(t);
  out.packages = std::max(1, hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_PACKAGE));
  out.numa_nodes = std::max(1, hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_NUMANODE));
  out.memory_bytes = int64_t(std::min<hwloc_uint64_t>(hwloc_get_root_obj(t)->total_memory, uint64_t(1) << 60));

  std::vector<hwloc_obj_t> objects;                // one per core: a core, or a CPU that belongs to none
  std::map<hwloc_obj_t, int> core_of, cluster_of;  // to numbers
  for (hwloc_obj_t pu = nullptr; (pu = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_PU, pu));) {
    hwloc_obj_t object = hwloc_get_ancestor_obj_by_type(t, HWLOC_OBJ_CORE, pu);
    if (!object) object = pu;
    auto [at, fresh] = core_of.try_emplace(object, int(objects.size()));
    if (fresh) {
      objects.push_back(object);
      Core core;
      hwloc_obj_t shared = nullptr;
      for (hwloc_obj_t o = object; o; o = o->parent) {
        const int cores = count_cores(t, o->cpuset);
        if (hwloc_obj_type_is_dcache(o->type)) core.caches.push_back({int(o->attr->cache.depth), int64_t(o->attr->cache.size), cores});
        if (!shared && cores > 1) shared = o;
      }
      std::erase_if(core.caches, [](const Cache& c) { return c.bytes <= 0 || c.level < 1; });
      core.cluster = cluster_of.try_emplace(shared ? shared : object, int(cluster_of.size())).first->second;
      if (hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(t, HWLOC_OBJ_PACKAGE, object)) core.package = int(package->logical_index);
      for (hwloc_obj_t node = nullptr; (node = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_NUMANODE, node));)
        if (hwloc_bitmap_isincluded(object->cpuset, node->cpuset)) {
          core.numa_node = int(node->logical_index);
          break;
        }
      out.cores.push_back(std::move(core));
    }
    out.cores[at->second].cpus.push_back(int(pu->os_index));
  }
  for (Core& core : out.cores) std::sort(core.cpus.begin(), core.cpus.end());
  read_kinds(t, out, objects);
  if (!out.cores.empty()) set_kinds_by_hints(out);
  return out;
}

}  // namespace

Topology topology_from_hwloc() {
  // Without these files hwloc knows only the number of CPUs, and complains on stderr.
  const char* root = std::getenv("HWLOC_FSROOT");
  std::error_code unknown;
  if (!std::filesystem::exists(std::filesystem::path(root ? root : "/") / "sys/devices/system/cpu/cpu0/topology", unknown)) return {};
  Handle handle = make_handle();
  if (!handle || hwloc_topology_load(handle.get()) != 0) return {};
  Topology out = convert(handle.get());
  const hwloc_topology_support* support = hwloc_topology_get_support(handle.get());
  out.can_pin = hwloc_topology_is_thissystem(handle.get()) && support && support->cpubind->set_thread_cpubind;
  return out;
}

Topology topology_from_xml(std::string_view xml) {
  Handle handle = make_handle();
  const std::string text(xml);  // hwloc expects the length to include the terminating zero
  if (!handle || hwloc_topology_set_xmlbuffer(handle.get(), text.c_str(), int(text.size()) + 1) != 0 || hwloc_topology_load(handle.get()) != 0)
    fail(ErrorCode::value, "[topology] {} bytes are not a topology in hwloc's XML format, version 2; export one with lstopo", xml.size());
  Topology out = convert(handle.get());
  if (out.cores.empty()) fail(ErrorCode::value, "[topology] no CPUs in {} bytes of hwloc's XML", xml.size());
  return out;
}

}  // namespace ridge
