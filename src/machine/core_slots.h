// Which cores this user's other Ridge processes compute on, so that two of them do not compete for the same cores. A slot is a locked file per core in the
// user's runtime folder. The kernel releases the lock when its holder exits, however it exits.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace ridge {

// $XDG_RUNTIME_DIR/ridge if writable, else ridge-UID in the temporary folder.
std::filesystem::path run_folder();

class CoreSlots {
 public:
  CoreSlots() = default;  // holds none
  ~CoreSlots();
  CoreSlots(CoreSlots&& other) noexcept;
  CoreSlots& operator=(CoreSlots&& other) noexcept;

  // Takes the free slots among these cores (each identified by its first CPU), in the given order.
  static CoreSlots take(const std::vector<int>& cores, const std::filesystem::path& folder = run_folder());

  const std::vector<int>& held() const { return held_; }
  const std::vector<int>& foreign() const { return foreign_; }  // held by others
  bool usable() const { return remark_.empty(); }               // false: nothing is known about other processes
  const std::string& remark() const { return remark_; }         // why slots do not work here

  void keep(const std::vector<int>& cores);  // releases all others

 private:
  void release(size_t index);
  std::vector<int> held_, foreign_, locks_;  // locks_: file descriptors of held_
  std::string remark_;
};

}  // namespace ridge
