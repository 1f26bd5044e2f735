// Runs a kernel's blocks, or clusters of blocks, one after another, with threads that synchronize at barriers and in warps as on a GPU. It also checks:
// deadlocks, disagreeing masks and out-of-bounds accesses end the launch with a message.
#pragma once
#include <string>

namespace simulator {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

// Same layout as in the shim.
struct Hooks {
  unsigned (*barrier)(int kind, int id, int threads, unsigned value);
  unsigned (*warp)(unsigned mask, int kind, const void* mine, void* result, int bytes, int argument, int width);
  void (*fail)(const char* words);
  int (*lane)();
  unsigned (*active)();
  long long (*clock)();
  void (*touch)(const void* at, int bytes, int write);
  unsigned (*cluster_rank)();
  void* (*cluster_address)(void* at, unsigned rank);
};
struct Entry {
  void (*call)(void (*)(), void**);
  void (*function)();
  const int* sizes;
  int count, bound;
  int cluster;  // blocks that run together
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
  size_t shared = 0;  // dynamic shared memory, bytes
  void** args = nullptr;
};

Hooks hooks();

// Returns an error message, or an empty string. Only one launch at a time.
std::string run(const Launch& launch);

}  // namespace simulator
