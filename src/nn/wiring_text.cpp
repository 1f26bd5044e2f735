// Wirings as JSON, and as words on a command line.
#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/nearest.h"
#include "base/text.h"
#include "ridge/wiring.h"

namespace ridge {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kWiringFormat = "ridge wiring 1";
constexpr std::array<std::string_view, 7> kWiringFields = {"format", "units", "inputs", "outputs", "layers", "sensory", "synapses"};

template <class... Args>
[[noreturn]] void bad_wiring(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::io, "[wiring] " + fmt::format(format, std::forward<Args>(args)...));
}

// Never prints nested values: they can be nested deeper than the stack.
std::string brief(const Json& value) { return value.is_structured() ? fmt::format("an {}", value.type_name()) : printable(cut(value.dump(), 40)); }

const Json& array_at(const Json& value, const std::string& place) {
  if (!value.is_array()) bad_wiring("{} is {}, not an array", place, brief(value));
  return value;
}

int64_t whole_at(const Json& value, const std::string& place, int64_t low, int64_t high) {
  const bool fits = value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t(INT64_MAX));
  if (!fits || value.get<int64_t>() < low || value.get<int64_t>() > high)
    bad_wiring("{} is {}, not a whole number from {} to {}", place, brief(value), low, high);
  return value.get<int64_t>();
}

// Rows [source, target, polarity].
void read_synapses(const Json& rows, const char* field, int64_t sources, int64_t targets, const std::vector<int8_t>& known, const auto& put) {
  array_at(rows, field);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", field, i);
    if (array_at(rows[i], place).size() != 3) bad_wiring("{} has {} numbers, not 3: source, target, polarity", place, rows[i].size());
    const int64_t source = whole_at(rows[i][0], place + "[0]", 0, sources - 1), target = whole_at(rows[i][1], place + "[1]", 0, targets - 1);
    const int64_t polarity = whole_at(rows[i][2], place + "[2]", -1, 1);
    if (polarity == 0) bad_wiring("{}[2] is 0; the polarity must be 1 (excitatory) or -1 (inhibitory)", place);
    if (known[size_t(source * targets + target)] != 0) bad_wiring("{} is a second synapse from {} to {}", place, source, target);
    put(source, target, int(polarity));
  }
}

// Lists are written by hand, one line per source, so that a file can be read and compared.
std::string rows_of(const std::vector<int8_t>& matrix, int64_t targets) {
  std::string text;
  for (size_t i = 0, line = SIZE_MAX; i < matrix.size(); ++i) {
    if (matrix[i] == 0) continue;
    const size_t source = i / size_t(targets);
    text += fmt::format("{}{}[{}, {}, {}]", text.empty() ? "" : ",", source == line ? " " : "\n    ", source, i % size_t(targets), matrix[i]);
    line = source;
  }
  return text;
}

// The words after the colon: numbers in the order of the names, then name=number in any order.
class WiringWords {
 public:
  WiringWords(std::string_view all, std::string_view kind, std::string_view words, std::vector<std::string_view> names)
      : all_(all), kind_(kind), names_(std::move(names)) {
    for (size_t i = 0, more = !words.empty(); more; ++i) {
      const size_t comma = words.find(',');
      const std::string_view word = words.substr(0, comma);
      more = comma != words.npos, words.remove_prefix(more ? comma + 1 : words.size());
      const size_t equal = word.find('=');
      if (equal == word.npos && i >= names_.size()) wrong(fmt::format("'{}' is one number too many; {} takes {}", word, kind_, names_text()));
      const std::string_view name = equal == word.npos ? names_[i] : word.substr(0, equal);
      if (std::find(names_.begin(), names_.end(), name) == names_.end()) wrong(fmt::format("unknown name '{}'; {}", name, nearest_hint(name, names_)));
      if (!values_.emplace(name, word.substr(equal == word.npos ? 0 : equal + 1)).second) wrong(fmt::format("{} is given twice", name));
    }
  }

  template <class Number>
  Number get(std::string_view name, std::optional<Number> initial = {}) const {
    const auto found = values_.find(name);
    if (found == values_.end() && !initial) wrong(fmt::format("{} is missing; {} takes {}", name, kind_, names_text()));
    if (found == values_.end()) return *initial;
    const std::string_view text = found->second;
    Number number = {};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size())
      wrong(fmt::format("{}={} is not a {}number", name, text, std::is_floating_point_v<Number> ? "" : "whole "));
    return number;
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const { fail(ErrorCode::usage, "[wiring] '{}': {}", printable(cut(all_, 100)), printable(cut(what, 300))); }
  std::string names_text() const {
    std::string text;
    for (std::string_view name : names_) (text += text.empty() ? "" : ", ") += name;
    return text;
  }

  std::string_view all_, kind_;
  std::vector<std::string_view> names_;
  std::map<std::string_view, std::string_view> values_;
};

Wiring make_kind(std::string_view all, std::string_view kind, std::string_view words) {
  using Whole = std::optional<int64_t>;
  using Seed = std::optional<uint64_t>;
  if (kind == "full") {
    const WiringWords w(all, kind, words, {"units", "outputs", "self", "seed"});
    const int64_t self = w.get("self", Whole(1));
    if (self != 0 && self != 1) fail(ErrorCode::usage, "[wiring] self={} is neither 1 (neurons may drive themselves) nor 0", self);
    return Wiring::fully_connected(w.get<int64_t>("units"), w.get("outputs", Whole(0)), self == 1, w.get("seed", Seed(1111)));
  }
  if (kind == "random") {
    const WiringWords w(all, kind, words, {"units", "outputs", "sparsity", "seed"});
    return Wiring::random(w.get<int64_t>("units"), w.get<int64_t>("outputs"), w.get<double>("sparsity"), w.get("seed", Seed(1111)));
  }
  if (kind == "auto") {
    const WiringWords w(all, kind, words, {"units", "outputs", "sparsity", "seed"});
    return Wiring::auto_ncp(w.get<int64_t>("units"), w.get<int64_t>("outputs"), w.get("sparsity", std::optional(0.5)), w.get("seed", Seed(22222)));
  }
  const WiringWords w(all, kind, words, {"inter", "command", "motor", "sensory_fanout", "inter_fanout", "recurrent_command", "motor_fanin", "seed"});
  NcpArgs args;
  args.inter = w.get<int64_t>("inter"), args.command = w.get<int64_t>("command"), args.motor = w.get<int64_t>("motor");
  const Whole half_inter = std::max<int64_t>(args.inter / 2, 1), half_command = std::max<int64_t>(args.command / 2, 1);  // as auto:…,0.5
  args.sensory_fanout = w.get("sensory_fanout", half_inter), args.inter_fanout = w.get("inter_fanout", half_command);
  args.recurrent_command = w.get("recurrent_command", Whole(args.command)), args.motor_fanin = w.get("motor_fanin", half_command);
  args.seed = w.get("seed", Seed(args.seed));
  return Wiring::ncp(args);
}

constexpr std::array<std::string_view, 4> kWiringKinds = {"full", "random", "auto", "ncp"};

}  // namespace

bool Wiring::is_kind(std::string_view word) { return std::find(kWiringKinds.begin(), kWiringKinds.end(), word) != kWiringKinds.end(); }

Wiring Wiring::parse(std::string_view words) {
  const size_t colon = std::min(words.find(':'), words.size());
  const std::string_view kind = words.substr(0, colon);
  if (!is_kind(kind)) fail(ErrorCode::usage, "[wiring] unknown kind '{}'; {}", printable(cut(kind, 100)), nearest_hint(kind, kWiringKinds));
  try {
    return make_kind(words, kind, words.substr(std::min(colon + 1, words.size())));
  } catch (const Error& error) {
    throw Error(ErrorCode::usage, error.what());
  }
}

std::string Wiring::json() const {
  const std::vector<int8_t>& inputs = sensory();
  std::string text =
      fmt::format("{{\n  \"format\": \"{}\",\n  \"units\": {}, \"inputs\": {}, \"outputs\": {},\n  \"layers\": ", kWiringFormat, units_, inputs_, outputs_);
  text += Json(layers_).dump();
  return text + fmt::format(",\n  \"sensory\": [{}],\n  \"synapses\": [{}]\n}}\n", rows_of(inputs, units_), rows_of(synapses_, units_));
}

Wiring Wiring::from_json(std::string_view text) {
  Json document;
  try {
    std::set<std::string> keys;
    document = Json::parse(text, [&](int depth, Json::parse_event_t event, Json& parsed) {
      if (depth == 1 && event == Json::parse_event_t::key && !keys.insert(parsed.get<std::string>()).second) bad_wiring("{} is given twice", brief(parsed));
      return true;
    });
  } catch (const Json::exception& error) {
    bad_wiring("this is not JSON: {}", printable(cut(error.what(), 200)));
  }
  if (!document.is_object()) bad_wiring("the document is {}, not an object", brief(document));
  for (const auto& [key, value] : document.items())
    if (std::find(kWiringFields.begin(), kWiringFields.end(), key) == kWiringFields.end())
      bad_wiring("unknown field '{}'; {}", printable(cut(key, 40)), nearest_hint(key, kWiringFields));
  for (std::string_view field : kWiringFields)
    if (!document.contains(field)) bad_wiring("the field '{}' is missing", field);
  if (document["format"] != kWiringFormat) bad_wiring("format is {}, not \"{}\"", brief(document["format"]), kWiringFormat);

  const int64_t units = whole_at(document["units"], "units", 1, kMost);
  Wiring wiring(units, whole_at(document["outputs"], "outputs", 1, units));
  wiring.build(whole_at(document["inputs"], "inputs", 1, kMost));
  std::vector<std::vector<int64_t>> layers;
  for (const auto& layer : array_at(document["layers"], "layers")) {
    const std::string place = fmt::format("layers[{}]", layers.size());
    layers.emplace_back();
    for (const auto& neuron : array_at(layer, place))
      layers.back().push_back(whole_at(neuron, fmt::format("{}[{}]", place, layers.back().size()), 0, units - 1));
  }
  try {
    wiring.set_layers(std::move(layers));
  } catch (const Error& error) {
    throw Error(ErrorCode::io, error.what());
  }
  read_synapses(document["sensory"], "sensory", wiring.inputs_, units, wiring.sensory_, [&](auto... synapse) { wiring.add_sensory_synapse(synapse...); });
  read_synapses(document["synapses"], "synapses", units, units, wiring.synapses_, [&](auto... synapse) { wiring.add_synapse(synapse...); });
  return wiring;
}

}  // namespace ridge
