// ridge watch: a trained agent plays in the terminal, or into a GIF.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <fmt/core.h>

#include "base/error.h"
#include "base/terminal.h"
#include "base/text.h"
#include "io/atomic_file.h"
#include "measure/default_team.h"
#include "tasks/ppo/player.h"
#include "tasks/ppo/screen.h"
#include "tasks/ppo/task.h"
#include "train/command_settings.h"

namespace ridge {
namespace {

using WatchClock = std::chrono::steady_clock;

constexpr double kSlowest = 0.05, kFastest = 100;
constexpr double kNoticed = 0.05;                  // seconds after which a signal or a key is noticed
constexpr int64_t kRecordedAtOnce = 64;            // decisions
constexpr int64_t kMostRecorded = 1 << 20;         // decisions: about 20 hours
enum : int64_t { kStay = 0, kUp = 1, kDown = 2 };  // Pong's actions

struct WatchArguments {
  std::string model, gif, speed = "1";
  bool greedy = false;
};

double speed_of(const std::string& text) {
  double speed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), speed);
  if (error != std::errc() || end != text.data() + text.size() || !(speed >= kSlowest && speed <= kFastest))
    fail(ErrorCode::usage, "[watch] --speed {} is not a number from {} to {}; 1 is real time, 2 is twice as fast", text, kSlowest, kFastest);
  return speed;
}

bool is_pong(const EnvSpec& spec) { return spec.name == "pong" || spec.name == "pong-pixels" || spec.name == "pong-pixels-42"; }

std::string action_text(const EnvSpec& spec, const std::vector<float>& action) {
  constexpr const char* kPong[] = {"stay", "up", "down"};
  if (is_pong(spec) && action[0] >= 0 && action[0] < 3) return kPong[size_t(action[0])];
  std::string text;
  for (float a : action)
    text += (text.empty() ? "" : " ") + (spec.actions.kind == ActionSpace::Kind::continuous ? fmt::format("{:.2f}", a) : fmt::format("{:g}", a));
  return text;
}

std::string ended_text(int64_t number, double score, int64_t decisions, bool capped) {
  return fmt::format("episode {}: score {:g} in {}{}", number, score, counted(decisions, "decision"), capped ? ", cut off by the time limit" : "");
}

// A game in the terminal. In Pong, a person can take the opponent's paddle.
class Show {
 public:
  Show(const TrainedAgent& agent, TrainStep& step, const WatchArguments& arguments) : agent_(agent), speed_(speed_of(arguments.speed)) {
    const std::vector<Tensor> weights = agent.tensors();
    alone_ = std::make_unique<AgentPlayer>(step, agent.policy, weights, *agent.instances, agent.args, AgentPlayer::Options{.sampled = !arguments.greedy});
    players_ = {alone_.get()};
    if (const EnvSpec& spec = agent.instances->spec(); is_pong(spec)) {
      const Instances two(make_pong({.pixels = spec.dtype == DType::u8 ? spec.observation[0] : 0, .two_players = true}), agent.instances->options());
      against_ =
          std::make_unique<AgentPlayer>(step, agent.policy, weights, two, agent.args, AgentPlayer::Options{.sampled = !arguments.greedy, .two_players = true});
      players_.push_back(against_.get());
    }
    for (AgentPlayer* player : players_) player->use_statistics(agent.observations, agent.values);
  }

  // Returns the lines to print afterwards; ends early if a person or a signal says so.
  std::vector<std::string> play(int64_t episodes, Colours colours, int& caught) {
    RawTerminal terminal(STDIN_FILENO, STDOUT_FILENO);
    std::vector<std::string> ended;
    game_ = alone_.get();
    game_->begin(kFirstShown);
    WatchClock::time_point due = WatchClock::now();
    while (int64_t(ended.size()) < episodes && !quit_ && !terminal.caught()) {
      draw(terminal, colours, ended);
      due = std::max(due + seconds(1 / (decisions_per_second(*agent_.instances) * speed_)), WatchClock::now() - seconds(0.2));
      wait(terminal, colours, ended, due);
      if (quit_ || terminal.caught()) break;
      const PlayedDecision d = game_->play(held_).front();
      ++decision_, score_ += d.reward, value_ = d.value, action_ = action_text(agent_.instances->spec(), d.action);
      if (d.ended) {
        ended.push_back(ended_text(int64_t(ended.size()) + 1, d.episode_return, decision_, d.capped));
        decision_ = 0, score_ = 0;
      }
    }
    if (decision_ > 0) ended.push_back(fmt::format("stopped in episode {}: score {:g} after {}", ended.size() + 1, score_, counted(decision_, "decision")));
    caught = terminal.caught();
    return ended;
  }

 private:
  static WatchClock::duration seconds(double s) { return std::chrono::duration_cast<WatchClock::duration>(std::chrono::duration<double>(s)); }

  void wait(RawTerminal& terminal, Colours colours, const std::vector<std::string>& ended, WatchClock::time_point& due) {
    for (bool looked = false; !quit_ && !terminal.caught(); looked = true) {  // at the keys; also when the next decision is late already
      const double left = std::chrono::duration<double>(due - WatchClock::now()).count();
      if (looked && left <= 0 && !paused_) return;
      bool any = false;
      for (const Key key : terminal.keys(paused_ ? kNoticed : std::clamp(left, 0.0, kNoticed))) press(key), any = true;
      if (any) draw(terminal, colours, ended);
      if (paused_) due = WatchClock::now();
    }
  }

  void press(Key key) {
    switch (key) {
      case Key::pause: paused_ = !paused_; break;
      case Key::quit: quit_ = true; break;
      case Key::faster: speed_ = std::min(speed_ * 1.5, kFastest); break;
      case Key::slower: speed_ = std::max(speed_ / 1.5, kSlowest); break;
      case Key::automatic: switch_to(alone_.get()); break;
      case Key::up: hold(kUp); break;
      case Key::down: hold(kDown); break;
      case Key::left:
      case Key::right: hold(kStay); break;
    }
  }

  void hold(int64_t action) {
    if (!against_) return;
    switch_to(against_.get());
    held_ = action;
  }

  void switch_to(AgentPlayer* player) {
    if (player == game_) return;
    if (player->can_continue(*game_)) {
      player->continue_from(*game_);
    } else {  // sticky actions are part of the state
      player->begin(kFirstShown);
      decision_ = 0, score_ = 0;
    }
    game_ = player;
  }

  void draw(RawTerminal& terminal, Colours colours, const std::vector<std::string>& ended) {
    const RawTerminal::Size size = terminal.size();
    const std::vector<uint8_t> pixels = game_->present_picture();
    const Shape shape = game_->picture();
    std::string text = "\033[H";
    for (char c : picture_text({int(shape[0]), int(shape[1]), pixels}, size.columns - 1, std::max(size.rows - 2, 1), colours))
      text += c == '\n' ? "\033[K\n" : std::string(1, c);
    std::string status = fmt::format("score {:g}  decision {}  action {}  value {:.2f}", score_, decision_, action_, value_);
    if (paused_) status += "  paused";
    if (speed_ != 1) status += fmt::format("  {:.2g}x", speed_);
    if (!ended.empty()) status += "  " + ended.back();
    const std::string keys = fmt::format("space pause  q quit  +/- speed{}", !against_               ? ""
                                                                             : game_ == alone_.get() ? "  ↑↓ play the left paddle"
                                                                                                     : "  ↑↓← your paddle  c computer");
    text += cut(status, size.columns - 1) + "\033[K\n" + cut(keys, size.columns - 1) + "\033[J";
    terminal.write(text);
  }

  const TrainedAgent& agent_;
  std::unique_ptr<AgentPlayer> alone_, against_;
  std::vector<AgentPlayer*> players_;
  AgentPlayer* game_ = nullptr;
  double speed_;
  bool paused_ = false, quit_ = false;
  int64_t held_ = kStay, decision_ = 0;
  double score_ = 0, value_ = 0;
  std::string action_ = "-";
};

void record(const TrainedAgent& agent, TrainStep& step, const WatchArguments& arguments, int64_t episodes) {
  AgentPlayer player(step, agent.policy, agent.tensors(), *agent.instances, agent.args, {.sampled = !arguments.greedy, .decisions = kRecordedAtOnce});
  player.use_statistics(agent.observations, agent.values);
  const Recording r = record_episodes(player, *agent.instances, kFirstShown, episodes, kMostRecorded);
  write_atomically(arguments.gif, r.gif);
  std::string scores;
  for (float score : r.returns) scores += (scores.empty() ? "" : ", ") + fmt::format("{:g}", score);
  fmt::print("{}: {} of {}, score {}, {}\n", arguments.gif, counted(int64_t(r.returns.size()), "episode"), counted(r.decisions, "decision"),
             scores.empty() ? "none" : scores, size_text(int64_t(r.gif.size())));
}

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

int run_watch(const WatchArguments& arguments, const config::Resolved& s) {
  note_unused(s, "watch");
  speed_of(arguments.speed);
  if (arguments.gif.empty() && !(on_terminal() && isatty(STDIN_FILENO)))
    fail(ErrorCode::usage, "[watch] there is no terminal to show the game in; record it instead: ridge watch {} --gif FILE", arguments.model);
  request_default_threads(thread_request(s));
  const int64_t episodes = s.setting("episodes").source == "default" ? 1 : s.get<int64_t>("episodes");
  const TrainedAgent agent = load_agent(arguments.model);
  for (const std::string& notice : agent.notices) fmt::print(stderr, "ridge: {}\n", notice);
  if (const Instances& i = *agent.instances; picture_of(i).rank() != 3)
    fail(ErrorCode::usage, "[watch] {} has no picture: its environment does not define render(); ridge eval {} plays it", i.spec().name, arguments.model);
  const std::shared_ptr<CompiledStep::State> held = agent.hold(s.get<std::string>("device"));
  if (!arguments.gif.empty()) return record(agent, held->step, arguments, episodes), 0;
  int caught = 0;
  Show show(agent, held->step, arguments);
  for (const std::string& line : show.play(episodes, terminal_colours(variable("TERM"), variable("COLORTERM"), variable("NO_COLOR")), caught))
    fmt::print("{}\n", line);
  return caught ? 128 + caught : 0;
}

}  // namespace

Verb ppo_watch_verb() {
  const auto a = std::make_shared<WatchArguments>();
  using Kind = Verb::Option::Kind;
  return {.name = "watch",
          .summary = "a trained agent plays in the terminal, or into a GIF",
          .options = {{Kind::word, "model", &a->model, "a run of ridge train ppo, one of its checkpoints or its model folder"},
                      {Kind::text, "--gif", &a->gif, "write the game to this file instead"},
                      {Kind::text, "--speed", &a->speed, "2: twice as fast as real time"},
                      {Kind::flag, "--greedy", &a->greedy, "the most likely actions instead of drawn ones"}},
          .footer =
              "Settings: episodes=N (1 unless set) device=cpu|cuda threads=N.\n"
              "Keys: space pauses, q quits, + and - change the speed. In Pong, the arrow keys take the opponent's paddle: up and down move it until the\n"
              "next key, left stops it, c gives it back to the computer.",
          .run = [a](config::Sources sources) { return run_watch(*a, config::resolve(sources)); }};
}

}  // namespace ridge
