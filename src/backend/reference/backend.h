// The reference as a device: whole programs in scalar double precision, rounded to their dtypes after every node. To check others by.
#pragma once
#include "backend/backend.h"

namespace ridge::reference {

class ReferenceBackend : public Backend {
 public:
  DeviceInfo info() const override { return {"reference", "scalar, double precision", true}; }
  std::byte* allocate(int64_t bytes) override;
  void release(std::byte* p, int64_t bytes) override;
  void upload(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void copy(void* to, const void* from, int64_t bytes) override;
  std::unique_ptr<Code> compile(Program program) override;
};

}  // namespace ridge::reference
