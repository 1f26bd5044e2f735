// Time of one step of a CircuitStream, batch 1, on the CPU: the median of 2,000 steps, per cell.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "ridge/ridge.h"

int main() {
  using namespace ridge;
  using Clock = std::chrono::steady_clock;
  const int64_t inputs = 8, units = 64;
  for (const char* cell : {"cfc", "wired cfc", "ltc", "wired ltc", "eltc", "ctrnn", "node", "ctgru", "lstm", "gru", "mingru"}) {
    CircuitArgs args;
    const std::string name = cell;
    const bool wired = name.starts_with("wired ");
    args.cell = wired ? name.substr(6) : name, args.inputs = inputs;
    if (wired)
      args.wiring = {Wiring::auto_ncp(units, 4)};
    else
      args.units = units;
    CircuitStream stream((Circuit(args)));
    std::vector<float> x(size_t(inputs), 0.1f);
    std::vector<double> times;
    for (int i = 0; i < 2200; ++i) {
      const Clock::time_point start = Clock::now();
      x[0] = stream.step(x, 0.1f)[0];
      if (i >= 200) times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
    std::sort(times.begin(), times.end());
    std::printf("%-10s %6.1f us   (99 %%: %.1f us)\n", cell, times[times.size() / 2], times[times.size() * 99 / 100]);
  }
}
