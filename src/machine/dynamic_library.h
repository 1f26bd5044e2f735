// A shared library opened at run time.
#pragma once
#include <dlfcn.h>

#include <string>
#include <utility>

namespace ridge {

class DynamicLibrary {
 public:
  DynamicLibrary() = default;
  explicit DynamicLibrary(const std::string& path) : handle_(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_) return;
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

  // Binds a function pointer to a symbol; false when the library lacks it.
  template <class Function>
  bool bind(Function& function, const char* symbol) const {
    function = reinterpret_cast<Function>(::dlsym(handle_, symbol));
    return function != nullptr;
  }

 private:
  void* handle_ = nullptr;
  std::string error_;
};

}  // namespace ridge
