// A program prepared for the CPU: kernels bound to offsets, and loops over time whose bodies are compiled the same way.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "compile/program.h"
#include "threads/task.h"

namespace ridge {
class KernelLog;
class ThreadTeam;
}  // namespace ridge

namespace ridge::cpu {

class CompiledProgram {
 public:
  // choices: names of variants by kernel key; those used are added to `used`, and all kernels with variants to `seen`.
  struct Choices {
    std::map<std::string, std::string> wanted = {}, used = {};
    std::set<std::string> seen = {};
  };
  CompiledProgram(Program program, ThreadTeam& team, Choices* choices = nullptr);
  ~CompiledProgram();

  const Program& program() const { return program_; }
  int64_t arena_bytes() const { return program_.arena_bytes; }
  int64_t workspace_bytes() const { return workspace_bytes_; }  // the largest that any kernel needs
  int64_t scratch_bytes() const { return scratch_bytes_; }      // per thread

  size_t loop_kernels(size_t kernel) const;  // kernels in one step of a loop over time; 0 for any other kernel
  std::string dump() const;                  // the program, then the bodies of its loops

  // Does not allocate. The arena has arena_bytes and is 64-byte aligned.
  void run(std::byte* arena, std::span<const void* const> inputs, std::span<void* const> outputs, Fault& fault);
  void run(std::byte* arena, std::span<const void* const> inputs, std::span<void* const> outputs, Fault& fault, KernelLog& log);  // kernel by kernel

 private:
  struct Scan;
  void bind(std::byte* arena, std::span<const void* const> inputs, std::span<void* const> outputs);

  Program program_;
  ThreadTeam& team_;
  std::vector<std::unique_ptr<Kernel>> kernels_;  // null for loops that run step by step
  std::vector<std::unique_ptr<Scan>> scans_;      // these loops; null for other kernels
  std::vector<const Program*> bodies_;            // of loops; null for other kernels
  std::vector<Task> tasks_;
  std::vector<size_t> first_task_;  // by kernel
  struct Segment {                  // tasks, then a loop, except in the last segment
    size_t first, last;
    Scan* scan;
  };
  std::vector<Segment> segments_;
  std::vector<std::byte*> bases_;  // the arena, then the inputs, then the outputs
  int64_t workspace_bytes_ = 0, scratch_bytes_ = 0;
};

}  // namespace ridge::cpu
