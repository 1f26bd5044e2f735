// Pong. Lengths are in points of a field of 160 × 160 with its origin in the centre, y pointing down; speeds are per frame.
#include <fmt/format.h>

#include "base/error.h"
#include "io/checksum.h"
#include "ridge/rl.h"
#include "rl/numbers.h"
#include "rl/pictures.h"

namespace ridge {
namespace {

using rl::num;
using rl::whole;

// The rules. They are frozen: recipes and results refer to them by pong_hash().
struct Rules {
  double wall = 78;                                  // where the ball's centre is reflected
  double plane = 60, out = 76;                       // where a paddle meets the ball, and where a point is counted
  double paddle_half = 8, reach = 10;                // half a paddle; the ball's centre is within `reach` of the paddle's at a hit
  double paddle_speed = 2.4, paddle_response = 0.3;  // a paddle's speed approaches what is asked for by this share per frame
  double paddle_limit = 72;                          // of the paddle's centre
  double zones = 4;                                  // per half of a paddle; the outermost returns the ball at full speed
  double slope = 0.9;                                // vertical ÷ horizontal speed at the end of the paddle, for the other zones
  double serve_speed = 1.6, serve_slant = 1.2;       // horizontal; largest vertical
  double speed_up = 0.2, cruise = 2.8;               // per hit, and the most that inner zones reach
  double top = 3.5, top_slant = 3.3;                 // after the outermost zone
  double pause = 44;                                 // frames before a serve
  double points = 21;                                // to win
  // The opponent follows the ball: slowly, until it is this far in its own half. It aims beside the ball's centre, by up to so much after a hit, after a serve.
  double opponent_sight = -10, opponent_stroll = 0.6, opponent_gain = 0.5, opponent_error = 9.8, opponent_serve_error = 6;

  std::string text() const {
    std::string t = "pong rules 1:";
    for (double v : {wall,
                     plane,
                     out,
                     paddle_half,
                     reach,
                     paddle_speed,
                     paddle_response,
                     paddle_limit,
                     zones,
                     slope,
                     serve_speed,
                     serve_slant,
                     speed_up,
                     cruise,
                     top,
                     top_slant,
                     pause,
                     points,
                     opponent_sight,
                     opponent_stroll,
                     opponent_gain,
                     opponent_error,
                     opponent_serve_error})
      t += fmt::format(" {}", v);
    return t;
  }
};
constexpr Rules kRules;

enum Part { kAgent, kAgentSpeed, kOpponent, kOpponentSpeed, kX, kY, kSpeedX, kSpeedY, kAim, kPause, kAgentPoints, kOpponentPoints, kParts };
constexpr Part kSeen[] = {kAgent, kOpponent, kX, kY};  // what a picture shows; pictures keep those of the frame before

class Pong final : public Environment {
 public:
  explicit Pong(const PongOptions& o) : options_(o) {
    if (o.pixels != 0 && o.pixels != 84 && o.pixels != 42)
      fail(ErrorCode::value, "[pong] pixels = {}: there are pictures of 84 or 42 pixels, and 0 for numbers", o.pixels);
    spec_.name = o.pixels == 0 ? "pong" : o.pixels == 84 ? "pong-pixels" : "pong-pixels-42";
    spec_.observation = o.pixels ? Shape{o.pixels, o.pixels} : Shape{8};
    spec_.dtype = o.pixels ? DType::u8 : DType::f32;
    spec_.actions = o.two_players ? ActionSpace{.kind = ActionSpace::Kind::multi_discrete, .choices = {3, 3}}
                                  : ActionSpace{.kind = ActionSpace::Kind::discrete, .choices = {3}};
    spec_.step_draws = 1, spec_.draws_once = spec_.runs_on = true;  // a pause is longer than a decision: at most one serve, and no point after the last
    spec_.frame_skip = 4, spec_.time_limit = 10000, spec_.stack = o.pixels ? 4 : 1;
    spec_.highest_return = kRules.points;
    spec_.parameters = spec_.name + " " + pong_hash();
  }

  const EnvSpec& spec() const override { return spec_; }

  EnvState reset(const Tensor& instance, const Draws&) const override {
    const Shape rows = instance.shape();
    EnvState s(kParts, full(rows, 0));
    s[kPause] = full(rows, kRules.pause);
    if (options_.pixels) s.insert(s.end(), std::size(kSeen), full(rows, 0));
    return s;
  }

  Next step(const EnvState& s, const Tensor& action, const Draws& draws) const override {
    const Rules& r = kRules;
    auto player = [&](int64_t i) { return options_.two_players ? reshape(slice(action, 1, i, i + 1), {action.shape()[0]}) : action; };
    auto asked = [&](const Tensor& a) { return where(equal(a, whole(1)), num(-r.paddle_speed), where(equal(a, whole(2)), num(r.paddle_speed), num(0))); };
    auto within = [](const Tensor& x, const Tensor& limit) { return minimum(maximum(x, -limit), limit); };
    auto moved = [&](const Tensor& y, const Tensor& speed, const Tensor& target, Tensor& next_speed) {
      next_speed = speed + num(r.paddle_response) * (target - speed);
      return within(y + next_speed, num(r.paddle_limit));
    };
    EnvState n = s;

    n[kAgent] = moved(s[kAgent], s[kAgentSpeed], asked(player(0)), n[kAgentSpeed]);
    Tensor target;
    if (options_.two_players) {
      target = asked(player(1));
    } else {
      const Tensor awake = logical_and(s[kSpeedX] < num(0), s[kX] < num(r.opponent_sight));
      target = within(num(r.opponent_gain) * (s[kY] + s[kAim] - s[kOpponent]), where(awake, num(r.paddle_speed), num(r.opponent_stroll)));
    }
    n[kOpponent] = moved(s[kOpponent], s[kOpponentSpeed], target, n[kOpponentSpeed]);

    // The ball moves, and is reflected by the walls.
    const Tensor x = s[kX] + s[kSpeedX], over = s[kY] + s[kSpeedY], inside = within(over, num(r.wall)), y = inside + (inside - over);
    const Tensor fall = where(equal(inside, over), s[kSpeedY], -s[kSpeedY]);

    // A paddle sends it back: where it hits decides the angle and the speed.
    const Tensor right = x > num(0), away = abs(x), offset = y - where(right, n[kAgent], n[kOpponent]);
    const Tensor hit = logical_and(logical_and(abs(s[kX]) < num(r.plane), away >= num(r.plane)), abs(offset) < num(r.reach));
    const Tensor zone = floor(offset * num(r.zones / r.reach)) + num(0.5);  // ±0.5, ±1.5, …
    const Tensor outermost = abs(zone) > num(r.zones - 1);
    const Tensor speed = where(outermost, num(r.top), minimum(abs(s[kSpeedX]) + num(r.speed_up), num(r.cruise)));
    const Tensor slant = zone * where(outermost, num(r.top_slant / (r.zones - 0.5)), num(r.slope / r.zones) * speed);
    const Tensor towards = where(right, -speed, speed), mirrored = where(right, num(2 * r.plane), num(-2 * r.plane)) - x;

    // Points and serves. The opponent's aim is drawn again for every ball that comes to it.
    const Tensor& u = draws[0];
    const Tensor point = away > num(r.out), serve = equal(s[kPause], num(1)), twice = u + u;
    const Tensor to_agent = u < num(0.5), place = where(to_agent, twice, twice - num(1)) * num(2) - num(1);  // in [-1, 1)
    const Tensor fine = u * num(64), error = (fine - floor(fine)) * num(2) - num(1);
    n[kX] = where(point, num(0), where(hit, mirrored, x));
    n[kY] = where(point, num(0), y);
    n[kSpeedX] = where(serve, where(to_agent, num(r.serve_speed), num(-r.serve_speed)), where(point, num(0), where(hit, towards, s[kSpeedX])));
    n[kSpeedY] = where(serve, place * num(r.serve_slant), where(point, num(0), where(hit, slant, fall)));
    n[kAim] = where(serve, error * num(r.opponent_serve_error), where(logical_and(hit, right), (twice - num(1)) * num(r.opponent_error), s[kAim]));
    n[kPause] = where(point, num(r.pause), maximum(s[kPause] - num(1), num(0)));
    const Tensor lost = where(logical_and(point, right), num(1), num(0)), won = where(point, num(1) - lost, num(0));
    n[kAgentPoints] = s[kAgentPoints] + won, n[kOpponentPoints] = s[kOpponentPoints] + lost;
    if (options_.pixels)
      for (size_t i = 0; i < std::size(kSeen); ++i) n[kParts + i] = s[kSeen[i]];
    return {n, won - lost, maximum(n[kAgentPoints], n[kOpponentPoints]) >= num(r.points), {}};
  }

  Tensor observe(const EnvState& s) const override {
    const Rules& r = kRules;
    if (options_.pixels == 0)
      return stack({s[kX] * num(1 / r.plane), s[kY] * num(1 / r.wall), s[kSpeedX] * num(1 / r.top), s[kSpeedY] * num(1 / r.top_slant),
                    s[kAgent] * num(1 / r.paddle_limit), s[kAgentSpeed] * num(1 / r.paddle_speed), s[kOpponent] * num(1 / r.paddle_limit),
                    s[kOpponentSpeed] * num(1 / r.paddle_speed)},
                   1);
    const rl::Canvas canvas{options_.pixels, options_.pixels, 80, 80};
    auto now = [&](size_t i) { return s[kSeen[i]]; };
    auto before = [&](size_t i) { return s[kParts + i]; };
    auto paddle = [&](size_t i) { return maximum(canvas.down(now(i), r.paddle_half), canvas.down(before(i), r.paddle_half)) * num(kPaddleGray); };
    auto ball = [&](const Tensor& x, const Tensor& y) { return (canvas.down(y, 2) * num(kBallGray)) * canvas.across(x, 1); };
    const Tensor agent = paddle(0) * canvas.across(num(r.plane + 2), 2), opponent = paddle(1) * canvas.across(num(-r.plane - 2), 2);
    return cast(maximum(maximum(ball(now(2), now(3)), ball(before(2), before(3))), agent + opponent) + num(0.5), DType::u8);
  }

  Tensor render(const EnvState& s) const override {
    const Rules& r = kRules;
    rl::Picture picture({160, 160, 80, 80}, s[kX].shape()[0], {40, 22, 10});
    picture.fill(num(0), num(0), 0.5, 80, {70, 44, 26});
    auto score = [&](const Tensor& points, double from, double sign) {  // a bar of two points of the field per point
      picture.fill(num(from) + points * num(sign), num(-77), points, 1, {200, 200, 200});
    };
    score(s[kOpponentPoints], -70, 1), score(s[kAgentPoints], 70, -1);
    picture.fill(num(-r.plane - 2), s[kOpponent], 2, r.paddle_half, {213, 130, 74});
    picture.fill(num(r.plane + 2), s[kAgent], 2, r.paddle_half, {92, 186, 92});
    picture.fill(s[kX], s[kY], 1, 2, {236, 236, 236});
    return picture.bytes();
  }

 private:
  static constexpr double kPaddleGray = 148, kBallGray = 236;
  PongOptions options_;
  EnvSpec spec_;
};

}  // namespace

std::shared_ptr<const Environment> make_pong(const PongOptions& options) { return std::make_shared<Pong>(options); }

std::string pong_hash() { return checksum_of(kRules.text()).substr(0, 8); }

}  // namespace ridge
