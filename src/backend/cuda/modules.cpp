#include "backend/cuda/modules.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "machine/measurement_store.h"

namespace ridge::cuda {
namespace {

constexpr int kDynamicShared = 8;  // CUfunction_attribute

// A driver may defer loading a function until its first launch, which is too late inside a recording.
void load_now(const Driver& driver, FunctionHandle function) {
  int (*load)(FunctionHandle) = nullptr;
  if (!driver.library().bind(load, "cuFuncLoad")) return;
  if (const int code = load(function)) driver.refuse("cuFuncLoad", code);
}

std::shared_ptr<LoadedText> on_device(const Driver& driver, const KernelText& text, const std::string& code) {
  auto loaded = std::make_shared<LoadedText>();
  ModuleHandle handle = nullptr;
  if (const int result = driver.module_load.quietly(&handle, code.data())) driver.refuse(driver.module_load.symbol(), result, "of kernel " + text.entry);
  loaded->module = {handle, driver.module_unload};
  loaded->function = function_of(driver, loaded->module, text.entry.c_str());
  load_now(driver, loaded->function);
  return loaded;
}

}  // namespace

Modules::Modules(Device& device, const LibrarySearch& libraries, const CubinOptions& options)
    : device_(device), nvrtc_(libraries), cubins_(nvrtc_, device.chip().target(), options) {}

Modules::~Modules() = default;

std::shared_ptr<LoadedText> Modules::load(const KernelText& text) {
  const Driver& driver = device_.driver();
  std::weak_ptr<LoadedText>& known = loaded_[cubins_.key(text)];
  std::shared_ptr<LoadedText> loaded = known.lock();
  if (!loaded) {
    device_.metered(&MemoryUse::modules, [&] {
      try {
        loaded = on_device(driver, text, *cubins_.get(text));
      } catch (const DriverError& error) {
        // A file may be intact and still not be accepted by this driver.
        if (error.lost() || error.code() == ErrorCode::memory) throw;
        loaded = on_device(driver, text, *cubins_.recompile(text));
      }
    });
    known = loaded;
    std::erase_if(loaded_, [](const auto& entry) { return entry.second.expired(); });
  }
  if (text.shared > loaded->shared) {
    if (const int code = driver.function_set.quietly(loaded->function, kDynamicShared, int(text.shared)))
      driver.refuse(driver.function_set.symbol(), code, fmt::format("for {} bytes of shared memory of kernel {}", text.shared, text.entry));
    loaded->shared = text.shared;
  }
  return loaded;
}

MeasurementStore& Modules::store() {
  if (!store_) store_ = std::make_unique<MeasurementStore>(fingerprint(detect_machine({})));
  return *store_;
}

std::string Modules::choice(const std::string& key) {
  if (auto it = used_.find(key); it != used_.end()) return it->second;
  if (auto it = given_.find(key); it != given_.end()) return used_[key] = it->second;
  const auto found = store().get(fmt::format("cuda/{}/{}/{}", device_.chip().name, device_.driver().version(), key));
  if (!found) return {};
  const auto value = nlohmann::json::parse(found->value, nullptr, false);
  return value.is_string() ? used_[key] = value.get<std::string>() : std::string();
}

void Modules::keep_choice(const std::string& key, const std::string& value) {
  record_choice(key, value);
  store().put(fmt::format("cuda/{}/{}/{}", device_.chip().name, device_.driver().version(), key), {.value = nlohmann::json(value).dump(), .samples = 1});
}

void Modules::use_choices(const std::map<std::string, std::string>& choices) {
  for (const auto& [key, value] : choices) given_[key] = value, used_.erase(key);
}

}  // namespace ridge::cuda
