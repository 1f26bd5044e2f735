// The process-wide thread team: made when it is first needed, as the machine and the environment say; and the devices that run on it.
#pragma once
#include <memory>

#include "machine/profile.h"
#include "measure/thread_choice.h"
#include "ridge/device.h"

namespace ridge {

class Backend;
class ThreadTeam;

ThreadTeam& default_team();

// The CPU with the default team, which is made when the first program is compiled. Lives as long as the process.
Backend& default_backend();
std::shared_ptr<Backend> open_device(const Device& device);  // default_backend(), or a GPU; ErrorCode::unsupported as open_backend()

const ThreadChoice& default_threads();  // how large it is, and why

// The same for measurements; where more threads were asked for than can run at the same time, a team of so many: the others would only take turns.
ThreadTeam& measuring_team();

// What the team is to be instead of what the environment says. ErrorCode::usage once it has been made.
void request_default_threads(const ThreadRequest& request);

// The machine with its kinds of cores confirmed. What was measured once is remembered in the profile, so that only the first
// start on a machine with several kinds takes longer than some milliseconds. Figures::none: kinds as the system reports them.
Machine known_machine(Figures figures = Figures::measured);

// measure_kernel_mix(), remembered in the profile in the same way.
MeasureTeams known_throughput(const Machine& machine);

}  // namespace ridge
