// The circuit in columns, and next to it the same synapses as a matrix, which stays readable when they are many.
#include "cli/wiring_picture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/svg.h"
#include "base/text.h"

namespace ridge::cli {
namespace {

using svg::Anchor;
using svg::Ink;
using svg::Picture;
using svg::Point;

constexpr int64_t kMostDrawnNodes = 256, kMostDrawnSynapses = 20'000;
constexpr double kCircuitX = 80, kCircuitWidth = 740, kLeastGap = 80, kMatrixSide = 410, kTop = 150;

Point moved(Point from, double length, Point way) { return {from.x + length * way.x, from.y + length * way.y}; }
Ink polarity_ink(int polarity) { return polarity > 0 ? Ink::blue : Ink::red; }

// Nodes are the neurons, then the inputs.
struct CircuitLayout {
  const Wiring& wiring;
  std::vector<NeuronGroup> columns;  // [0]: the inputs
  std::vector<Point> at;
  std::vector<size_t> column_of = {};
  double radius = 0, height = 0, gap = 0;

  int polarity(int64_t source, int64_t target) const {
    const int64_t units = wiring.units();
    return source < units ? wiring.synapses()[size_t(source * units + target)] : wiring.sensory()[size_t((source - units) * units + target)];
  }
  Ink ink(size_t column) const {
    constexpr Ink kInks[] = {Ink::teal, Ink::violet, Ink::green};
    return column == 0 ? Ink::muted : column + 1 == columns.size() ? Ink::amber : kInks[(column - 1) % 3];
  }
  double matrix_x() const { return kCircuitX + gap * double(columns.size() - 1) + 130; }
  bool is_ring(size_t column) const { return wiring.layers() == 1 && column == 1 && columns.size() == 3; }
  // From top to bottom. Hidden neurons that all drive each other alternate between the sides of an ellipse: their synapses cross its inside.
  void place(size_t column) {
    const std::vector<int64_t>& nodes = columns[column].neurons;
    const double spacing = std::min(height / double(nodes.size()), 5 * radius), middle = 0.5 * double(nodes.size() - 1);
    for (size_t i = 0; i < nodes.size(); ++i) {
      const double down = double(i) - middle, across = is_ring(column) ? std::sqrt(1 - std::pow(down / (middle + 0.5), 2)) : 0;
      at[size_t(nodes[i])] = {kCircuitX + gap * double(column) + (i % 2 == 0 ? -0.45 : 0.45) * gap * across, kTop + height / 2 + spacing * down};
    }
  }
};

// Hidden neurons move next to what they are connected with, so that fewer synapses cross. Inputs and outputs keep their order.
void sort_columns(CircuitLayout& layout) {
  auto height_of_neighbours = [&](int64_t neuron) {
    double sum = 0, count = 0;
    for (int64_t other = 0; other < int64_t(layout.at.size()); ++other) {
      const bool linked = layout.polarity(other, neuron) != 0 || (other < layout.wiring.units() && layout.polarity(neuron, other) != 0);
      if (linked && layout.column_of[size_t(other)] != layout.column_of[size_t(neuron)]) sum += layout.at[size_t(other)].y, ++count;
    }
    return count == 0 ? layout.at[size_t(neuron)].y : sum / count;
  };
  for (int sweep = 0; sweep < 6; ++sweep)
    for (size_t column = 1; column + 1 < layout.columns.size(); ++column) {
      std::vector<std::pair<double, int64_t>> order;
      for (int64_t neuron : layout.columns[column].neurons) order.emplace_back(height_of_neighbours(neuron), neuron);
      std::sort(order.begin(), order.end());
      std::transform(order.begin(), order.end(), layout.columns[column].neurons.begin(), [](const auto& placed) { return placed.second; });
      layout.place(column);
    }
}

CircuitLayout lay_out(const Wiring& wiring) {
  CircuitLayout layout{wiring, neuron_groups(wiring), std::vector<Point>(size_t(wiring.units() + wiring.inputs()))};
  std::vector<int64_t> inputs(size_t(wiring.inputs()));
  std::iota(inputs.begin(), inputs.end(), wiring.units());
  layout.columns.insert(layout.columns.begin(), {"inputs", inputs});
  size_t largest = 0;
  for (const NeuronGroup& column : layout.columns) largest = std::max(largest, column.neurons.size());
  const double spacing = std::clamp(760.0 / double(largest), 17.0, 34.0);
  layout.radius = std::min(0.4 * spacing, 12.0);
  layout.height = std::max(spacing * double(largest), kMatrixSide + 60);
  layout.gap = std::max(kCircuitWidth / double(layout.columns.size() - 1), kLeastGap);
  layout.column_of.resize(layout.at.size());
  for (size_t column = 0; column < layout.columns.size(); ++column) {
    for (int64_t node : layout.columns[column].neurons) layout.column_of[size_t(node)] = column;
    layout.place(column);
  }
  sort_columns(layout);
  return layout;
}

// An arrow (excitatory) or a bar (inhibitory), which differ without colour too.
void draw_head(Picture& picture, Point tip, Point way, int polarity, double size, double opacity) {
  const Point side{-way.y, way.x}, back = moved(tip, polarity > 0 ? -size : -1, way);
  const double half = (polarity > 0 ? 0.45 : 0.6) * size;
  const Point corners[] = {moved(back, half, side), moved(back, -half, side), tip};
  if (polarity > 0)
    picture.path(corners, {.fill = Ink::blue, .opacity = opacity}, true);
  else
    picture.line(corners[0], corners[1], {.stroke = Ink::red, .width = 2, .opacity = opacity});
}

// arrive: the direction in which the synapse meets its target.
void draw_synapse(Picture& picture, const CircuitLayout& layout, int64_t source, int64_t target, Point arrive, double opacity) {
  const Point a = layout.at[size_t(source)], b = layout.at[size_t(target)];
  const size_t from_column = layout.column_of[size_t(source)], to_column = layout.column_of[size_t(target)];
  const double r = layout.radius, dx = b.x - a.x, dy = b.y - a.y, head = std::clamp(0.6 * r, 4.5, 7.0);
  Point from{a.x + 0.4 * dx, a.y + 0.1 * dy}, to = moved(b, -0.35 * std::abs(dx), arrive);
  if (from_column == to_column && layout.is_ring(to_column)) {  // through the inside; there and back are different lines
    const double middle = kCircuitX + layout.gap * double(to_column);
    from = {a.x + 0.5 * (middle - a.x), a.y + 0.25 * dy}, to = {b.x + 0.3 * (middle - b.x), b.y - 0.25 * dy};
  } else if (from_column == to_column) {  // past the column's neurons on the right
    const double bow = std::min(2 * r + (dy < 0 ? 0.36 : 0.28) * std::abs(dy), 0.55 * layout.gap);
    from = {a.x + bow, a.y + 0.15 * dy}, to = {b.x + bow, b.y - 0.15 * dy};
  } else if (from_column + 1 < to_column) {  // above the neurons between
    from.y -= 0.2 * dx, to.y -= 0.2 * dx;
  } else if (from_column > to_column) {  // back towards the inputs: below what goes forward
    from.y -= 0.2 * dx, to.y -= from_column - to_column > 1 ? 0.2 * dx : 0;
  }
  if (source == target) {  // outwards
    const double out = a.x < kCircuitX + layout.gap * double(to_column) ? -4 * r : 4 * r;
    from = {a.x + out, a.y - 2 * r}, to = {a.x + out, a.y + 2 * r};
  }
  for (Point* pull : {&from, &to}) pull->y = std::clamp(pull->y, kTop - 10, kTop + layout.height + 25);  // so the curve stays on the page
  auto way = [](Point p, Point q) { return moved({}, 1 / std::hypot(q.x - p.x, q.y - p.y), {q.x - p.x, q.y - p.y}); };
  const int polarity = layout.polarity(source, target);
  const Point leave = way(a, from), meet = way(to, b), tip = moved(b, -r - 1, meet);
  picture.curve(moved(a, r, leave), from, to, moved(tip, polarity > 0 ? -0.8 * head : 0, meet),
                {.stroke = polarity_ink(polarity), .width = 1.1, .opacity = opacity});
  draw_head(picture, tip, meet, polarity, head, std::max(opacity, 0.5));
}

// Synapses from other columns are spread over the side of the neuron where they arrive, in the order of their sources.
void draw_synapses(Picture& picture, const CircuitLayout& layout, double opacity) {
  for (int64_t target = 0; target < layout.wiring.units(); ++target) {
    std::vector<int64_t> sides[2];
    const Point to = layout.at[size_t(target)];
    for (int64_t source = 0; source < int64_t(layout.at.size()); ++source)
      if (layout.polarity(source, target) != 0) sides[layout.column_of[size_t(source)] < layout.column_of[size_t(target)]].push_back(source);
    for (int side : {0, 1}) {
      std::vector<int64_t>& sources = sides[side];
      std::sort(sources.begin(), sources.end(), [&](int64_t a, int64_t b) { return layout.at[size_t(a)].y < layout.at[size_t(b)].y; });
      for (size_t i = 0; i < sources.size(); ++i) {
        const Point from = layout.at[size_t(sources[i])];
        const double slot = 2 * (double(i) + 0.5) / double(sources.size()) - 1, chord = std::atan2(from.y - to.y, std::max(std::abs(from.x - to.x), 1.0));
        const double angle = 0.45 * slot + 0.55 * chord;
        draw_synapse(picture, layout, sources[i], target, {side == 1 ? std::cos(angle) : -std::cos(angle), -std::sin(angle)}, opacity);
      }
    }
  }
}

void draw_nodes(Picture& picture, const CircuitLayout& layout) {
  const double r = layout.radius;
  for (size_t column = 0; column < layout.columns.size(); ++column) {
    const NeuronGroup& group = layout.columns[column];
    const double x = kCircuitX + layout.gap * double(column);
    picture.text({x, kTop - 40}, group.name, {.size = 15, .ink = layout.ink(column), .anchor = Anchor::middle, .bold = true});
    picture.text({x, kTop - 22}, std::to_string(group.neurons.size()), {.size = 13, .ink = Ink::muted, .anchor = Anchor::middle});
    for (int64_t node : group.neurons) {
      const Point at = layout.at[size_t(node)];
      if (column == 0)
        picture.rect({at.x - r, at.y - r, 2 * r, 2 * r}, {.fill = Ink::paper, .stroke = Ink::muted, .width = 1.5, .radius = 3});
      else
        picture.circle(at, r, {.fill = layout.ink(column), .stroke = Ink::paper});
      const svg::TextStyle style{.size = r, .ink = column == 0 ? Ink::text : Ink::paper, .anchor = Anchor::middle, .bold = true};
      picture.text({at.x, at.y + 0.36 * r}, std::to_string(column == 0 ? node - layout.wiring.units() : node), style);
    }
  }
}

// Rows are sources and columns are targets, in the order of the circuit.
void draw_matrix(Picture& picture, const CircuitLayout& layout) {
  const double cell = std::min(kMatrixSide / double(layout.at.size()), 24.0), top = kTop + (layout.height - cell * double(layout.at.size())) / 2,
               left = layout.matrix_x();
  double y = top, free_y = 0, free_x = 0;  // labels of narrow groups are left out where they would overlap
  for (size_t row = 0; row < layout.columns.size(); ++row) {
    const NeuronGroup& from = layout.columns[row];
    const double height = cell * double(from.neurons.size());
    double x = left;
    for (size_t column = 1; column < layout.columns.size(); ++column) {
      const NeuronGroup& to = layout.columns[column];
      const double width = cell * double(to.neurons.size()), half = 0.6 * svg::text_width(to.name, 13, true);
      picture.rect({x, y, width, height}, {.fill = Ink::panel, .stroke = Ink::rule});
      for (size_t i = 0; i < from.neurons.size(); ++i)
        for (size_t j = 0; j < to.neurons.size(); ++j)
          if (const int polarity = layout.polarity(from.neurons[i], to.neurons[j]); polarity != 0) {
            const double thick = polarity > 0 ? 0.8 : 0.36;
            picture.rect({x + (double(j) + 0.1) * cell, y + (double(i) + 0.5 - thick / 2) * cell, 0.8 * cell, thick * cell}, {.fill = polarity_ink(polarity)});
          }
      if (row == 0 && x + width / 2 - half >= free_x) {
        picture.text({x + width / 2, top - 10}, to.name, {.size = 13, .ink = layout.ink(column), .anchor = Anchor::middle, .bold = true});
        free_x = x + width / 2 + half;
      }
      x += width;
    }
    if (y + height / 2 >= free_y) {
      picture.text({left - 10, y + height / 2 + 4}, from.name, {.size = 13, .ink = layout.ink(row), .anchor = Anchor::end, .bold = true});
      free_y = y + height / 2 + 14;
    }
    y += height;
  }
  picture.text({left + cell * double(layout.wiring.units()) / 2, y + 24}, "row: source · column: target",
               {.size = 13, .ink = Ink::muted, .anchor = Anchor::middle});
}

}  // namespace

std::string wiring_svg(const Wiring& wiring, std::string_view title) {
  const int64_t nodes = wiring.units() + wiring.inputs(), synapses = wiring.synapse_count() + wiring.sensory_synapse_count();
  if (nodes > kMostDrawnNodes || synapses > kMostDrawnSynapses)
    fail(ErrorCode::value, "[wiring] {} neurons and inputs with {} synapses cannot be drawn readably; at most {} and {} are", nodes, synapses, kMostDrawnNodes,
         kMostDrawnSynapses);
  const CircuitLayout layout = lay_out(wiring);
  const double width = layout.matrix_x() + 450;
  Picture picture(width, kTop + layout.height + 40, title, fmt::format("{} inputs, {} neurons, {} synapses", wiring.inputs(), wiring.units(), synapses));
  picture.text({40, 48}, svg::fit(title, width - 80, 24, true), {.size = 24, .bold = true});
  draw_synapses(picture, layout, std::clamp(250.0 / double(synapses), 0.12, 0.8));
  draw_nodes(picture, layout);
  draw_matrix(picture, layout);
  double x = 40;
  for (int polarity : {1, -1}) {
    const int64_t count =
        std::count(wiring.synapses().begin(), wiring.synapses().end(), polarity) + std::count(wiring.sensory().begin(), wiring.sensory().end(), polarity);
    const std::string words = fmt::format("{} {}", grouped(count), polarity > 0 ? "excitatory" : "inhibitory");
    picture.line({x, 76}, {x + 34, 76}, {.stroke = polarity_ink(polarity), .width = 1.6});
    draw_head(picture, {x + 38, 76}, {1, 0}, polarity, 9, 1);
    picture.text({x + 48, 81}, words, {.size = 14});
    x += 80 + 1.12 * svg::text_width(words, 14);
  }
  return picture.str();
}

}  // namespace ridge::cli
