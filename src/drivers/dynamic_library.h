// A shared library opened at run time: by bare name, which the system's loader resolves, or by absolute path. Relative paths are refused, including search
// paths in which the loader would find the library or one of its dependencies: anyone with write access to the working folder could put code there.
#pragma once
#include <dlfcn.h>

#include <string>
#include <utility>

namespace ridge {

class DynamicLibrary {
 public:
  DynamicLibrary() = default;
  explicit DynamicLibrary(const std::string& path) : error_(why_relative(path)) {
    if (error_.empty()) handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ || !error_.empty()) return;
    const char* error = ::dlerror();
    error_ = error ? error : "unknown reason";
  }
  ~DynamicLibrary() {
    if (handle_) ::dlclose(handle_);
  }
  DynamicLibrary(DynamicLibrary&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), error_(std::move(other.error_)) {}
  DynamicLibrary& operator=(DynamicLibrary&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(error_, other.error_);
    return *this;
  }

  explicit operator bool() const { return handle_ != nullptr; }
  const std::string& error() const { return error_; }  // why it could not be opened

  // Binds a function pointer to a symbol; false if the library lacks it.
  template <class Function>
  bool bind(Function& function, const char* symbol) const {
    function = reinterpret_cast<Function>(::dlsym(handle_, symbol));
    return function != nullptr;
  }

  // Why the library or a dependency might be loaded from a relative folder, given $LD_LIBRARY_PATH; empty: not possible.
  static std::string why_relative(const std::string& path);

 private:
  void* handle_ = nullptr;
  std::string error_;
};

}  // namespace ridge
