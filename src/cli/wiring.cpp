// ridge wiring: the connectivity of a wiring, as text, JSON and a picture.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/wiring_picture.h"
#include "config/words.h"
#include "io/atomic_file.h"
#include "ridge/wiring.h"

namespace ridge::cli {
namespace {

struct WiringArguments {
  std::string wiring, svg, out;
  int64_t inputs = 0, seed = -1;  // not given
  bool json = false;
};

constexpr int64_t kUsualInputs = 4;

Wiring make_wiring(const WiringArguments& arguments) {
  const std::string& words = arguments.wiring;
  std::error_code ignored;
  if (const bool is_file = !Wiring::is_kind(words) && std::filesystem::exists(words, ignored); is_file) {
    if (arguments.seed >= 0) fail(ErrorCode::usage, "[wiring] {} has its synapses already; --seed {} cannot change them", words, arguments.seed);
    Wiring wiring = Wiring::load(words);
    if (arguments.inputs > 0) wiring.build(arguments.inputs);
    return wiring;
  }
  if (words.find(':') == words.npos && !Wiring::is_kind(words))
    fail(ErrorCode::io, "[wiring] there is no file {}; to draw a new wiring, write full:…, random:…, auto:… or ncp:… (ridge wiring --help)",
         config::shown(words));
  Wiring wiring = Wiring::parse(arguments.seed < 0 ? words : fmt::format("{},seed={}", words, arguments.seed));
  wiring.build(arguments.inputs > 0 ? arguments.inputs : kUsualInputs);
  return wiring;
}

struct DegreeRange {
  double mean;
  int64_t low, high;
};
DegreeRange range_of(const std::vector<int64_t>& degrees) {
  const auto [low, high] = std::minmax_element(degrees.begin(), degrees.end());
  return {double(std::accumulate(degrees.begin(), degrees.end(), int64_t(0))) / double(degrees.size()), *low, *high};
}

std::vector<int64_t> layer_sizes(const Wiring& wiring) {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < wiring.layers(); ++i) sizes.push_back(int64_t(wiring.layer(i).size()));
  return sizes;
}

// "8, 1 × 16": equal sizes together, and only the largest few.
std::string sizes_text(const std::vector<int64_t>& sizes) {
  std::string text;
  int kinds = 0;
  for (size_t i = 0; i < sizes.size();) {
    const size_t same = size_t(std::count(sizes.begin(), sizes.end(), sizes[i]));
    if (++kinds > 6) return text + ", …";
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", sizes[i], same > 1 ? fmt::format(" × {}", same) : "");
    i += same;
  }
  return text;
}

std::string list_text(const std::vector<int64_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(numbers.size(), 10); ++i) text += fmt::format("{}{}", i > 0 ? ", " : "", numbers[i]);
  return numbers.size() > 10 ? text + ", …" : text;
}

std::string neurons_text(const std::vector<int64_t>& neurons) {
  if (neurons.empty()) return "none";
  return fmt::format("{} ({})", counted(int64_t(neurons.size()), "neuron"), list_text(neurons));
}

void print_text(const Wiring& wiring, const WiringStatistics& s, bool usual_inputs) {
  fmt::print("{} in {} ({}), {}, {}{}\n\n", counted(wiring.units(), "neuron"), counted(wiring.layers(), "layer"), list_text(layer_sizes(wiring)),
             counted(wiring.outputs(), "output"), counted(wiring.inputs(), "input"), usual_inputs ? " (--inputs N for another number)" : "");
  fmt::print("{:<10}{:<10}{:>10}{:>12}{:>12}{:>10}\n", "from", "to", "synapses", "excitatory", "inhibitory", "density");
  for (const auto& b : s.blocks) {
    const int64_t count = b.excitatory + b.inhibitory;
    fmt::print("{:<10}{:<10}{:>10}{:>12}{:>12}{:>8.1f} %\n", b.from, b.to, count, b.excitatory, b.inhibitory, 100 * double(count) / double(b.pairs));
  }
  const DegreeRange in = range_of(s.in_degrees), out = range_of(s.out_degrees);
  fmt::print("\n{:<16}{:.1f} % of the pairs of neurons, {:.1f} % of inputs and neurons\n", "sparsity", 100 * s.sparsity, 100 * s.sensory_sparsity);
  fmt::print("{:<16}mean {:.1f}, from {} to {} (with inputs)\n", "in-degree", in.mean, in.low, in.high);
  fmt::print("{:<16}mean {:.1f}, from {} to {}\n", "out-degree", out.mean, out.low, out.high);
  fmt::print("{:<16}{} strongly connected, sizes {}\n", "components", s.components.size(), sizes_text(s.components));
  fmt::print("{:<16}mean {:.2f}, longest {}\n", "path length", s.mean_path, s.longest_path);
  fmt::print("{:<16}{}\n{:<16}{}\n", "unreachable", neurons_text(s.unreachable), "without effect", neurons_text(s.without_effect));
}

void print_json(const Wiring& wiring, const WiringStatistics& s) {
  nlohmann::ordered_json document{{"units", wiring.units()},
                                  {"inputs", wiring.inputs()},
                                  {"outputs", wiring.outputs()},
                                  {"layers", layer_sizes(wiring)},
                                  {"synapses", wiring.synapse_count()},
                                  {"sensory_synapses", wiring.sensory_synapse_count()},
                                  {"sparsity", s.sparsity},
                                  {"sensory_sparsity", s.sensory_sparsity},
                                  {"blocks", nlohmann::json::array()}};
  for (const auto& b : s.blocks)
    document["blocks"].push_back({{"from", b.from}, {"to", b.to}, {"excitatory", b.excitatory}, {"inhibitory", b.inhibitory}, {"pairs", b.pairs}});
  document.update({{"in_degrees", s.in_degrees}, {"out_degrees", s.out_degrees}, {"components", s.components}, {"mean_path", s.mean_path}});
  document.update({{"longest_path", s.longest_path}, {"unreachable", s.unreachable}, {"without_effect", s.without_effect}});
  fmt::print("{}\n", document.dump());
}

int show_wiring(const WiringArguments& arguments) {
  check_picture_place(arguments.svg);
  std::error_code ignored;
  if (!arguments.out.empty() && arguments.out == arguments.svg) fail(ErrorCode::usage, "[wiring] --svg and --out name the same file {}", arguments.out);
  if (std::filesystem::exists(arguments.out, ignored)) {
    try {
      Wiring::load(arguments.out);
    } catch (const Error&) {
      fail(ErrorCode::usage, "[wiring] {} exists and is not a wiring, so it is not replaced; give another name", arguments.out);
    }
  }
  const Wiring wiring = make_wiring(arguments);
  const WiringStatistics s = statistics(wiring);
  if (!arguments.svg.empty()) write_atomically(arguments.svg, wiring_svg(wiring, arguments.wiring));
  if (!arguments.out.empty()) write_atomically(arguments.out, wiring.json());
  if (arguments.json) return print_json(wiring, s), kOk;
  print_text(wiring, s, arguments.inputs == 0 && Wiring::is_kind(arguments.wiring));
  if (!arguments.svg.empty()) fmt::print("\nThe picture is in {}\n", arguments.svg);
  if (!arguments.out.empty()) fmt::print("{}The wiring is in {}\n", arguments.svg.empty() ? "\n" : "", arguments.out);
  return kOk;
}

const Command wiring_command("wiring", "show which neurons of a circuit are connected, and draw it", [](Line line) {
  auto arguments = std::make_shared<WiringArguments>();
  line.word("WIRING", arguments->wiring,
            "full:UNITS[,OUTPUTS], random:UNITS,OUTPUTS,SPARSITY, auto:UNITS,OUTPUTS[,SPARSITY], ncp:INTER,COMMAND,MOTOR[,…], or a file");
  line.range_option("--inputs", arguments->inputs, "number of inputs; default 4, or the file's", 1, Wiring::kMost);
  line.range_option("--seed", arguments->seed, "draws other synapses", 0, INT64_MAX);
  line.option("--svg", arguments->svg, "draw the circuit into this file");
  line.flag("--json", arguments->json, "print one JSON document");
  line.option("--out", arguments->out, "save the wiring to this file, as JSON");
  line.footer("All numbers of a wiring may be named: ncp:inter=12,command=8,motor=4,sensory_fanout=6,inter_fanout=4,recurrent_command=8,motor_fanin=4,seed=1");
  return [arguments] {
    try {
      return show_wiring(*arguments);
    } catch (const Error& error) {  // a number that the library refuses came from the command line
      throw Error(error.code() == ErrorCode::value ? ErrorCode::usage : error.code(), error.what());
    }
  };
});

}  // namespace
}  // namespace ridge::cli
