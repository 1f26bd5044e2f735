// One function of a library opened at run time, with error checking: a call that fails throws and names the function.
#pragma once
#include "drivers/dynamic_library.h"

namespace ridge::cuda {

// The owner provides library(), lacks(symbol) for a missing function, and refuse(symbol, code) for a failed call; the last two do not return. It must outlive
// its calls and must not move.
template <class Owner, class... Args>
class CheckedCall {
 public:
  CheckedCall(const Owner& owner, const char* symbol) : owner_(owner), symbol_(symbol) {
    if (!owner.library().bind(function_, symbol)) owner.throw_missing(symbol);
  }
  CheckedCall(const CheckedCall&) = delete;
  CheckedCall& operator=(const CheckedCall&) = delete;

  void operator()(Args... args) const {
    if (const int code = function_(args...); code != 0) owner_.refuse(symbol_, code);
  }
  int quietly(Args... args) const noexcept { return function_(args...); }  // returns the code; for destructors
  const char* symbol() const { return symbol_; }

 private:
  const Owner& owner_;
  const char* symbol_;
  int (*function_)(Args...) = nullptr;
};

// A handle from a library, and the call that releases it.
template <class Handle, class Destroy>
class Owned {
 public:
  Owned() = default;
  Owned(Handle handle, const Destroy& destroy) : handle_(handle), destroy_(&destroy) {}
  ~Owned() { reset(); }
  Owned(Owned&& other) noexcept : handle_(other.handle_), destroy_(std::exchange(other.destroy_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_), std::swap(destroy_, other.destroy_);
    return *this;
  }

  Handle get() const { return handle_; }
  void reset() {
    if (destroy_) std::exchange(destroy_, nullptr)->quietly(handle_);  // on a lost device the release fails, and there is nothing left to release
  }

 private:
  Handle handle_{};
  const Destroy* destroy_ = nullptr;
};

}  // namespace ridge::cuda
