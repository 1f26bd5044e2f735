// The validation metric that decides which weights are best and whether a target is reached.
#pragma once
#include <string>

namespace ridge {

// The metric's name, unit and direction. The default is the validation loss, lower is better.
struct Score {
  std::string name = "loss";      // "loss", or a named scalar that the loss reports ("accuracy")
  std::string unit = {};          // shown with the values, such as "%" or "points"; empty: none
  bool higher_is_better = false;  // true for accuracy or a game's score

  bool is_loss() const { return name == "loss"; }                                                       // the validation loss itself
  bool better(double a, double b) const { return higher_is_better ? a > b : a < b; }                    // whether a beats b
  bool reaches(double value, double target) const { return value == target || better(value, target); }  // whether value is at least as good as target
  bool operator==(const Score&) const = default;
};

}  // namespace ridge
