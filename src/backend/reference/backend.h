// The reference as a device: whole programs in scalar double precision, rounded to their dtypes after every node. To check others by.
#pragma once
#include "backend/host_memory.h"

namespace ridge::reference {

class ReferenceBackend : public HostBackend {
 public:
  DeviceInfo info() const override { return {"reference", "scalar, double precision"}; }
  std::unique_ptr<Code> compile(Program program) override;
};

}  // namespace ridge::reference
