// The machine as a picture: a floor plan of its cores and caches, its memory, its GPUs, the measured figures, and what Ridge would use.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include <fmt/core.h>

#include "base/svg.h"
#include "base/text.h"
#include "doctor/floor_plan.h"
#include "doctor/report.h"

namespace ridge {
namespace {

using svg::Anchor;
using svg::Box;
using svg::Ink;
using svg::Picture;

constexpr double kWidth = 1200, kMargin = 40, kInner = kWidth - 2 * kMargin;
constexpr double kLeft = 700, kRight = 310, kRightX = kWidth - kMargin - kRight;  // the gap between them shows the path to memory
constexpr double kHead = 124, kMemoryHeight = 176, kGap = 18;

// Widths are estimated for common fonts, but some fonts are wider: text that must not run into its neighbour gets this much extra room.
constexpr double kWide = 1.12;

Ink ink_of(int kind) {
  constexpr std::array<Ink, 4> kInks = {Ink::blue, Ink::teal, Ink::violet, Ink::amber};
  return kInks[size_t(std::max(0, kind)) % kInks.size()];
}

void panel(Picture& picture, const Box& box) { picture.rect(box, {.fill = Ink::panel, .stroke = Ink::rule, .radius = 14}); }

std::string letter_of(const Topology& topology, int kind) {
  if (topology.kinds.size() < 2 || size_t(kind) >= topology.kinds.size()) return {};
  const std::string& name = topology.kinds[size_t(kind)].name;
  return name.starts_with("low") ? "LP" : name.empty() ? "" : std::string(1, char(name[0] & ~0x20));
}

// A size short enough for a tile: "32K", "1.25M".
std::string short_size(int64_t bytes) {
  std::string text = size_text(bytes);
  const size_t space = text.find(' ');
  return space == std::string::npos || space + 1 >= text.size() ? text : text.substr(0, space) + text[space + 1];
}

// Measured performance of one core alone; zeros: not measured, or not for every core.
struct CoreFigures {
  double gflops = 0;
  std::array<double, 3> read_gbs = {};  // from L1, from L2, and from L3 by all cores together
};

CoreFigures core_figures(const DoctorFacts& facts) {
  CoreFigures figures;
  if (!facts.ceilings || facts.machine.topology.kinds.size() != 1) return figures;
  const MachineCeilings& c = *facts.ceilings;
  if (const RateCeiling* rate = c.rate(DType::f32, 1)) figures.gflops = rate->gflops.median;
  if (const BandwidthCeiling* b = c.bandwidth("L1", Movement::read, 1)) figures.read_gbs[0] = b->gbs.median;
  if (const BandwidthCeiling* b = c.bandwidth("L2", Movement::read, 1)) figures.read_gbs[1] = b->gbs.median;
  if (const BandwidthCeiling* b = c.bandwidth("L3", Movement::read)) figures.read_gbs[2] = b->gbs.median;
  return figures;
}

std::string three_digits(double value) {
  return value >= 99.5 ? fmt::format("{:.0f}", value) : value >= 9.95 ? fmt::format("{:.1f}", value) : fmt::format("{:.2f}", value);
}

void draw_core(Picture& picture, const PlannedCore& core, const Topology& topology, const CoreFigures& figures) {
  const Box& b = core.box;
  const double side = b.width;
  const bool usable = core.usable > 0;
  const Ink ink = ink_of(core.kind), on = usable ? Ink::paper : Ink::muted;
  const double radius = std::min(10.0, 0.14 * side);
  if (usable)
    picture.rect(b, {.fill = ink, .opacity = core.usable < core.cores ? 0.7 : 1.0, .radius = radius});
  else
    picture.rect(b, {.fill = Ink::panel, .stroke = Ink::rule, .radius = radius, .dashes = "3 2"});

  const std::string label = core.cores > 1 ? fmt::format("{}×", core.cores) : letter_of(topology, core.kind) + std::to_string(core.number);
  const double centre = b.x + side / 2;
  // Hardware threads are bars at the bottom of the core.
  auto threads = [&](double y, double height) {
    const double gap = std::max(1.5, 0.05 * side), width = (side - 2 * gap - 2 * radius / 2 - (core.threads - 1) * gap) / core.threads;
    for (int t = 0; t < core.threads && core.threads > 1; ++t)
      picture.rect({b.x + gap + radius / 2 + t * (width + gap), y, width, height}, {.fill = on, .opacity = 0.75, .radius = height / 3});
  };
  if (side >= 78) {
    picture.text({b.x + 0.11 * side, b.y + 0.26 * side}, label, {.size = 0.19 * side, .ink = on, .bold = true});
    const CoreKind* kind = size_t(core.kind) < topology.kinds.size() ? &topology.kinds[size_t(core.kind)] : nullptr;
    constexpr double kDetailedSize = 130;  // large enough to show figures too
    const double size = std::min(14.0, 0.105 * side);
    double y = b.y + 0.46 * side;
    for (int level : {1, 2}) {
      const int64_t bytes = kind ? kind->cache_bytes(level) : 0;
      if (bytes == 0) continue;
      picture.text({b.x + 0.11 * side, y}, fmt::format("L{} {}", level, size_text(bytes)), {.size = size, .ink = on});
      if (const double gbs = figures.read_gbs[size_t(level - 1)]; side >= kDetailedSize && gbs > 0)
        picture.text({b.x + 0.89 * side, y}, fmt::format("{} GB/s", three_digits(gbs)), {.size = size, .ink = on, .anchor = Anchor::end});
      y += 0.15 * side;
    }
    if (side >= kDetailedSize && figures.gflops > 0)
      picture.text({b.x + 0.89 * side, b.y + 0.26 * side}, fmt::format("{} GFLOP/s", three_digits(figures.gflops)),
                   {.size = 1.1 * size, .ink = on, .anchor = Anchor::end, .bold = true});
    threads(b.y + 0.82 * side, 0.07 * side);
  } else if (side >= 28) {
    picture.text({centre, b.y + (core.threads > 1 ? 0.55 : 0.62) * side}, label,
                 {.size = std::min(18.0, 0.34 * side), .ink = on, .anchor = Anchor::middle, .bold = true});
    threads(b.y + 0.74 * side, 0.1 * side);
  } else if (core.threads > 1) {
    threads(b.y + 0.62 * side, std::max(2.0, 0.16 * side));
  }
}

void draw_cache(Picture& picture, const Box& bar, const Cache& cache, Ink ink, double gbs = 0) {
  if (bar.height <= 0) return;
  picture.rect(bar, {.fill = ink, .opacity = 0.18, .radius = 4});
  const double size = std::min(13.0, 0.62 * bar.height);
  std::string text = fmt::format("L{} {}", cache.level, size_text(cache.bytes));
  if (gbs > 0) text += fmt::format(" · {} GB/s", three_digits(gbs));
  if (kWide * svg::text_width(text, size, true) > bar.width - 4) text = short_size(cache.bytes);
  if (kWide * svg::text_width(text, size, true) > bar.width) return;
  picture.text({bar.x + bar.width / 2, bar.y + bar.height / 2 + 0.36 * size}, text, {.size = size, .ink = ink, .anchor = Anchor::middle, .bold = true});
}

void draw_floor(Picture& picture, const FloorPlan& plan, const DoctorFacts& facts) {
  const Topology& topology = facts.machine.topology;
  const CoreFigures figures = core_figures(facts);
  const bool alone = plan.sockets.size() == 1 && plan.sockets[0].clusters.size() == 1;  // the figure is for this cache, not for several
  for (const PlannedSocket& socket : plan.sockets) {
    panel(picture, socket.box);
    const std::string title = topology.packages > 1 ? fmt::format("Socket {}", socket.number) : "CPU";
    picture.text({socket.box.x + 18, socket.box.y + 23}, title, {.size = 14, .bold = true});
    picture.text({socket.box.x + socket.box.width - 18, socket.box.y + 23}, fmt::format("{} {}", socket.cores, socket.cores == 1 ? "core" : "cores"),
                 {.size = 13, .ink = Ink::muted, .anchor = Anchor::end});
    for (const PlannedCluster& cluster : socket.clusters) {
      picture.rect(cluster.box, {.fill = Ink::paper, .stroke = Ink::rule, .radius = std::min(10.0, 4 + 0.06 * plan.core_size)});
      for (const PlannedModule& module : cluster.modules) {
        picture.rect(module.box, {.fill = Ink::panel, .stroke = Ink::rule, .radius = std::min(8.0, 3 + 0.05 * plan.core_size)});
        draw_cache(picture, module.cache_bar, module.cache, Ink::teal);
      }
      for (const PlannedCore& core : cluster.cores) draw_core(picture, core, topology, figures);
      draw_cache(picture, cluster.cache_bar, cluster.cache, Ink::amber, alone && cluster.cache.level == 3 ? figures.read_gbs[2] : 0);
    }
  }
}

// One line for each kind of core. Returns the height.
double draw_legend(Picture& picture, const Machine& machine, double x, double y, double width) {
  const double top = y;
  for (size_t k = 0; k < machine.topology.kinds.size(); ++k) {
    const CoreKind& kind = machine.topology.kinds[k];
    std::string text = machine.topology.kinds.size() > 1 ? fmt::format("{} {}", kind.cores(), kind.name)
                                                         : fmt::format("{} {}", kind.cores(), kind.cores() == 1 ? "core" : "cores");
    if (kind.threads() > kind.cores()) text += fmt::format(" · {} threads", kind.threads());
    if (machine.topology.kinds.size() > 1) text += fmt::format(" · {:.2f}× speed{}", kind.speed, kind.measured ? "" : " (as reported)");
    for (const Cache& cache : kind.caches)
      text += fmt::format(" · L{} {}{}", cache.level, size_text(cache.bytes), cache.cores > 1 ? fmt::format("/{}", cache.cores) : "");
    picture.rect({x, y, 12, 12}, {.fill = ink_of(int(k)), .radius = 3});
    picture.text({x + 20, y + 11}, svg::fit(text, width - 20, 13), {.size = 13, .ink = Ink::muted});
    y += 22;
  }
  const int all = machine.topology.core_count(), usable = machine.cores();
  if (usable < all) {
    picture.rect({x, y, 12, 12}, {.fill = Ink::panel, .stroke = Ink::muted, .radius = 3, .dashes = "2 2"});
    picture.text({x + 20, y + 11}, fmt::format("this process may not use {} of {} cores", all - usable, all), {.size = 13, .ink = Ink::muted});
    y += 22;
  }
  return y - top;
}

struct Segment {
  double share;
  Ink ink;
  double opacity;
};

void draw_bar(Picture& picture, const Box& box, const std::vector<Segment>& segments) {
  picture.rect(box, {.fill = Ink::paper, .stroke = Ink::rule, .radius = 6});
  double x = box.x + 2;
  for (const Segment& s : segments) {
    const double width = std::clamp(s.share, 0.0, 1.0) * (box.width - 4);
    const double room = box.x + box.width - 2 - x;
    if (std::min(width, room) > 0.5) picture.rect({x, box.y + 2, std::min(width, room), box.height - 4}, {.fill = s.ink, .opacity = s.opacity, .radius = 4});
    x += width;
  }
}

void draw_memory(Picture& picture, const DoctorReport& report, const Box& box) {
  const Limits& limits = report.facts.machine.limits;
  panel(picture, box);
  const double x = box.x + 18, width = box.width - 36;
  picture.text({x, box.y + 25}, "Memory", {.size = 14, .bold = true});
  if (report.facts.machine.topology.numa_nodes > 1)
    picture.text({box.x + box.width - 18, box.y + 25}, fmt::format("{} NUMA nodes", report.facts.machine.topology.numa_nodes),
                 {.size = 13, .ink = Ink::muted, .anchor = Anchor::end});
  const int64_t total = std::max<int64_t>(1, limits.memory_total ? limits.memory_total : report.budget.bytes);
  const int64_t whole = limits.memory_limit > 0 ? std::min(limits.memory_limit, total) : total;
  const std::string size = limits.memory_total ? size_text(limits.memory_total) : "unknown";
  picture.text({x, box.y + 62}, size, {.size = 28, .bold = true});
  if (whole < total)
    picture.text({x + kWide * svg::text_width(size, 28, true) + 12, box.y + 61}, fmt::format("limited to {}", size_text(whole)), {.size = 13, .ink = Ink::red});

  const bool on_cpu = report.device.device.kind == Device::Kind::cpu;
  const int64_t used = std::max<int64_t>(0, whole - std::max<int64_t>(0, limits.memory_available));
  const int64_t budget = on_cpu ? std::min(report.budget.bytes, whole - std::min(whole, used)) : 0;
  const int64_t rest = std::max<int64_t>(0, whole - used - budget);
  auto share = [&](int64_t bytes) { return double(bytes) / double(whole); };
  draw_bar(picture, {x, box.y + 80, width, 24}, {{share(used), Ink::muted, 0.55}, {share(budget), Ink::green, 1}, {share(rest), Ink::green, 0.28}});
  double row = box.y + 124;
  auto entry = [&](double at, Ink ink, double opacity, const std::string& text) {
    picture.rect({at, row - 9, 10, 10}, {.fill = ink, .opacity = opacity, .radius = 3});
    picture.text({at + 16, row}, text, {.size = 12.5, .ink = Ink::muted});
  };
  entry(x, Ink::muted, 0.55, fmt::format("in use {}", size_text(used)));
  entry(x + width / 2, Ink::green, 0.28, fmt::format("left free {}", size_text(rest)));
  row += 24;
  if (on_cpu) entry(x, Ink::green, 1, fmt::format("Ridge's budget {}", size_text(report.budget.bytes)));
}

struct Figure {
  std::string value, unit, what;
};

Figure rate_figure(double gflops, const std::string& what) {
  return gflops >= 1000 ? Figure{three_digits(gflops / 1000), "TFLOP/s", what} : Figure{three_digits(gflops), "GFLOP/s", what};
}

std::vector<Figure> figures_of(const DoctorFacts& facts) {
  std::vector<Figure> figures;
  if (!facts.ceilings) return figures;
  const MachineCeilings& c = *facts.ceilings;
  for (DType dtype : {DType::f32, DType::bf16, DType::f64})
    if (const RateCeiling* rate = c.rate(dtype)) figures.push_back(rate_figure(rate->gflops.median, fmt::format("{} multiply-add", name(dtype))));
  for (Movement movement : {Movement::read, Movement::triad})
    if (const BandwidthCeiling* b = c.bandwidth("memory", movement))
      figures.push_back({three_digits(b->gbs.median), "GB/s", fmt::format("memory {}", name(movement))});
  for (const std::string& level : c.levels())
    if (const BandwidthCeiling* b = c.bandwidth(level, Movement::read); b && level != "memory")
      figures.push_back(b->gbs.median >= 1000 ? Figure{three_digits(b->gbs.median / 1000), "TB/s", level + " read"}
                                              : Figure{three_digits(b->gbs.median), "GB/s", level + " read"});
  if (!c.fork_joins.empty()) figures.push_back({three_digits(c.fork_joins.back().us.median), "µs", std::string("fork and join")});
  return figures;
}

double figures_height(size_t count) { return 62 + 56 * std::ceil(double(std::max<size_t>(count, 1)) / 2); }

void draw_figures(Picture& picture, const DoctorFacts& facts, const std::vector<Figure>& figures, const Box& box) {
  panel(picture, box);
  const double x = box.x + 18;
  picture.text({x, box.y + 25}, "Measured", {.size = 14, .bold = true});
  picture.text({box.x + box.width - 18, box.y + 25}, svg::fit(measured_text(facts), 190, 12.5), {.size = 12.5, .ink = Ink::muted, .anchor = Anchor::end});
  if (figures.empty()) picture.text({x, box.y + 64}, "nothing yet: run ridge probe", {.size = 13, .ink = Ink::muted});
  const double lines = std::ceil(double(std::max<size_t>(1, figures.size())) / 2);
  const double step = std::clamp((box.height - 62) / lines, 56.0, 92.0);
  for (size_t i = 0; i < figures.size(); ++i) {
    const double left = x + (i % 2 ? (box.width - 36) / 2 : 0), top = box.y + 62 + step * double(i / 2);
    picture.text({left, top}, figures[i].value, {.size = 23, .bold = true});
    picture.text({left + kWide * svg::text_width(figures[i].value, 23, true) + 6, top}, figures[i].unit, {.size = 12.5, .ink = Ink::muted});
    picture.text({left, top + 18}, svg::fit(figures[i].what, (box.width - 40) / 2 / kWide, 12.5), {.size = 12.5, .ink = Ink::muted});
  }
}

// The path between cores and memory; its width shows its speed.
void draw_bus(Picture& picture, const DoctorFacts& facts, double y) {
  const BandwidthCeiling* copy = facts.ceilings ? facts.ceilings->bandwidth("memory", Movement::copy) : nullptr;
  const double from = kMargin + kLeft, to = kRightX;
  const double height = copy ? std::clamp(6 * std::log10(std::max(1.0, copy->gbs.median)), 5.0, 18.0) : 5;
  picture.rect({from, y - height / 2, to - from, height}, {.fill = Ink::blue, .opacity = 0.3});
  if (!copy) return;
  const double middle = (from + to) / 2;
  picture.text({middle, y - height / 2 - 24}, three_digits(copy->gbs.median), {.size = 21, .ink = Ink::blue, .anchor = Anchor::middle, .bold = true});
  picture.text({middle, y - height / 2 - 8}, "GB/s copy", {.size = 12, .ink = Ink::muted, .anchor = Anchor::middle});
}

// What a GPU is used for, or why it is not used.
std::string gpu_state(const DoctorReport& report, const KnownDevice* known) {
  if (!known) return "not available in this build of Ridge";
  if (!known->missing.empty()) return known->missing;
  return report.device.device == known->device ? fmt::format("Ridge's budget {}", size_text(report.budget.bytes)) : std::string();
}

void draw_gpu(Picture& picture, const DoctorReport& report, const Gpu& gpu, const Box& box) {
  const KnownDevice* known = nullptr;
  for (const KnownDevice& device : report.devices)
    if (gpu.ordinal >= 0 && device.device == Device{Device::Kind::cuda, gpu.ordinal}) known = &device;
  const bool usable = known && known->missing.empty();
  panel(picture, box);
  const double x = box.x + 20, width = box.width - 40;
  picture.rect({box.x, box.y + 14, 5, box.height - 28}, {.fill = usable ? Ink::green : Ink::muted, .radius = 2});
  picture.text({x, box.y + 32}, svg::fit(gpu.name, (width - 80) / kWide, 18, true), {.size = 18, .bold = true});
  if (gpu.ordinal >= 0)
    picture.text({x + width, box.y + 32}, fmt::format("cuda:{}", gpu.ordinal), {.size = 14, .ink = Ink::green, .anchor = Anchor::end, .bold = true});
  std::string line;
  auto add = [&](const std::string& part) { line += (line.empty() ? "" : " · ") + part; };
  if (const std::string figures = measured_summary(report.facts, gpu); !figures.empty()) add(figures);
  if (gpu.capability) add(fmt::format("compute {}.{}", gpu.capability / 10, gpu.capability % 10));
  if (gpu.processors) add(fmt::format("{} processors", gpu.processors));
  if (gpu.busy >= 0) add(fmt::format("{} % busy", gpu.busy));
  if (gpu.celsius >= 0) add(fmt::format("{} °C", gpu.celsius));
  if (gpu.watts >= 0) add(gpu.watts_limit > 0 ? fmt::format("{:.0f} of {:.0f} W", gpu.watts, gpu.watts_limit) : fmt::format("{:.0f} W", gpu.watts));
  if (line.empty()) add(gpu.pci.empty() ? std::string(name(gpu.vendor)) : "PCI " + gpu.pci);
  picture.text({x, box.y + 54}, svg::fit(line, width / kWide, 13), {.size = 13, .ink = Ink::muted});
  double foot = box.y + 54;
  if (gpu.memory_total > 0) {
    const double free = double(gpu.memory_free) / double(gpu.memory_total);
    draw_bar(picture, {x, box.y + 68, width, 18}, {{1 - free, Ink::muted, 0.55}, {free, Ink::green, usable ? 1 : 0.45}});
    foot = box.y + 106;
    const std::string memory =
        gpu.memory_free ? fmt::format("{} of {} free", size_text(gpu.memory_free), size_text(gpu.memory_total)) : size_text(gpu.memory_total);
    picture.text({x, foot}, memory, {.size = 13, .ink = Ink::muted});
  }
  picture.text({x + width, foot}, svg::fit(gpu_state(report, known), (width - 170) / kWide, 13),
               {.size = 13, .ink = usable ? Ink::text : Ink::amber, .anchor = Anchor::end});
}

// Two GPUs per row; more than eight are counted, not drawn.
struct GpuRows {
  size_t shown, columns;
  double card, height;
  explicit GpuRows(const std::vector<Gpu>& gpus) : shown(std::min<size_t>(gpus.size(), 8)), columns(shown == 1 ? 1 : 2) {
    const bool memory = std::any_of(gpus.begin(), gpus.end(), [](const Gpu& gpu) { return gpu.memory_total > 0; });
    card = memory ? 124 : 76;
    height = gpus.empty() ? 44 : std::ceil(double(shown) / double(columns)) * (card + kGap) - kGap + (gpus.size() > shown ? 28 : 0);
  }
};

void draw_gpus(Picture& picture, const DoctorReport& report, double y) {
  const std::vector<Gpu>& gpus = report.facts.gpus.gpus;
  const GpuRows rows(gpus);
  if (gpus.empty()) {
    picture.rect({kMargin, y, kInner, rows.height}, {.fill = {}, .stroke = Ink::rule, .radius = 14, .dashes = "5 4"});
    picture.text({kMargin + 18, y + 27}, svg::fit("No GPU: " + report.facts.gpus.no_cuda, (kInner - 36) / kWide, 13), {.size = 13, .ink = Ink::muted});
    return;
  }
  const double width = (kInner - double(rows.columns - 1) * kGap) / double(rows.columns);
  for (size_t i = 0; i < rows.shown; ++i)
    draw_gpu(picture, report, gpus[i],
             {kMargin + double(i % rows.columns) * (width + kGap), y + double(i / rows.columns) * (rows.card + kGap), width, rows.card});
  if (gpus.size() > rows.shown)
    picture.text({kMargin + 4, y + rows.height - 6}, fmt::format("and {} more", gpus.size() - rows.shown), {.size = 13, .ink = Ink::muted});
}

// At most two lines; the rest is cut off.
void draw_paragraph(Picture& picture, svg::Point at, const std::string& words, double width, double size) {
  std::string first;
  size_t used = 0;
  for (size_t end = 0; end < words.size();) {
    end = std::min(words.find(' ', end + 1), words.size());
    if (svg::text_width(words.substr(0, end), size) > width) break;
    first = words.substr(0, end), used = end;
  }
  if (used == 0) first = svg::fit(words, width, size), used = words.size();
  picture.text(at, first, {.size = size, .ink = Ink::muted});
  if (used < words.size()) picture.text({at.x, at.y + 1.35 * size}, svg::fit(words.substr(used + 1), width, size), {.size = size, .ink = Ink::muted});
}

constexpr double kDecisionsHeight = 118;

void draw_decisions(Picture& picture, const DoctorReport& report, double y) {
  const size_t count = std::max<size_t>(1, report.decisions.size());
  const double width = (kInner - double(count - 1) * kGap) / double(count);
  for (size_t i = 0; i < report.decisions.size(); ++i) {
    const Decision& d = report.decisions[i];
    const Box box{kMargin + double(i) * (width + kGap), y, width, kDecisionsHeight};
    panel(picture, box);
    picture.rect({box.x + 18, box.y, 44, 4}, {.fill = Ink::blue, .radius = 2});
    picture.text({box.x + 18, box.y + 27}, d.setting == "memory" ? "memory budget" : d.setting, {.size = 13, .ink = Ink::muted});
    picture.text({box.x + 18, box.y + 58}, svg::fit(d.value, width - 36, 26, true), {.size = 26, .bold = true});
    draw_paragraph(picture, {box.x + 18, box.y + 80}, d.why, (width - 36) / kWide, 12.5);
  }
}

// Without the suffixes that vendors add to every name.
std::string chip_name(const Topology& topology) {
  std::string name = topology.cpu_name;
  for (std::string_view noise : {"(R)", "(TM)", "(r)", "(tm)", " Processor", " CPU"})
    for (size_t at; (at = name.find(noise)) != std::string::npos;) name.erase(at, noise.size());
  if (const size_t at = name.find(" @ "); at != std::string::npos) name.resize(at);
  return name.empty() ? "Unknown CPU" : name;
}

void draw_head(Picture& picture, const DoctorReport& report) {
  const DoctorFacts& facts = report.facts;
  const Topology& topology = facts.machine.topology;
  // The logo: a roofline, which rises with memory bandwidth and levels off at the arithmetic rate.
  const double right = kWidth - kMargin;
  const std::array<svg::Point, 3> roof = {svg::Point{right - 150, 72}, {right - 122, 44}, {right - 92, 44}};
  picture.path(roof, {.fill = {}, .stroke = Ink::blue, .width = 5});
  picture.circle({right - 122, 44}, 5.5, {.fill = Ink::amber});
  picture.text({right, 58}, "Ridge", {.size = 25, .anchor = Anchor::end, .bold = true});
  picture.text({right, 77}, "doctor", {.size = 13, .ink = Ink::muted, .anchor = Anchor::end});

  picture.text({kMargin, 64}, svg::fit(chip_name(topology), (kInner - 170) / kWide, 31, true), {.size = 31, .bold = true});
  std::string text = core_summary(topology);
  for (size_t at; (at = text.find(", ")) != std::string::npos;) text.replace(at, 2, " · ");
  text += fmt::format(" · {} · {}", topology.architecture, facts.isa);
  if (!facts.health.system.empty()) text += " · " + facts.health.system;
  if (facts.health.virtual_machine) text += " · virtual machine";
  if (facts.health.container) text += " · container";
  picture.text({kMargin, 93}, svg::fit(text, kInner / kWide, 15), {.size = 15, .ink = Ink::muted});
}

constexpr size_t kMaxProblems = 6;

// The verdict, one line per problem, and a line with the number omitted.
size_t finding_lines(const DoctorReport& report) {
  const size_t problems = problems_of(report).size();
  return 1 + std::min(problems, kMaxProblems) + (problems > kMaxProblems);
}

void draw_findings(Picture& picture, const DoctorReport& report, double y) {
  const std::vector<Finding> problems = problems_of(report);
  const size_t shown = std::min(problems.size(), kMaxProblems);
  auto line = [&](size_t i, std::optional<Ink> dot, const std::string& text, bool bold = false) {
    const double at = y + 22 * double(i);
    if (dot) picture.circle({kMargin + 6, at + 7}, 6, {.fill = *dot});
    picture.text({kMargin + 22, at + 12}, svg::fit(text, kInner - 160, 13.5), {.size = 13.5, .bold = bold});
  };
  line(0, problems.empty() ? std::optional(Ink::green) : std::nullopt, verdict(report), true);
  for (size_t i = 0; i < shown; ++i) line(1 + i, problems[i].level == Finding::Level::error ? Ink::red : Ink::amber, finding_text(problems[i]));
  if (shown < problems.size()) line(1 + shown, {}, fmt::format("and {} more, which ridge doctor lists", problems.size() - shown));
  picture.text({kWidth - kMargin, y + 12}, "ridge " + report.facts.version, {.size = 12.5, .ink = Ink::muted, .anchor = Anchor::end});
}

}  // namespace

std::string to_svg(const DoctorReport& report) {
  const Machine& machine = report.facts.machine;
  const std::vector<Figure> figures = figures_of(report.facts);
  const double right_height = kMemoryHeight + kGap + figures_height(figures.size());
  const size_t kinds = machine.topology.kinds.size() + (machine.cores() < machine.topology.core_count());
  const double legend = 22 * double(kinds) + 4;
  constexpr double kHighestPlan = 640;
  FloorPlan plan = plan_floor(machine, kLeft, std::max(machine.topology.packages > 1 ? kHighestPlan : 0.0, right_height - legend - 10));

  grow(plan, right_height - legend - 10 - plan.height);  // at least as tall as the column next to it
  const double body = std::max(right_height, plan.height + 10 + legend);
  const double gpus_y = kHead + body + kGap + 6, decisions_y = gpus_y + GpuRows(report.facts.gpus.gpus).height + kGap;
  const double findings_y = decisions_y + kDecisionsHeight + kGap + 8;
  const double height = findings_y + 22 * double(finding_lines(report)) + 22;

  Picture picture(kWidth, height, fmt::format("{}: {}", machine.topology.cpu_name, core_summary(machine.topology)),
                  "Cores by kind, caches, memory and GPUs of this machine with measured figures, and what Ridge would use");
  draw_head(picture, report);
  draw_bus(picture, report.facts, kHead + kMemoryHeight / 2 + 14);
  picture.group(
      {kMargin, kHead}, [&] { draw_floor(picture, plan, report.facts); }, "cores");
  draw_legend(picture, machine, kMargin + 2, kHead + plan.height + 12, kLeft);
  draw_memory(picture, report, {kRightX, kHead, kRight, kMemoryHeight});
  draw_figures(picture, report.facts, figures, {kRightX, kHead + kMemoryHeight + kGap, kRight, body - kMemoryHeight - kGap});
  draw_gpus(picture, report, gpus_y);
  draw_decisions(picture, report, decisions_y);
  draw_findings(picture, report, findings_y);
  return picture.str();
}

}  // namespace ridge
