// What a run is judged by: the figure of a validation that decides which weights are the best and whether a target is reached.
#pragma once
#include <string>

namespace ridge {

// The figure that decides: its name, unit and direction. The default is the validation loss, lower is better.
struct Score {
  std::string name = "loss";      // the validation loss, or a named scalar of it ("accuracy")
  std::string unit = {};          // that is shown with its values, as "%" or "points"; empty: none
  bool higher_is_better = false;  // as for accuracy or a game's score

  bool is_loss() const { return name == "loss"; }
  bool better(double a, double b) const { return higher_is_better ? a > b : a < b; }                    // whether a is better than b
  bool reaches(double value, double target) const { return value == target || better(value, target); }  // whether value is at least as good as target
  bool operator==(const Score&) const = default;
};

}  // namespace ridge
