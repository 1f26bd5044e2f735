// Wirings as JSON, and as words on a command line.
#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>

#include "base/error.h"
#include "base/nearest.h"
#include "config/words.h"
#include "io/mapped_file.h"
#include "ridge/wiring.h"

namespace ridge {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kWiringFormat = "ridge wiring 1";
constexpr std::string_view kWiringFields[] = {"format", "units", "inputs", "outputs", "layers", "sensory", "synapses"};
constexpr std::string_view kWiringKinds[] = {"full", "random", "auto", "ncp"};

bool is_among(std::span<const std::string_view> names, std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

template <class... Args>
[[noreturn]] void bad_wiring(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::io, "[wiring] " + fmt::format(format, std::forward<Args>(args)...));
}

// Never prints nested values: they can be nested deeper than the stack.
std::string brief(const Json& value) { return value.is_structured() ? fmt::format("an {}", value.type_name()) : config::shown(value.dump()); }

const Json& array_at(const Json& value, const std::string& place) {
  return value.is_array() ? value : (bad_wiring("{} is {}, not an array", place, brief(value)), value);
}

int64_t whole_at(const Json& value, const std::string& place, int64_t low, int64_t high) {
  const bool fits = value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t(INT64_MAX));
  const int64_t number = fits ? value.get<int64_t>() : 0;
  if (!fits || number < low || number > high) bad_wiring("{} is {}, not a whole number from {} to {}", place, brief(value), low, high);
  return number;
}

// Rows [source, target, polarity].
void read_synapses(const Json& rows, const char* field, int64_t sources, int64_t targets, const std::vector<int8_t>& known, const auto& put) {
  for (size_t i = 0; i < array_at(rows, field).size(); ++i) {
    const std::string place = fmt::format("{}[{}]", field, i);
    const Json& row = array_at(rows[i], place);
    if (row.size() != 3) bad_wiring("{} has {} numbers, not 3: source, target, polarity", place, row.size());
    const int64_t source = whole_at(row[0], place + "[0]", 0, sources - 1), target = whole_at(row[1], place + "[1]", 0, targets - 1);
    const int64_t polarity = whole_at(row[2], place + "[2]", -1, 1);
    if (polarity == 0) bad_wiring("{}[2] is 0; the polarity must be 1 (excitatory) or -1 (inhibitory)", place);
    if (known[size_t(source * targets + target)] != 0) bad_wiring("{} is a second synapse from {} to {}", place, source, target);
    put(source, target, int(polarity));
  }
}

std::string rows_of(const std::vector<int8_t>& matrix, int64_t targets) {
  std::string text;
  for (size_t i = 0; i < matrix.size(); ++i)
    if (matrix[i] != 0) text += fmt::format("{}\n    [{}, {}, {}]", text.empty() ? "" : ",", i / size_t(targets), i % size_t(targets), matrix[i]);
  return text;
}

// "auto:32,4,seed=7": numbers in the order of the names, and name=number.
class WiringWords {
 public:
  WiringWords(std::string_view all, std::vector<std::string_view> names) : all_(all), names_(std::move(names)) {
    const std::vector<std::string_view> words = config::split(all.substr(std::min(all.find(':'), all.size() - 1) + 1), ',');
    for (size_t i = 0; i < words.size(); ++i) {
      const size_t equal = words[i].find('=');
      if (equal == std::string_view::npos && i >= names_.size()) wrong(fmt::format("{} is one number too many", config::shown(words[i])));
      const std::string_view name = equal == std::string_view::npos ? names_[i] : words[i].substr(0, equal);
      if (!is_among(names_, name)) wrong(fmt::format("unknown name {}", config::shown(name)));
      if (!values_.emplace(name, words[i].substr(equal + 1)).second) wrong(fmt::format("{} is given twice", name));  // npos + 1 is 0
    }
  }

  template <class Number>
  Number get(std::string_view name, std::optional<Number> initial = {}) const {
    const auto found = values_.find(name);
    if (found == values_.end()) return initial ? *initial : (wrong(fmt::format("{} is missing", name)), Number());
    const std::string_view text = found->second;
    Number number = {};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size())
      wrong(fmt::format("{}={} is not a {}number", name, config::shown(text), std::is_floating_point_v<Number> ? "" : "whole "));
    return number;
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const {
    fail(ErrorCode::usage, "[wiring] {}: {}; the numbers are {}", config::shown(all_), what, config::join(names_, ", "));
  }

  std::string_view all_;
  std::vector<std::string_view> names_;
  std::map<std::string_view, std::string_view> values_;
};

Wiring make_wiring(std::string_view words, std::string_view kind) {
  using Whole = std::optional<int64_t>;
  using Seed = std::optional<uint64_t>;
  if (kind == "full") {
    const WiringWords w(words, {"units", "outputs", "self", "seed"});
    const int64_t self = w.get("self", Whole(1));
    if (self != 0 && self != 1) fail(ErrorCode::usage, "[wiring] self={} is neither 1 (neurons drive themselves too) nor 0", self);
    return Wiring::fully_connected(w.get<int64_t>("units"), w.get("outputs", Whole(0)), self == 1, w.get("seed", Seed(1111)));
  }
  if (kind == "ncp") {
    const WiringWords w(words, {"inter", "command", "motor", "sensory_fanout", "inter_fanout", "recurrent_command", "motor_fanin", "seed"});
    NcpArgs args{.inter = w.get<int64_t>("inter"), .command = w.get<int64_t>("command"), .motor = w.get<int64_t>("motor")};
    const Whole half_inter = std::max<int64_t>(args.inter / 2, 1), half_command = std::max<int64_t>(args.command / 2, 1);  // as auto:…,0.5
    args.sensory_fanout = w.get("sensory_fanout", half_inter), args.inter_fanout = w.get("inter_fanout", half_command);
    args.recurrent_command = w.get("recurrent_command", Whole(args.command)), args.motor_fanin = w.get("motor_fanin", half_command);
    args.seed = w.get("seed", Seed(args.seed));
    return Wiring::ncp(args);
  }
  const bool is_auto = kind == "auto";
  const WiringWords w(words, {"units", "outputs", "sparsity", "seed"});
  const int64_t units = w.get<int64_t>("units"), outputs = w.get<int64_t>("outputs");
  const double sparsity = w.get("sparsity", is_auto ? std::optional(0.5) : std::nullopt);
  return is_auto ? Wiring::auto_ncp(units, outputs, sparsity, w.get("seed", Seed(22222))) : Wiring::random(units, outputs, sparsity, w.get("seed", Seed(1111)));
}

}  // namespace

bool Wiring::is_kind(std::string_view words) { return is_among(kWiringKinds, words.substr(0, words.find(':'))); }

Wiring Wiring::parse(std::string_view words) {
  const std::string_view kind = words.substr(0, words.find(':'));
  if (!is_kind(kind)) fail(ErrorCode::usage, "[wiring] unknown kind {}; {}", config::shown(kind), nearest_hint(kind, kWiringKinds));
  try {
    return make_wiring(words, kind);
  } catch (const Error& error) {  // a number out of range
    throw Error(ErrorCode::usage, error.what());
  }
}

std::string Wiring::json() const {
  return fmt::format(
      "{{\n  \"format\": \"{}\",\n  \"units\": {}, \"inputs\": {}, \"outputs\": {},\n  \"layers\": {},\n  \"sensory\": [{}],\n  \"synapses\": [{}]\n}}\n",
      kWiringFormat, units_, inputs_, outputs_, Json(layers_).dump(), rows_of(sensory(), units_), rows_of(synapses_, units_));
}

Wiring Wiring::from_json(std::string_view text) {
  Json document;
  std::set<std::string> keys;
  auto check_key = [&](int depth, Json::parse_event_t event, Json& key) {
    if (depth != 1 || event != Json::parse_event_t::key) return true;
    const std::string name = key.get<std::string>();
    if (!is_among(kWiringFields, name)) bad_wiring("unknown field {}; {}", config::shown(name), nearest_hint(name, kWiringFields));
    if (!keys.insert(name).second) bad_wiring("the field '{}' is given twice", name);
    return true;
  };
  try {
    document = Json::parse(text, check_key);
  } catch (const Json::exception& error) {
    const std::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 5: …"
    bad_wiring("this is not JSON: {}", what.substr(std::min(what.find(' ') + 1, what.size())));
  }
  for (std::string_view field : kWiringFields)
    if (!document.is_object() || !document.contains(field)) bad_wiring("the field '{}' is missing", field);
  if (document["format"] != kWiringFormat) bad_wiring("format is {}, not \"{}\"", brief(document["format"]), kWiringFormat);

  const int64_t units = whole_at(document["units"], "units", 1, kMost);
  Wiring wiring(units, whole_at(document["outputs"], "outputs", 1, units));
  wiring.build(whole_at(document["inputs"], "inputs", 1, kMost));
  std::vector<std::vector<int64_t>> layers;
  for (const Json& layer : array_at(document["layers"], "layers")) {
    const std::string place = fmt::format("layers[{}]", layers.size());
    std::vector<int64_t>& neurons = layers.emplace_back();
    for (const Json& neuron : array_at(layer, place)) neurons.push_back(whole_at(neuron, fmt::format("{}[{}]", place, neurons.size()), 0, units - 1));
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

Wiring Wiring::load(const std::string& path) {
  const MappedFile file(path);
  try {
    return from_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", path, error.what()));
  }
}

}  // namespace ridge
