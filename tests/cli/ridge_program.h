// Runs the ridge program as a user would: in its own folder, with its own cache, its output captured in files.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/places.h"
#include "support/temp_folder.h"

namespace ridge::test {

struct Answer {
  int code = 0;     // the exit code, or 128 + the signal that ended it
  std::string out;  // what it printed to stdout
  std::string err;  // … and to stderr

  bool says(std::string_view words) const { return out.find(words) != std::string::npos || err.find(words) != std::string::npos; }
  std::string all() const;  // code and both streams, for a failed check's message
};

class RidgeProgram {
 public:
  // HOME, the cache and the working folder are empty folders owned by this object. `program` may be another one than ridge, such as this test itself as
  // /proc/self/exe.
  explicit RidgeProgram(std::string program = ridge_program());
  void set(std::string variable, std::string value);
  void limit_files(int64_t bytes) { most_file_bytes_ = bytes; }  // like ulimit -f; -1: no limit
  Answer operator()(const std::vector<std::string>& arguments, double seconds = 100) const { return start(arguments).wait(seconds); }

  // Starts the program in the background. Only one at a time.
  class Running {
   public:
    void send(int signal) const;
    Answer wait(double seconds = 100) const;  // kills it after this many seconds
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

// Runs a command line, split at blanks, and checks its exit code and output: stdout if the code is 0, else stderr.
Answer expect_words(const RidgeProgram& ridge, int code, std::string_view expected, const std::string& line);
Answer expect_words(const RidgeProgram& ridge, int code, std::string_view expected, const std::vector<std::string>& words);
// The same for an error, which must be the only message, with nothing on stdout.
Answer expect_refusal(const RidgeProgram& ridge, int code, std::string_view expected, const std::string& line);

// A text, and the smallest settings that make a complete training run on it. They measure nothing.
void write_plays(const RidgeProgram& ridge, std::string_view name = "plays.txt");
inline const std::string kSmall = " layers=1 heads=2 width=16 block=32 batch=4 threads=1 optimize_perf=false sample_interval=none ";
std::string fixture(std::string_view name);  // path of a file or folder in tests/fixtures

}  // namespace ridge::test
