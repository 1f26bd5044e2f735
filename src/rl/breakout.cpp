// Breakout. Lengths are in points of a field of 160 × 160 with its origin in the centre, y pointing down; speeds are per frame.
#include <fmt/format.h>

#include "base/error.h"
#include "io/checksum.h"
#include "rl/classic.h"
#include "rl/numbers.h"
#include "rl/pictures.h"

namespace ridge::rl {
namespace {

// The rules. They are frozen: results refer to them by their hash in EnvSpec::parameters.
constexpr int64_t kRows = 6, kColumns = 8, kBricks = kRows * kColumns;
constexpr double kWall = 78, kPlane = 68, kOut = 79, kReach = 14, kPaddleHalf = 12, kPaddleLimit = 68, kPaddleSpeed = 3.2, kResponse = 0.4, kTopOfBricks = -48,
                 kBrickHeight = 6, kBrickWidth = 20, kServe = 1.5, kSlant = 1.2, kFaster = 0.08, kFastest = 3, kPause = 12, kLives = 5, kZones = 4;
constexpr double kPoints[] = {7, 4, 1};  // of a brick, by pairs of rows from above

std::string rules_hash() {
  std::string text = "breakout rules 1:";
  for (double v :
       {double(kRows), double(kColumns), kWall,  kPlane,  kOut,     kReach, kPaddleHalf, kPaddleLimit, kPaddleSpeed, kResponse,  kTopOfBricks, kBrickHeight,
        kBrickWidth,   kServe,           kSlant, kFaster, kFastest, kPause, kLives,      kZones,       kPoints[0],   kPoints[1], kPoints[2]})
    text += fmt::format(" {}", v);
  return checksum_of(text).substr(0, 8);
}

enum BreakoutPart { kPaddle, kPaddleV, kBallX, kBallY, kBallVx, kBallVy, kWait, kLivesLeft, kWalls, kWallOfBricks, kBreakoutParts };

// Bricks in six rows give 1, 1, 4, 4, 7 and 7 points from below. Five balls; a cleared wall is built again once. Actions: 0 stay, 1 left, 2 right.
class Breakout final : public Environment {
 public:
  explicit Breakout(int64_t pixels) : pixels_(pixels) {
    spec_.name = pixels ? "breakout-pixels" : "breakout";
    spec_.observation = pixels ? Shape{pixels, pixels} : Shape{6 + kBricks};
    spec_.dtype = pixels ? DType::u8 : DType::f32;
    spec_.actions.choices = {3};
    spec_.step_draws = 1, spec_.draws_once = true;  // a pause is longer than a decision: at most one serve
    spec_.frame_skip = 4, spec_.time_limit = 10000, spec_.stack = pixels ? 4 : 1;
    spec_.highest_return = 2 * 2 * kColumns * (kPoints[0] + kPoints[1] + kPoints[2]);  // two walls, each with two rows of every colour
    spec_.parameters = spec_.name + " " + rules_hash();
  }
  const EnvSpec& spec() const override { return spec_; }

  EnvState reset(const Tensor& instance, const Draws&) const override {
    EnvState s(kBreakoutParts, full(instance.shape(), 0));
    s[kWait] = full(instance.shape(), kPause), s[kLivesLeft] = full(instance.shape(), kLives);
    s[kWallOfBricks] = full({instance.shape()[0], kBricks}, 1);
    if (pixels_) s.insert(s.end(), {s[kBallX], s[kBallY]});
    return s;
  }

  Next step(const EnvState& s, const Tensor& action, const Draws& draws) const override {
    const int64_t rows = action.shape()[0];
    auto within = [](const Tensor& x, double limit) { return minimum(maximum(x, num(-limit)), num(limit)); };
    auto column = [&](const Tensor& t) { return reshape(t, {rows, 1}); };
    EnvState n = s;
    const Tensor asked = where(equal(action, whole(1)), num(-kPaddleSpeed), where(equal(action, whole(2)), num(kPaddleSpeed), num(0)));
    n[kPaddleV] = s[kPaddleV] + num(kResponse) * (asked - s[kPaddleV]);
    n[kPaddle] = within(s[kPaddle] + n[kPaddleV], kPaddleLimit);

    // The ball moves, and is reflected by both sides and the ceiling.
    const Tensor far = s[kBallX] + s[kBallVx], inside = within(far, kWall), x = inside + (inside - far),
                 vx = where(equal(inside, far), s[kBallVx], -s[kBallVx]);
    const Tensor over = s[kBallY] + s[kBallVy], below = maximum(over, num(-kWall)), y1 = below + (below - over);
    const Tensor vy1 = where(equal(below, over), s[kBallVy], -s[kBallVy]);

    // The brick at the ball's place, if there is one: it is gone, and the ball goes back up or down.
    const Tensor row = floor((y1 - num(kTopOfBricks)) / num(kBrickHeight)), place = floor((x + num(80)) / num(kBrickWidth));
    const Tensor in_rows = logical_and(row >= num(0), row < num(double(kRows)));
    const Tensor index = where(in_rows, row * num(double(kColumns)) + minimum(place, num(double(kColumns - 1))), num(-1));
    const Tensor here = equal(column(index), iota({1, kBricks}, 1, DType::f32)), struck = where(here, s[kWallOfBricks], num(0));
    const Tensor hit = max(struck, {1}) > num(0);
    const Tensor value = where(row < num(2), num(kPoints[0]), where(row < num(4), num(kPoints[1]), num(kPoints[2])));
    const Tensor left = where(here, num(0), s[kWallOfBricks]), cleared = max(left, {1}) <= num(0), again = logical_and(cleared, s[kWalls] < num(1));
    n[kWallOfBricks] = where(column(again), num(1), left);
    n[kWalls] = s[kWalls] + where(cleared, num(1), num(0));
    const Tensor y2 = where(hit, s[kBallY], y1), vy2 = where(hit, -vy1, vy1);

    // The paddle: where the ball meets it decides the angle.
    const Tensor offset = x - n[kPaddle];
    const Tensor back = logical_and(logical_and(s[kBallY] < num(kPlane), y2 >= num(kPlane)), abs(offset) < num(kReach));
    const Tensor zone = floor(offset * num(kZones / kReach)) + num(0.5), speed = minimum(abs(vy2) + num(kFaster), num(kFastest));
    const Tensor y3 = where(back, num(2 * kPlane) - y2, y2), vy3 = where(back, -speed, vy2), vx3 = where(back, zone * num(1 / kZones) * speed, vx);

    const Tensor lost = y3 > num(kOut), serve = equal(s[kWait], num(1)), stop = logical_or(lost, again);
    n[kBallX] = where(stop, num(0), x), n[kBallY] = where(stop, num(0), y3);
    n[kBallVx] = where(serve, (draws[0] * num(2) - num(1)) * num(kSlant), where(stop, num(0), vx3));
    n[kBallVy] = where(serve, num(kServe), where(stop, num(0), vy3));
    n[kWait] = where(stop, num(kPause), maximum(s[kWait] - num(1), num(0)));
    n[kLivesLeft] = s[kLivesLeft] - where(lost, num(1), num(0));
    if (pixels_) n[kBreakoutParts] = s[kBallX], n[kBreakoutParts + 1] = s[kBallY];
    return {n, where(hit, value, num(0)), logical_or(n[kLivesLeft] <= num(0), n[kWalls] >= num(2)), {}};
  }

  Tensor observe(const EnvState& s) const override {
    const int64_t rows = s[kPaddle].shape()[0];
    if (!pixels_)
      return concat({stack({s[kBallX] * num(1 / kWall), s[kBallY] * num(1 / kWall), s[kBallVx] * num(1 / kFastest), s[kBallVy] * num(1 / kFastest),
                            s[kPaddle] * num(1 / kPaddleLimit), s[kPaddleV] * num(1 / kPaddleSpeed)},
                           1),
                     s[kWallOfBricks]},
                    1);
    const Canvas canvas{pixels_, pixels_, 80, 80};
    auto ball = [&](const Tensor& x, const Tensor& y) { return (canvas.down(y, 2) * num(236)) * canvas.across(x, 2); };
    Tensor picture = maximum(ball(s[kBallX], s[kBallY]), ball(s[kBreakoutParts], s[kBreakoutParts + 1]));
    picture = maximum(picture, (canvas.down(num(kPlane + 4), 2) * num(148)) * canvas.across(s[kPaddle], kPaddleHalf));
    for (int64_t r = 0; r < kRows; ++r) {
      Tensor along = full({rows, 1, pixels_}, 0);
      for (int64_t c = 0; c < kColumns; ++c)
        along = along + reshape(slice(s[kWallOfBricks], 1, r * kColumns + c, r * kColumns + c + 1), {rows, 1, 1}) *
                            canvas.across(num(-70 + kBrickWidth * double(c)), 9.5);
      picture =
          maximum(picture, canvas.down(num(kTopOfBricks + kBrickHeight * (double(r) + 0.5)), kBrickHeight / 2 - 0.5) * (along * num(200 - 16 * double(r))));
    }
    return cast(picture + num(0.5), DType::u8);
  }

  Tensor render(const EnvState& s) const override {
    const int64_t rows = s[kPaddle].shape()[0];
    Picture picture({160, 160, 80, 80}, rows, {20, 22, 30});
    constexpr Picture::Colour kColours[] = {{200, 72, 72}, {198, 108, 58}, {180, 122, 48}, {162, 162, 42}, {72, 160, 72}, {66, 72, 200}};
    for (int64_t i = 0; i < kBricks; ++i) {
      const Tensor there = reshape(slice(s[kWallOfBricks], 1, i, i + 1), {rows});
      picture.fill(num(-70 + kBrickWidth * double(i % kColumns)), num(kTopOfBricks + kBrickHeight * (double(i / kColumns) + 0.5)), there * num(9.5),
                   num(kBrickHeight / 2 - 0.5), kColours[i / kColumns]);
    }
    picture.fill(s[kPaddle], num(kPlane + 4), kPaddleHalf, 2, {200, 72, 72});
    picture.fill(s[kBallX], s[kBallY], 2, 2, {236, 236, 236});
    return picture.bytes();
  }

 private:
  int64_t pixels_;
  EnvSpec spec_;
};

}  // namespace

std::shared_ptr<const Environment> make_breakout(int64_t pixels) { return std::make_shared<Breakout>(pixels); }

}  // namespace ridge::rl
