// ridge demo: trains a small network to separate two spirals in a few seconds, and draws the result.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numbers>

#include <fmt/core.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/settings.h"
#include "machine/features.h"
#include "machine/utilisation.h"
#include "measure/default_team.h"
#include "ridge/ridge.h"

namespace ridge::cli {
namespace {

struct Mlp {
  Linear first{2, 64}, second{64, 64}, last{64, 2};
  Tensor operator()(const Tensor& x) const { return last(gelu(second(gelu(first(x))))); }
  void visit(Visitor& v) { v("first", first)("second", second)("last", last); }
};

struct Spirals {
  std::vector<float> points;     // [n, 2]
  std::vector<int64_t> classes;  // [n]
};

// Two arms that wind around each other one and a half times, with a little noise.
Spirals make_spirals(int64_t n, uint64_t seed) {
  Spirals s;
  for (int64_t i = 0; i < n; ++i) {
    auto word = [&](uint32_t stream) { return uniform_from(random_word({seed, 0, stream}, uint64_t(i))); };
    double along = std::sqrt(word(1)), angle = along * 3 * std::numbers::pi;
    int64_t arm = i % 2;
    double turn = angle + double(arm) * std::numbers::pi;
    s.points.push_back(float(along * std::cos(turn) + 0.04 * (word(2) - 0.5)));
    s.points.push_back(float(along * std::sin(turn) + 0.04 * (word(3) - 0.5)));
    s.classes.push_back(arm);
  }
  return s;
}

// The network's classification of the plane, one character per class.
std::string picture(const Mlp& net, int64_t width, int64_t height, bool colour) {
  std::vector<float> grid;
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x) {
      grid.push_back(float((double(x) + 0.5) / double(width) * 2.3 - 1.15));
      grid.push_back(float((double(height - 1 - y) + 0.5) / double(height) * 2.3 - 1.15));
    }
  std::vector<int64_t> sees = argmax(net(Tensor({width * height, 2}, grid)), -1).to_ints();
  std::string text;
  for (int64_t y = 0; y < height; ++y) {
    text += "  ";
    for (int64_t x = 0; x < width; ++x) {
      bool one = sees[size_t(y * width + x)] == 1;
      text += colour ? (one ? "\033[34m█\033[0m" : "\033[33m░\033[0m") : (one ? "#" : ".");
    }
    text += "\n";
  }
  return text;
}

int run(int64_t steps, int64_t batch, const std::string& memory) {
  const bool tty = on_terminal(), colour = use_colour();
  seed(7);
  Mlp net;
  Spirals train = make_spirals(batch, 1), test = make_spirals(2000, 2);
  Tensor x({batch, 2}, train.points), t({batch}, std::span<const int64_t>(train.classes));
  Step learn = step(net, adamw({.lr = 5e-3, .decay = 0.01}), [&](const Tensor& in, const Tensor& target) { return cross_entropy(net(in), target); });
  CompiledStep exe = learn.compile({{{batch, 2}}, {{batch}, DType::i64}}, {.memory = memory, .clip = 1});

  fmt::print("A network with three layers learns to tell two spirals apart.\n\n");
  fmt::print("decided     {}; kernels for {} (best this CPU runs)\n", default_threads().text(), name(isa_tier()));
  for (const std::string& remark : default_threads().remarks) fmt::print("            {}\n", remark);
  fmt::print("{}\n", exe.report());

  std::vector<double> history;
  UtilisationWatch watch(cpu_groups(known_machine()));
  auto begin = std::chrono::steady_clock::now();
  StepResult r;
  for (int64_t i = 1; i <= steps; ++i) {
    // Cosine decay from the full rate to zero; the rate is an input, so nothing is recompiled.
    r = exe.run({x, t}, 5e-3 * 0.5 * (1 + std::cos(std::numbers::pi * double(i) / double(steps))));
    if (i % std::max<int64_t>(steps / 40, 1) == 0 || i == 1) history.push_back(r.loss);
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    bool last = i == steps;
    if (tty && (i % 10 == 0 || last))
      fmt::print("\r\033[Kstep {:4}/{}  loss {}  {:.2f} ms/step  {}", i, steps, figure_text(r.loss), seconds * 1e3 / double(i), sparkline(history));
    else if (!tty && (i == 1 || i % std::max<int64_t>(steps / 5, 1) == 0))
      fmt::print("step {:4}/{}  loss {}  {:.2f} ms/step\n", i, steps, figure_text(r.loss), seconds * 1e3 / double(i));
    if (tty) std::fflush(stdout);
  }
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::string busy = watch.overall().summary();
  std::vector<int64_t> guess = argmax(net(Tensor({2000, 2}, test.points)), -1).to_ints();
  int64_t right = 0;
  for (size_t i = 0; i < guess.size(); ++i) right += guess[i] == test.classes[i];
  fmt::print("\n\n{:.1f} % of 2000 points it never saw are right. The plane as it sees it:\n\n{}\n", double(right) / 20, picture(net, 64, 26, colour));
  fmt::print("{} in {:.2f} s, {:.0f} samples/s; {}. Try `ridge doctor` next.\n", counted(steps, "step"), seconds, double(steps) * double(batch) / seconds,
             busy);
  return kOk;
}

const Command demo_command("demo", "train a small network on generated data and show what it learned", [](Line line) {
  auto steps = std::make_shared<int64_t>(600);
  auto batch = std::make_shared<int64_t>(1024);
  auto memory = std::make_shared<std::string>("auto");
  line.positive_option("--steps", *steps, "training steps");
  line.positive_option("--batch", *batch, "points in a batch");
  line.option("--memory", *memory, "memory limit of the step, such as 512KiB or 2GiB; the batch is split to fit");
  auto sources = add_settings(line, config::kMachine);
  return [=] {
    const config::Resolved settings = config::resolve(sources());
    ThreadRequest threads = thread_request(settings);
    for (const config::Note& note : settings.notes()) threads.remarks.push_back(fmt::format("{}: {}", note.source, note.text));
    // device=auto means the CPU here, as the work is so small.
    if (const auto device = settings.get<std::string>("device"); device != "auto") {
      const bool forbidden = settings.get<bool>("no_fallback");
      const DeviceChoice choice = select_device(device, forbidden ? Fallback::forbid : Fallback::allow);
      for (const std::string& notice : choice.notices) threads.remarks.push_back(notice);
      if (choice.device.kind != Device::Kind::cpu) {
        if (forbidden) fail(ErrorCode::unsupported, "[demo] device={} was requested, but the demo runs on the CPU; use device=cpu or auto", device);
        threads.remarks.push_back("the demo runs on the CPU");
      }
    }
    request_default_threads(threads);
    return run(*steps, *batch, *memory == "auto" ? settings.get<std::string>("memory") : *memory);
  };
});

}  // namespace
}  // namespace ridge::cli
