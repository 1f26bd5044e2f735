#include "tasks/circuits/task.h"

namespace ridge {

Task circuits_task() {
  return {.name = kCircuitsName,
          .summary = "a recurrent model in continuous time",
          .keys = config::task_bit(kCircuitsName),
          .example = "preset=xor",
          .register_keys = [] {},
          .verbs = [] { return std::vector<Verb>(); },
          .plan = nullptr,
          .check_data = nullptr,
          .run_name = nullptr,
          .bench_rows = circuit_bench_rows,
          .bench_step = circuit_bench_step};
}

}  // namespace ridge
