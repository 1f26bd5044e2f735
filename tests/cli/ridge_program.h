// Runs the ridge program as a user would: in a folder of its own, with a cache of its own, its output in files.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/places.h"
#include "support/temp_folder.h"

namespace ridge::test {

struct Answer {
  int code = 0;     // the exit code; 128 + the signal where one ended it
  std::string out;  // what it printed to stdout
  std::string err;  // … and to stderr

  bool says(std::string_view words) const { return out.find(words) != std::string::npos || err.find(words) != std::string::npos; }
  std::string all() const;  // code and both streams, for a failed check's message
};

class RidgeProgram {
 public:
  // HOME, the cache and the working folder are empty folders of this object's. Another program than ridge: this test itself, as /proc/self/exe.
  explicit RidgeProgram(std::string program = ridge_program());
  void set(std::string variable, std::string value);
  void limit_files(int64_t bytes) { most_file_bytes_ = bytes; }  // as ulimit -f does; -1: no limit
  Answer operator()(const std::vector<std::string>& arguments, double seconds = 100) const { return start(arguments).wait(seconds); }

  // One that runs meanwhile. One at a time.
  class Running {
   public:
    void send(int signal) const;
    Answer wait(double seconds = 100) const;  // killed after so many seconds
    std::string printed() const;              // to stdout so far

   private:
    friend class RidgeProgram;
    int process_ = 0;
    std::string out_, err_;
  };
  Running start(const std::vector<std::string>& arguments) const;

  std::string operator/(std::string_view name) const { return folder_ / name; }  // a path in its working folder
  const std::string& folder() const { return folder_.path(); }

 private:
  std::string program_;
  TempFolder folder_;
  std::vector<std::pair<std::string, std::string>> variables_;
  int64_t most_file_bytes_ = -1;
};

}  // namespace ridge::test
