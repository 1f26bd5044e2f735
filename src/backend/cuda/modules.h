// Kernels on a device: texts compiled, loaded and found again, and the choices that were measured for them.
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
class Profile;
}

namespace ridge::cuda {

// A text on the device, as long as somebody has it.
struct LoadedText {
  Module module;
  FunctionHandle function = nullptr;
  int64_t shared = 0;  // granted
};

class Modules {
 public:
  Modules(Device& device, const LibrarySearch& libraries, const CubinOptions& options);
  ~Modules();

  Cubins& cubins() { return cubins_; }
  const Nvrtc& nvrtc() const { return nvrtc_; }
  std::shared_ptr<LoadedText> load(const KernelText& text);  // inside Device::use()

  // Choices of this process, then those given, then those of earlier processes on this machine and chip.
  std::string choice(const std::string& key);
  void keep_choice(const std::string& key, const std::string& value);
  void hold_choice(const std::string& key, const std::string& value) { used_[key] = value; }  // in this process alone
  std::map<std::string, std::string> used_choices() const { return used_; }
  void use_choices(const std::map<std::string, std::string>& choices);

 private:
  Profile& profile();

  Device& device_;
  Nvrtc nvrtc_;
  Cubins cubins_;
  std::unordered_map<std::string, std::weak_ptr<LoadedText>> loaded_;
  std::map<std::string, std::string> given_, used_;
  std::unique_ptr<Profile> profile_;
};

}  // namespace ridge::cuda
