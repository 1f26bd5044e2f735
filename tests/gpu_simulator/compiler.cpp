#include "compiler.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "checker.h"

extern char** environ;

namespace simulator {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxKept = 20000;  // most libraries in the folder

std::string key_of(const std::string& text) {
  uint64_t a = 14695981039346656037u, b = 0x9e3779b97f4a7c15u;
  for (const char c : text) {
    a = (a ^ static_cast<unsigned char>(c)) * 1099511628211u;
    b = (b + static_cast<unsigned char>(c)) * 0xd6e8feb86659fd93u, b ^= b >> 29;
  }
  char words[33];
  std::snprintf(words, sizeof words, "%016llx%016llx", static_cast<unsigned long long>(a), static_cast<unsigned long long>(b));
  return words;
}

fs::path cache_folder() {
  std::error_code error;
  const char* named = std::getenv("SIMULATED_GPU_CACHE");
  const fs::path folder = named && *named ? fs::path(named) : fs::temp_directory_path(error) / ("ridge_simulator_" + std::to_string(::getuid()));
  fs::create_directories(folder, error);
  static std::atomic<bool> looked = false;
  if (!looked.exchange(true)) {
    size_t count = 0;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) ++count;
    if (count > kMaxKept)
      for (const auto& entry : fs::directory_iterator(folder, error)) fs::remove(entry.path(), error);
  }
  return folder;
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

// Returns the compiler's exit status; -1: it could not be started.
int run_compiler(const std::vector<std::string>& words, const std::string& log) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed) return -1;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

}  // namespace

Compiled compile(const std::string& source, const std::vector<std::string>& defines) {
  std::vector<std::string> words = {"g++",
                                    "-std=c++17",
                                    "-O1",
                                    "-fPIC",
                                    "-shared",
                                    "-ffp-contract=off",
                                    "-fwrapv",
                                    "-fno-strict-aliasing",
                                    "-w",
                                    "-fno-exceptions",
                                    "-fno-rtti",
                                    "-fno-asynchronous-unwind-tables",
                                    "-s",
                                    "-fvisibility=hidden",
                                    "-fno-math-errno",
                                    "-DRIDGE_SIMULATOR"};
  words.insert(words.end(), defines.begin(), defines.end());
#if defined(__x86_64__)
  if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) words.insert(words.end(), {"-mavx2", "-mfma"});
#endif
  if (checker::wanted()) words.insert(words.end(), {"-fsanitize=thread", "-nodefaultlibs"});
  std::string all = source + __VERSION__;
  for (const std::string& word : words) all += word + ' ';
  const fs::path folder = cache_folder(), kept = folder / (key_of(all) + ".so");
  if (std::string library = read(kept); !library.empty()) return {std::move(library), {}};

  static std::atomic<int> number = 0;
  const std::string stem = (folder / (key_of(all) + "." + std::to_string(::getpid()) + "." + std::to_string(++number))).string();
  std::error_code error;
  std::ofstream(stem + ".cpp", std::ios::binary) << source;
  words.insert(words.end(), {"-o", stem + ".so", stem + ".cpp", "-lm", "-lc"});
  Compiled made;
  const int status = run_compiler(words, stem + ".log");
  made.log = status < 0 ? "g++ is not installed" : read(stem + ".log");
  if (status == 0) {
    fs::rename(stem + ".so", kept, error);
    made.library = read(kept);
  }
  for (const char* end : {".cpp", ".log", ".so"}) fs::remove(stem + end, error);
  return made;
}

}  // namespace simulator
