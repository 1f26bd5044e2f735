// A game of your own that is not tensor code: mazes, each carved for one episode. An agent sees the walls around it, where it came from and where the exit is,
// and learns to keep a hand on the wall. Without arguments it trains for a few seconds; with arguments the program is `ridge`, with one more environment:
//   build/examples/maze train ppo env=maze decisions=1000000 --out run_maze        build/examples/maze watch run_maze
#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "ridge/program.h"
#include "ridge/ridge.h"

using namespace ridge;

// Actions: right, down, left, up. Reward 1 for the exit, -0.01 for every move before.
class Maze : public HostEnvironment {
 public:
  explicit Maze(int64_t instances) : states_(size_t(instances)) {
    spec_.observation = {10};     // four openings, the last move, how far the exit is to the right and down
    spec_.actions.choices = {4};  // one choice of four
    spec_.time_limit = 100;
  }
  const EnvSpec& spec() const override { return spec_; }

  void reset(Which which, const HostMemory& memory) override {
    for (const int64_t i : which) {
      State& s = states_[size_t(i)] = {};
      std::minstd_rand random(uint32_t(memory.seeds[i] % 0x7FFFFFFE + 1));
      carve(s, s.at = int(random() % kCells), random);
      do s.exit = int(random() % kCells);
      while (s.exit == s.at);
    }
  }

  void step(Which which, const HostMemory& memory) override {
    for (const int64_t i : which) {
      State& s = states_[size_t(i)];
      s.last = int(memory.choices[i]);
      if (s.open[size_t(s.at)] >> s.last & 1) s.at += kMove[size_t(s.last)];
      memory.terminated[i] = s.at == s.exit;
      memory.reward[i] = s.at == s.exit ? 1.0f : -0.01f;
    }
  }

  void observe(Which which, const HostMemory& memory) const override {
    for (const int64_t i : which) {
      const State& s = states_[size_t(i)];
      float* seen = memory.numbers + 10 * i;
      for (int k = 0; k < 4; ++k) seen[k] = float(s.open[size_t(s.at)] >> k & 1), seen[4 + k] = s.last == k ? 1.0f : 0.0f;
      seen[8] = float(s.exit % kSize - s.at % kSize) / kSize, seen[9] = float(s.exit / kSize - s.at / kSize) / kSize;
    }
  }

  // Checkpoints keep the mazes, so a resumed run repeats the bits of one that was never stopped.
  bool can_save() const override { return true; }
  std::vector<std::byte> save(int64_t i) const override {
    const auto* bytes = reinterpret_cast<const std::byte*>(&states_[size_t(i)]);
    return {bytes, bytes + sizeof(State)};
  }
  void load(int64_t i, std::span<const std::byte> bytes) override { std::memcpy(&states_[size_t(i)], bytes.data(), sizeof(State)); }

  // Cells and the openings between them, as squares of 6 × 6 pixels.
  Shape picture() const override { return {kPixels, kPixels, 3}; }
  void render(int64_t i, uint8_t* pixels) const override {
    const State& s = states_[size_t(i)];
    for (int y = 0; y < kPixels; ++y)
      for (int x = 0; x < kPixels; ++x) {
        const int column = x / 6 - 1, row = y / 6 - 1, cell = row / 2 * kSize + column / 2;
        const bool inside = column >= 0 && row >= 0 && column < 2 * kSize - 1 && row < 2 * kSize - 1, between = column % 2 || row % 2;
        const bool open = inside && (!between || (row % 2 == 0 && s.open[size_t(cell)] & 1) || (column % 2 == 0 && s.open[size_t(cell)] & 2));
        const std::array<uint8_t, 3> colour = !open                        ? std::array<uint8_t, 3>{60, 66, 80}
                                              : !between && cell == s.at   ? std::array<uint8_t, 3>{214, 108, 52}
                                              : !between && cell == s.exit ? std::array<uint8_t, 3>{80, 170, 90}
                                                                           : std::array<uint8_t, 3>{236, 240, 244};
        std::memcpy(pixels + 3 * (y * kPixels + x), colour.data(), 3);
      }
  }

 private:
  static constexpr int kSize = 5, kCells = kSize * kSize, kPixels = 6 * (2 * kSize + 1);
  static constexpr std::array<int, 4> kMove = {1, kSize, -1, -kSize};
  struct State {
    std::array<uint8_t, kCells> open = {};  // bit k: direction k is open
    int at = 0, exit = 0, last = -1;
  };

  // Every cell can be reached in exactly one way: opens walls to cells that have no opening yet, deepest first.
  static void carve(State& s, int cell, std::minstd_rand& random) {
    for (int left = 4, tried = 0; left > 0; --left) {
      int k = int(random() % 4);
      while (tried >> k & 1) k = (k + 1) % 4;
      tried |= 1 << k;
      const int next = cell + kMove[size_t(k)];
      if (next < 0 || next >= kCells || (k % 2 == 0 && next / kSize != cell / kSize) || s.open[size_t(next)]) continue;
      s.open[size_t(cell)] |= uint8_t(1 << k), s.open[size_t(next)] |= uint8_t(1 << (k + 2) % 4);
      carve(s, next, random);
    }
  }

  std::vector<State> states_;
  EnvSpec spec_;
};

int main(int argc, char** argv) {
  register_environment("maze", [](int64_t instances) { return std::make_unique<Maze>(instances); });
  if (argc > 1) return run_program(argc, argv);
  return run_program({"train", "ppo", "env=maze", "instances=64", "horizon=64", "minibatch=512", "lr=3e-3", "decisions=200000", "target_score=none", "seed=1"});
}
