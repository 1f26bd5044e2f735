#include "doctor/floor_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace ridge {
namespace {

constexpr double kSocketPadding = 18, kSocketTitle = 34, kSocketGap = 16;
constexpr size_t kMaxTiles = 1024;

struct Sizes {
  double core, gap, padding, cluster_gap, bar;
  explicit Sizes(double size)
      : core(size),
        gap(std::max(2.0, 0.09 * size)),
        padding(std::max(5.0, 0.12 * size)),
        cluster_gap(std::max(6.0, 0.16 * size)),
        bar(std::clamp(0.26 * size, 15.0, 26.0)) {}
};

// A single core, or a few that share a cache.
struct Item {
  std::vector<PlannedCore> cores;
  Cache cache = {};
  bool module() const { return cache.bytes > 0; }
};

struct KindGroup {
  double scale = 1;  // of its cores' size: slower ones are drawn smaller
  std::vector<Item> items = {};
};

struct Group {
  std::map<int, KindGroup> kinds;
  Cache cache;
};

// A socket's cores by last-level cache. A cache's core count says how many of the cores that look alike share it.
std::vector<std::vector<const Core*>> domains_of(const std::vector<const Core*>& cores) {
  struct Open {
    Cache cache;
    size_t domain;
  };
  std::vector<std::vector<const Core*>> domains;
  std::vector<Open> open;
  std::map<int, size_t> by_cluster;  // for cores without a shared last-level cache
  for (const Core* core : cores) {
    const Cache last = core->caches.empty() ? Cache{} : core->caches.back();
    if (last.cores <= 1) {
      auto [at, fresh] = by_cluster.try_emplace(core->cluster, domains.size());
      if (fresh) domains.emplace_back();
      domains[at->second].push_back(core);
      continue;
    }
    auto found = std::find_if(open.begin(), open.end(), [&](const Open& o) { return o.cache == last && int(domains[o.domain].size()) < last.cores; });
    if (found == open.end()) {
      found = open.insert(open.end(), {last, domains.size()});
      domains.emplace_back();
    }
    domains[found->domain].push_back(core);
  }
  return domains;
}

Group group_of(const std::vector<const Core*>& domain, const Machine& machine, const std::set<int>& allowed) {
  const std::vector<CoreKind>& kinds = machine.topology.kinds;
  const bool many = machine.topology.cores.size() > kMaxTiles;
  Group group;
  std::map<int, size_t> module_of;  // by cluster
  for (const Core* core : domain) {
    const bool usable = std::any_of(core->cpus.begin(), core->cpus.end(), [&](int cpu) { return allowed.count(cpu) > 0; });
    const PlannedCore planned{{}, core->kind, core->cpus.front(), int(core->cpus.size()), 1, usable};
    KindGroup& kind = group.kinds[core->kind];
    if (size_t(core->kind) < kinds.size()) kind.scale = std::clamp(std::sqrt(kinds[size_t(core->kind)].speed), 0.6, 1.0);
    if (!core->caches.empty() && (core->caches.back().cores > 1 || core->caches.back().level > 2)) group.cache = core->caches.back();

    if (many && !kind.items.empty()) {  // one tile represents all
      kind.items[0].cores[0].cores += 1, kind.items[0].cores[0].usable += usable;
      continue;
    }
    Cache shared;  // closer than the last level, shared by part of the domain
    for (const Cache& cache : core->caches)
      if (cache.cores > 1 && cache.cores < int(domain.size()) && &cache != &core->caches.back()) shared = cache;
    if (shared.bytes == 0 || many) {
      kind.items.push_back({{planned}});
      continue;
    }
    auto [at, fresh] = module_of.try_emplace(core->cluster, kind.items.size());
    if (fresh) kind.items.push_back({{}, shared});
    kind.items[at->second].cores.push_back(planned);
  }
  return group;
}

// Socket, then cluster, then kind.
std::map<int, std::vector<Group>> groups_of(const Machine& machine) {
  const std::set<int> allowed(machine.limits.cpus.begin(), machine.limits.cpus.end());
  std::map<int, std::vector<const Core*>> packages;
  for (const Core& core : machine.topology.cores)
    if (!core.cpus.empty()) packages[core.package].push_back(&core);
  std::map<int, std::vector<Group>> sockets;
  for (const auto& [package, cores] : packages)
    for (const auto& domain : domains_of(cores)) sockets[package].push_back(group_of(domain, machine, allowed));
  return sockets;
}

size_t square_columns(size_t count, double aspect) { return std::max<size_t>(1, size_t(std::ceil(std::sqrt(double(count) * aspect)))); }

struct Extent {
  double width, height;
};

// The size of one item with cores of this size; all items of a kind get the size of the largest.
Extent extent_of(const Item& item, double side, const Sizes& sizes) {
  if (!item.module()) return {side, side};
  const size_t columns = square_columns(item.cores.size(), 1), lines = (item.cores.size() + columns - 1) / columns;
  const double step = side + sizes.gap;
  return {double(columns) * step - sizes.gap + 2 * sizes.gap, double(lines) * step + sizes.gap + 0.8 * sizes.bar + sizes.gap};
}

void place_item(const Item& item, double x, double y, double side, const Sizes& sizes, PlannedCluster& cluster) {
  if (!item.module()) {
    cluster.cores.push_back(item.cores[0]);
    cluster.cores.back().box = {x, y, side, side};
    return;
  }
  const Extent extent = extent_of(item, side, sizes);
  const size_t columns = square_columns(item.cores.size(), 1);
  const double step = side + sizes.gap, bar = 0.8 * sizes.bar;
  for (size_t i = 0; i < item.cores.size(); ++i) {
    cluster.cores.push_back(item.cores[i]);
    cluster.cores.back().box = {x + sizes.gap + double(i % columns) * step, y + sizes.gap + double(i / columns) * step, side, side};
  }
  cluster.modules.push_back(
      {{x, y, extent.width, extent.height}, {x + sizes.gap, y + extent.height - bar - sizes.gap, extent.width - 2 * sizes.gap, bar}, item.cache});
}

// Lays out a cluster at (0, 0), no wider than `width` if possible.
PlannedCluster lay_cluster(const Group& group, const Sizes& sizes, double width, double aspect) {
  PlannedCluster cluster;
  cluster.cache = group.cache;
  struct Line {
    const KindGroup* kind;
    size_t begin, end;
    Extent item;
    double width;
  };
  std::vector<Line> lines;
  double widest = 0;
  for (const auto& [index, kind] : group.kinds) {
    Extent item{0, 0};
    for (const Item& i : kind.items) {
      const Extent e = extent_of(i, sizes.core * kind.scale, sizes);
      item = {std::max(item.width, e.width), std::max(item.height, e.height)};
    }
    const size_t count = kind.items.size();
    const size_t fit = std::max<size_t>(1, size_t((width - 2 * sizes.padding + sizes.gap) / (item.width + sizes.gap)));
    const size_t rows = (count + std::min(fit, square_columns(count, aspect)) - 1) / std::min(fit, square_columns(count, aspect));
    const size_t columns = (count + rows - 1) / rows;  // even lines look better than a full and a short one
    for (size_t begin = 0; begin < count; begin += columns) {
      const size_t end = std::min(count, begin + columns);
      lines.push_back({&kind, begin, end, item, double(end - begin) * (item.width + sizes.gap) - sizes.gap});
      widest = std::max(widest, lines.back().width);
    }
  }
  double y = sizes.padding;
  for (const Line& line : lines) {
    double x = sizes.padding + (widest - line.width) / 2;
    for (size_t i = line.begin; i < line.end; ++i, x += line.item.width + sizes.gap)
      place_item(line.kind->items[i], x, y, sizes.core * line.kind->scale, sizes, cluster);
    y += line.item.height + sizes.gap;
  }
  if (group.cache.bytes > 0) {
    cluster.cache_bar = {sizes.padding, y, widest, sizes.bar};
    y += sizes.bar + sizes.gap;
  }
  cluster.box = {0, 0, widest + 2 * sizes.padding, y - sizes.gap + sizes.padding};
  return cluster;
}

void move(PlannedCluster& cluster, double dx, double dy) {
  auto shift = [&](svg::Box& box) { box.x += dx, box.y += dy; };
  shift(cluster.box);
  for (PlannedModule& module : cluster.modules) shift(module.box), shift(module.cache_bar);
  shift(cluster.cache_bar);
  for (PlannedCore& core : cluster.cores) shift(core.box);
}

PlannedSocket lay_socket(const std::vector<Group>& groups, const Sizes& sizes, double aspect, double width, double top) {
  const double inner = width - 2 * kSocketPadding;
  PlannedSocket socket;
  std::vector<PlannedCluster> clusters;
  double widest = 0;
  for (const Group& group : groups) {
    clusters.push_back(lay_cluster(group, sizes, inner, aspect));
    widest = std::max(widest, clusters.back().box.width);
  }
  const size_t fits = std::max<size_t>(1, size_t((inner + sizes.cluster_gap) / (widest + sizes.cluster_gap)));
  const size_t lines = (clusters.size() + fits - 1) / fits;
  const size_t columns = (clusters.size() + lines - 1) / lines;
  double y = top + kSocketTitle;
  for (size_t begin = 0; begin < clusters.size(); begin += columns) {
    const size_t end = std::min(clusters.size(), begin + columns);
    double row_width = -sizes.cluster_gap, row_height = 0;
    for (size_t i = begin; i < end; ++i) row_width += clusters[i].box.width + sizes.cluster_gap, row_height = std::max(row_height, clusters[i].box.height);
    double x = (width - row_width) / 2;
    for (size_t i = begin; i < end; ++i) {
      move(clusters[i], x, y);
      x += clusters[i].box.width + sizes.cluster_gap;
      for (const PlannedCore& core : clusters[i].cores) socket.cores += core.cores;
      socket.clusters.push_back(clusters[i]);
    }
    y += row_height + sizes.cluster_gap;
  }
  socket.box = {0, top, width, y - sizes.cluster_gap + kSocketPadding - top};
  return socket;
}

FloorPlan lay_floor(const std::map<int, std::vector<Group>>& sockets, double width, double size, double aspect) {
  FloorPlan plan{.width = width, .height = 0, .core_size = size, .sockets = {}};
  double y = 0;
  for (const auto& [number, groups] : sockets) {
    plan.sockets.push_back(lay_socket(groups, Sizes(size), aspect, width, y));
    plan.sockets.back().number = number;
    y += plan.sockets.back().box.height + kSocketGap;
  }
  plan.height = std::max(0.0, y - kSocketGap);
  return plan;
}

bool fits(const FloorPlan& plan, double height) {
  if (plan.height > height) return false;
  for (const PlannedSocket& socket : plan.sockets)
    for (const PlannedCluster& cluster : socket.clusters)
      if (cluster.box.x < 0 || cluster.box.x + cluster.box.width > plan.width) return false;
  return true;
}

}  // namespace

FloorPlan plan_floor(const Machine& machine, double width, double height) {
  const auto sockets = groups_of(machine);
  FloorPlan plan;
  for (double size :
       {220.0, 195.0, 172.0, 150.0, 132.0, 116.0, 102.0, 90.0, 80.0, 71.0, 63.0, 56.0, 50.0, 44.0, 39.0, 34.0, 30.0, 26.0, 23.0, 20.0, 18.0, 16.0, 14.0, 12.0})
    for (double aspect : {2.0, 3.0, 4.5, 7.0, 1.2}) {
      plan = lay_floor(sockets, width, size, aspect);
      if (fits(plan, height)) return plan;
    }
  return plan;
}

void grow(FloorPlan& plan, double room) {
  if (room <= 0 || plan.sockets.empty()) return;
  PlannedSocket& last = plan.sockets.back();
  last.box.height += room;
  plan.height += room;
  for (PlannedCluster& cluster : last.clusters) move(cluster, 0, room / 2);
}

}  // namespace ridge
