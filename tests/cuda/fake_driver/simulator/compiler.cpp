// NVRTC's side of the simulator: a text becomes a shared library, made by the host's compiler. Libraries are kept by content in a folder
// (SIMULATED_GPU_CACHE, else one in the folder for temporary files), so that tests that run again need not wait for the compiler.
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "../faults.h"
#include "checker.h"
#include "shim.h"

extern char** environ;

namespace {

namespace fs = std::filesystem;
using fake::fault;

enum NvrtcCode { kOk, kNoMemory, kCreationFailed, kInvalidInput, kInvalidProgram, kInvalidOption, kCompilation };
constexpr size_t kMostKept = 20000;  // libraries in the folder

struct Program {
  std::string text, log, library;
  int arch = 750;
};

std::string without_comments(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"' || (text[i] == '\'' && !(i > 0 && std::isalnum(static_cast<unsigned char>(text[i - 1]))))) {
      const char quote = text[i];
      do {
        out += text[i];
        if (text[i] == '\\' && i + 1 < text.size()) out += text[++i];
        ++i;
      } while (i < text.size() && text[i] != quote && text[i] != '\n');
      if (i < text.size()) out += text[i];
    } else if (text.compare(i, 2, "//") == 0) {
      while (i < text.size() && text[i] != '\n') ++i;
      out += '\n';
    } else if (text.compare(i, 2, "/*") == 0) {
      for (i += 2; i < text.size() && text.compare(i, 2, "*/") != 0; ++i)
        if (text[i] == '\n') out += '\n';
      ++i;
      out += ' ';
    } else {
      out += text[i];
    }
  }
  return out;
}

// Shared memory whose size the launch gives is a variable of the shim: declarations of it go.
void drop_shared_declarations(std::string& text) {
  for (size_t at = 0; (at = text.find("__shared__", at)) != std::string::npos;) {
    size_t before = at;
    while (before > 0 && std::isspace(static_cast<unsigned char>(text[before - 1]))) --before;
    auto begins = [&](const char* word, size_t size) { return before >= size && text.compare(before - size, size, word) == 0; };
    if (begins("extern", 6)) {
      const size_t end = std::min(text.find(';', at), text.size() - 1);
      text.erase(before - 6, end + 1 - (before - 6));
      at = before - 6;
    } else {
      if (begins("static", 6)) text.replace(before - 6, 6, "      ");  // the shim's word says it already
      at += 10;
    }
  }
}

struct Entry {
  std::string name, bound = "0";
};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

size_t closing(const std::string& text, size_t at) {
  int depth = 0;
  for (; at < text.size(); ++at) {
    if (text[at] == '(') ++depth;
    if (text[at] == ')' && --depth == 0) return at;
  }
  return text.size();
}

// The functions extern "C" __global__ void [__launch_bounds__(…)] name(…), each once.
std::vector<Entry> entries_of(const std::string& text) {
  std::vector<Entry> entries;
  for (size_t at = 0; (at = text.find("__global__", at)) != std::string::npos; ++at) {
    if (at > 0 && is_word(text[at - 1])) continue;
    const size_t line = text.find_last_of(";}", at);
    if (text.find("extern \"C\"", line == std::string::npos ? 0 : line) >= at) continue;
    Entry entry;
    for (size_t open = at; (open = text.find('(', open)) != std::string::npos;) {
      size_t end = open;
      while (end > at && std::isspace(static_cast<unsigned char>(text[end - 1]))) --end;
      size_t begin = end;
      while (begin > at && is_word(text[begin - 1])) --begin;
      const std::string word = text.substr(begin, end - begin);
      const size_t close = closing(text, open);
      if (word == "__launch_bounds__") {
        entry.bound = text.substr(open + 1, close - open - 1);
        entry.bound = entry.bound.substr(0, entry.bound.find(','));
        open = close;
        continue;
      }
      entry.name = word;
      break;
    }
    bool known = entry.name.empty();
    for (const Entry& other : entries) known = known || other.name == entry.name;
    if (!known) entries.push_back(entry);
  }
  return entries;
}

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
    if (count > kMostKept)
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

// The compiler's exit status; -1: it could not be started.
int compile(const std::vector<std::string>& words, const std::string& log) {
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

int compile(Program& program) {
  std::string text = without_comments(program.text);
  if (text.find("#include") != std::string::npos) return program.log = "catastrophic error: cannot open source file: texts include nothing", kCompilation;
  const std::vector<Entry> entries = entries_of(text);
  drop_shared_declarations(text);
  std::string source = simulator::kShim;
  source += "#line 1 \"text\"\n" + text + "\n}\n#line 1 \"simulator\"\n";
  for (const Entry& entry : entries)
    source += "extern \"C\" __attribute__((visibility(\"default\"))) SimulatorEntry simulator_entry_" + entry.name + ";\nSimulatorEntry simulator_entry_" +
              entry.name + " = simulator_entry(&" + entry.name + ", " + entry.bound + ");\n";
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
                                    "-DRIDGE_SIMULATOR",
                                    "-D__CUDACC_RTC__",
                                    "-D__CUDA_ARCH__=" + std::to_string(program.arch)};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) words.insert(words.end(), {"-mavx2", "-mfma"});
#endif
  if (simulator::checker::wanted()) words.insert(words.end(), {"-fsanitize=thread", "-nodefaultlibs"});
  std::string all = source + __VERSION__;
  for (const std::string& word : words) all += word + ' ';
  const fs::path folder = cache_folder(), kept = folder / (key_of(all) + ".so");
  if (program.library = read(kept); !program.library.empty()) return kOk;

  static std::atomic<int> number = 0;
  const std::string stem = (folder / (key_of(all) + "." + std::to_string(::getpid()) + "." + std::to_string(++number))).string();
  std::error_code error;
  std::ofstream(stem + ".cpp", std::ios::binary) << source;
  words.insert(words.end(), {"-o", stem + ".so", stem + ".cpp", "-lm", "-lc"});
  const int status = compile(words, stem + ".log");
  program.log = status < 0 ? "g++ is not installed" : read(stem + ".log");
  if (status == 0) {
    fs::rename(stem + ".so", kept, error);
    program.library = read(kept);
  }
  for (const char* end : {".cpp", ".log", ".so"}) fs::remove(stem + end, error);
  return status == 0 && !program.library.empty() ? kOk : kCompilation;
}

}  // namespace

extern "C" {
// A version that no compiler of NVIDIA's has: what it makes is kept apart from what they make.
int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = simulator::checker::wanted() ? 901 : 900, fault("nvrtcVersion"); }
const char* nvrtcGetErrorString(int code) {
  constexpr const char* kNames[] = {"NVRTC_SUCCESS",
                                    "NVRTC_ERROR_OUT_OF_MEMORY",
                                    "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
                                    "NVRTC_ERROR_INVALID_INPUT",
                                    "NVRTC_ERROR_INVALID_PROGRAM",
                                    "NVRTC_ERROR_INVALID_OPTION",
                                    "NVRTC_ERROR_COMPILATION"};
  return code >= 0 && code <= kCompilation ? kNames[code] : "NVRTC_ERROR_INTERNAL_ERROR";
}
int nvrtcGetNumSupportedArchs(int* count) { return *count = 5, fault("nvrtcGetNumSupportedArchs"); }
int nvrtcGetSupportedArchs(int* archs) {
  for (const int arch : {75, 80, 86, 89, 90}) *archs++ = arch;
  return fault("nvrtcGetSupportedArchs");
}
int nvrtcCreateProgram(Program** program, const char* text, const char*, int headers, const char* const*, const char* const*) {
  if (const int code = fault("nvrtcCreateProgram")) return code;
  if (!text || headers != 0) return kInvalidInput;
  *program = new Program;
  (*program)->text = text;
  return kOk;
}
int nvrtcDestroyProgram(Program** program) {
  if (!program || !*program) return kInvalidProgram;
  delete *program;
  *program = nullptr;
  return fault("nvrtcDestroyProgram");
}
int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  if (const int code = fault("nvrtcCompileProgram")) return program->log = "a fault of the test", code;
  for (int i = 0; i < count; ++i) {
    const std::string option = options[i];
    auto begins = [&](const char* word) { return option.rfind(word, 0) == 0; };
    const size_t is = option.find('=');
    if (begins("--gpu-architecture=") || begins("-arch=")) {
      const std::string arch = option.substr(is + 1);
      if (arch.rfind("sm_", 0) != 0 || std::atoi(arch.c_str() + 3) < 75) return program->log = "invalid value for --gpu-architecture: " + arch, kInvalidOption;
      program->arch = 10 * std::atoi(arch.c_str() + 3);
    } else if (!begins("--std=") && !begins("-std=") && !begins("--fmad=") && !begins("-default-device") && !begins("--device-as-default-execution-space") &&
               !begins("-D") && !begins("--define-macro") && !begins("--ptxas-options") && !begins("--extra-device-vectorization") && !begins("--dopt") &&
               !begins("--maxrregcount") && !begins("--split-compile") && !begins("--minimal") && !begins("--diag") && !begins("-w") &&
               !begins("--disable-warnings") && !begins("--no-source-include") && !begins("--prec-") && !begins("--ftz=")) {
      return program->log = "unrecognized option " + option, kInvalidOption;
    }
  }
  return compile(*program);
}
int nvrtcGetProgramLogSize(const Program* program, size_t* bytes) { return *bytes = program->log.size() + 1, fault("nvrtcGetProgramLogSize"); }
int nvrtcGetProgramLog(const Program* program, char* log) {
  return std::copy_n(program->log.c_str(), program->log.size() + 1, log), fault("nvrtcGetProgramLog");
}
int nvrtcGetCUBINSize(const Program* program, size_t* bytes) {
  return *bytes = program->library.size(), program->library.empty() ? kInvalidProgram : fault("nvrtcGetCUBINSize");
}
int nvrtcGetCUBIN(const Program* program, char* bytes) {
  return std::copy(program->library.begin(), program->library.end(), bytes), program->library.empty() ? kInvalidProgram : fault("nvrtcGetCUBIN");
}
int nvrtcGetPTXSize(const Program* program, size_t* bytes) { return nvrtcGetCUBINSize(program, bytes); }
int nvrtcGetPTX(const Program* program, char* bytes) { return nvrtcGetCUBIN(program, bytes); }
}
