// The reference as a device: runs whole programs in scalar double precision, rounding to the dtype after every node. Used to check other
// backends.
#pragma once
#include "backend/host_memory.h"

namespace ridge::reference {

class ReferenceBackend : public HostBackend {
 public:
  DeviceInfo info() const override { return {"reference", "scalar, double precision"}; }
  std::unique_ptr<Code> compile(Program program) override;
};

}  // namespace ridge::reference
