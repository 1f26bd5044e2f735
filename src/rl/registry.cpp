#include "base/error.h"
#include "base/nearest.h"
#include "ridge/rl.h"
#include "rl/classic.h"

namespace ridge {
namespace {

struct Entry {
  std::string_view name;
  std::shared_ptr<const Environment> (*make)();
};

constexpr Entry kEnvironments[] = {
    {"cartpole", rl::make_cartpole},
    {"acrobot", rl::make_acrobot},
    {"pendulum", rl::make_pendulum},
    {"mountain-car", [] { return rl::make_mountain_car(false); }},
    {"mountain-car-continuous", [] { return rl::make_mountain_car(true); }},
    {"breakout", [] { return rl::make_breakout(0); }},
    {"breakout-pixels", [] { return rl::make_breakout(84); }},
    {"pong", [] { return make_pong(); }},
    {"pong-pixels", [] { return make_pong({.pixels = 84}); }},
    {"pong-pixels-42", [] { return make_pong({.pixels = 42}); }},
};

}  // namespace

std::shared_ptr<const Environment> make_environment(const std::string& name) {
  std::vector<std::string_view> names;
  for (const Entry& e : kEnvironments) {
    if (e.name == name) return e.make();
    names.push_back(e.name);
  }
  fail(ErrorCode::usage, "[environment] there is no environment \"{}\": {}", name, nearest_hint(name, names));
}

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  for (const Entry& e : kEnvironments) names.emplace_back(e.name);
  return names;
}

}  // namespace ridge
