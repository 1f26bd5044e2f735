// System calls that fail on demand: counts every write, fsync, rename, mkdir and remove, and can make one of them fail.
#pragma once
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>

#include "io/atomic_file.h"

namespace ridge::test {

enum class Fault { none, enospc, eio, interrupted, short_write, short_then_full, killed, killed_within };

// The state of FileFaults::calls() in this process. Only one at a time: the system calls' signatures cannot carry an object.
class FileFaults {
 public:
  FileFaults(Fault fault, int at) { state() = {fault, at, 0, {}}; }
  ~FileFaults() { state() = {}; }
  FileFaults(const FileFaults&) = delete;
  FileFaults& operator=(const FileFaults&) = delete;

  static constexpr int kKilledExit = 9;  // the exit code of Fault::killed and killed_within
  static FileCalls calls() { return {write, fsync, rename, mkdir, remove}; }
  static int count() { return state().count; }                       // calls so far
  static const std::string& sequence() { return state().sequence; }  // w, f, r, m or x for each call attempted

 private:
  struct State {
    Fault fault = Fault::none;
    int at = 0;  // index of the failing call, from 0
    int count = 0;
    std::string sequence;
  };
  static State& state() {
    static State s;
    return s;
  }

  // Applies this call's fault. A kill happens before the call does anything, or in the middle of a write.
  static Fault next(char kind) {
    State& s = state();
    s.sequence += kind;
    const Fault fault = s.count++ == s.at ? s.fault : Fault::none;
    if (fault == Fault::killed || (fault == Fault::killed_within && kind != 'w')) ::_exit(kKilledExit);
    if (s.fault == Fault::short_then_full && s.count == s.at + 2) return Fault::enospc;
    return fault;
  }
  static bool fails(Fault fault) {
    errno = fault == Fault::eio ? EIO : fault == Fault::interrupted ? EINTR : ENOSPC;
    return fault == Fault::eio || fault == Fault::enospc || fault == Fault::interrupted;
  }

  static ssize_t write(int file, const void* data, size_t bytes) {
    const Fault fault = next('w');
    if (fails(fault)) return -1;
    const ssize_t done = ::write(file, data, fault == Fault::none ? bytes : std::max<size_t>(bytes / 3, 1));
    if (fault == Fault::killed_within) ::_exit(kKilledExit);
    return done;
  }
  static int fsync(int file) {
    if (fails(next('f'))) return -1;
    return ::fsync(file);
  }
  static int rename(const char* from, const char* to) {
    if (fails(next('r'))) return -1;
    return std::rename(from, to);
  }
  static int mkdir(const char* path, mode_t mode) {
    if (fails(next('m'))) return -1;
    return ::mkdir(path, mode);
  }
  static int remove(const char* path) {
    if (fails(next('x'))) return -1;
    return std::remove(path);
  }
};

}  // namespace ridge::test
