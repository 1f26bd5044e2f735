// Whether other programs use the machine while something is measured.
#pragma once
#include <functional>
#include <memory>

#include "machine/utilisation.h"

namespace ridge {

class LoadWatch {
 public:
  // others: the share of the machine that other programs have used since its previous call, and now: seconds; both for tests.
  explicit LoadWatch(std::function<double()> others = {}, std::function<double()> now = {});
  // As of the last look. Looks shorter apart than 0.15 s say nothing, so some calls repeat the previous answer. The first call only starts to watch.
  bool busy();

 private:
  std::function<double()> others_, now_;
  std::shared_ptr<OthersWatch> watch_;
  double looked_ = -1;
  bool busy_ = false;
};

}  // namespace ridge
