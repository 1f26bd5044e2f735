// Kernels on a device: compiles, loads and caches their texts, and stores the choices measured for them.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "backend/cuda/cubins.h"
#include "backend/cuda/device.h"
#include "drivers/nvrtc.h"

namespace ridge {
class MeasurementStore;
}

namespace ridge::cuda {

// A text loaded on the device; unloaded when its last user is gone.
struct LoadedText {
  Module module;
  FunctionHandle function = nullptr;
  int64_t shared = 0;  // reserved
};

class Modules {
 public:
  Modules(Device& device, const LibrarySearch& libraries, const CubinOptions& options);
  ~Modules();

  Cubins& cubins() { return cubins_; }
  const Nvrtc& nvrtc() const { return nvrtc_; }
  std::shared_ptr<LoadedText> load(const KernelText& text);  // inside Device::use()

  // Looks in this process's choices, then in those given, then in those of earlier processes on this machine and chip.
  std::string choice(const std::string& key);
  void keep_choice(const std::string& key, const std::string& value);
  void record_choice(const std::string& key, const std::string& value) { used_[key] = value; }  // only for this process
  std::map<std::string, std::string> used_choices() const { return used_; }
  void use_choices(const std::map<std::string, std::string>& choices);

 private:
  MeasurementStore& store();

  Device& device_;
  Nvrtc nvrtc_;
  Cubins cubins_;
  std::unordered_map<std::string, std::weak_ptr<LoadedText>> loaded_;
  std::map<std::string, std::string> given_, used_;
  std::unique_ptr<MeasurementStore> store_;
};

}  // namespace ridge::cuda
