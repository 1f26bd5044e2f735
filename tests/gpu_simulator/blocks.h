// Runs a kernel's blocks, one after the other, with threads that meet at barriers and in warps as those of a GPU do. It is also a
// checker: threads that wait for each other in vain, masks that disagree and accesses outside of all memory end the launch with words.
#pragma once
#include <string>

namespace simulator {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

// As the shim lays them out.
struct Hooks {
  unsigned (*barrier)(int kind, int id, int threads, unsigned value);
  unsigned (*warp)(unsigned mask, int kind, const void* mine, void* result, int bytes, int argument, int width);
  void (*fail)(const char* words);
  int (*lane)();
  unsigned (*active)();
  long long (*clock)();
  void (*touch)(const void* at, int bytes, int write);
};
struct Entry {
  void (*call)(void (*)(), void**);
  void (*function)();
  const int* sizes;
  int count, bound;
};
struct ModuleTable {
  Hooks* hooks;
  Index *thread, *block, *threads, *blocks;
  unsigned char** shared_memory;
  char *shared_begin, *shared_end;
};

struct Launch {
  std::string name;
  const Entry* entry = nullptr;
  const ModuleTable* module = nullptr;
  Index blocks, threads;
  size_t shared = 0;  // dynamic
  void** args = nullptr;
};

Hooks hooks();

// Words about what went wrong; empty: nothing. One launch at a time.
std::string run(const Launch& launch);

}  // namespace simulator
