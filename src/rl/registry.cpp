#include <algorithm>
#include <deque>
#include <mutex>

#include "base/error.h"
#include "base/nearest.h"
#include "rl/classic.h"
#include "rl/host_game.h"

namespace ridge {
namespace {

struct Entry {
  std::string name;
  std::function<std::shared_ptr<const Environment>()> make;
};

struct Registry {
  std::mutex mutex;
  std::deque<Entry> entries = {
      // references to entries stay valid
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
};

Registry& registry() {
  static Registry all;
  return all;
}

void add_entry(Entry entry) {
  const std::vector<std::string> names = environment_names();
  if (entry.name.empty() || std::ranges::find(names, entry.name) != names.end())
    fail(ErrorCode::usage, "[environment] \"{}\" cannot be registered: {}", entry.name,
         entry.name.empty() ? "it needs a name" : "there is an environment of this name already");
  const std::lock_guard lock(registry().mutex);
  registry().entries.push_back(std::move(entry));
}

}  // namespace

std::shared_ptr<const Environment> make_environment(const std::string& name) {
  std::vector<std::string> names = environment_names();
  const auto at = std::ranges::find(names, name);
  if (at == names.end())
    fail(ErrorCode::usage, "[environment] there is no environment \"{}\": {}", name,
         nearest_hint(name, std::vector<std::string_view>(names.begin(), names.end())));
  std::unique_lock lock(registry().mutex);
  const Entry& entry = registry().entries[size_t(at - names.begin())];
  lock.unlock();
  std::shared_ptr<const Environment> made = entry.make();
  if (!made) fail(ErrorCode::usage, "[environment] {}: the registered function returned no environment", name);
  if (made->spec().name != name)  // files name the environment of an agent
    fail(ErrorCode::usage, "[environment] {} is registered, but its spec has the name \"{}\"; they must be equal", name, made->spec().name);
  return made;
}

std::vector<std::string> environment_names() {
  const std::lock_guard lock(registry().mutex);
  std::vector<std::string> names;
  for (const Entry& e : registry().entries) names.push_back(e.name);
  return names;
}

void register_environment(const std::string& name, std::function<std::shared_ptr<const Environment>()> make) { add_entry({name, std::move(make)}); }

void register_environment(const std::string& name, MakeHostEnvironment make) {
  add_entry({name, [name, make = std::move(make)] { return std::make_shared<rl::HostGame>(name, make); }});
}

}  // namespace ridge
