// The process-wide thread team, created on first use according to the machine and the environment, and the devices that use it.
#pragma once
#include <memory>

#include "machine/measurement_store.h"
#include "measure/thread_choice.h"
#include "ridge/device.h"

namespace ridge {

class Backend;
class ThreadTeam;

ThreadTeam& default_team();

// The CPU with the default team, which is created when the first program is compiled. Lives as long as the process.
Backend& default_backend();
std::shared_ptr<Backend> open_device(const Device& device);  // default_backend(), or a GPU; ErrorCode::unsupported as for open_backend()

const ThreadChoice& default_threads();  // its size, and why

// The same for measurements. If more threads were requested than can run at the same time, a team of only that many: the others would just take turns.
ThreadTeam& measuring_team();

// Overrides the environment's settings for the team. ErrorCode::usage once it has been created.
void request_default_threads(const ThreadRequest& request);

// The machine with its kinds of cores confirmed. The measurement is stored in the measurement store, so that only the first start on a machine with several
// kinds takes longer than a few milliseconds. Figures::none: kinds as reported by the system.
Machine known_machine(Figures figures = Figures::measured);

// measure_kernel_mix(), stored in the measurement store in the same way.
MeasureTeams known_throughput(const Machine& machine);

}  // namespace ridge
