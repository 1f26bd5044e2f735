// Which cores other Ridge processes of this user compute on, so that two of them do not fight over the same ones. A slot is a
// locked file, one for each core, in the user's run folder. The kernel drops a lock when its holder ends, however it ends.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace ridge {

// $XDG_RUNTIME_DIR/ridge where that can be written, else ridge-UID in the folder for temporary files.
std::filesystem::path run_folder();

class CoreSlots {
 public:
  CoreSlots() = default;  // holds none
  ~CoreSlots();
  CoreSlots(CoreSlots&& other) noexcept;
  CoreSlots& operator=(CoreSlots&& other) noexcept;

  // Takes the free ones among these cores (each named by its first CPU), in the order given.
  static CoreSlots take(const std::vector<int>& cores, const std::filesystem::path& folder = run_folder());

  const std::vector<int>& held() const { return held_; }
  const std::vector<int>& foreign() const { return foreign_; }  // held by others
  bool usable() const { return remark_.empty(); }               // else nothing is known of others
  const std::string& remark() const { return remark_; }         // why slots do not work here

  void keep(const std::vector<int>& cores);  // gives all others back

 private:
  void release(size_t index);
  std::vector<int> held_, foreign_, locks_;  // locks_: file descriptors of held_
  std::string remark_;
};

}  // namespace ridge
