// A host environment among the others: it has a name, a spec and options, but only a host can play it.
#pragma once
#include "ridge/host_environment.h"

namespace ridge::rl {

class HostGame final : public Environment {
 public:
  HostGame(std::string name, MakeHostEnvironment make);

  const EnvSpec& spec() const override { return spec_; }
  EnvState reset(const Tensor&, const Draws&) const override { refuse(); }
  Next step(const EnvState&, const Tensor&, const Draws&) const override { refuse(); }
  Tensor observe(const EnvState&) const override { refuse(); }

  std::unique_ptr<HostEnvironment> make(int64_t instances) const;
  Shape picture() const { return picture_; }
  bool can_save() const { return can_save_; }
  HostEnvironment::Threads threads() const { return threads_; }

 private:
  [[noreturn]] void refuse() const;

  EnvSpec spec_;
  MakeHostEnvironment make_;
  Shape picture_;
  bool can_save_ = false;
  HostEnvironment::Threads threads_ = HostEnvironment::Threads::several;
};

const HostGame* host_game(const Environment& environment);  // null: it is tensor code

}  // namespace ridge::rl
