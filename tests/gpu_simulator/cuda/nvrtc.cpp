// The simulator's NVRTC: compiles a text, prefixed with CUDA's keywords in plain C++, to a shared library.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>
#include <vector>

#include "../../cuda/fake_driver/faults.h"
#include "../checker.h"
#include "../compiler.h"
#include "shim.h"

namespace {

using fake::fault;

enum NvrtcCode { kOk, kNoMemory, kCreationFailed, kInvalidInput, kInvalidProgram, kInvalidOption, kCompilation };

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

// Shared memory sized by the launch is a variable of the shim, so its declarations are removed.
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
      if (begins("static", 6)) text.replace(before - 6, 6, "      ");  // the shim's macro already says static
      at += 10;
    }
  }
}

struct Entry {
  std::string name, bound = "0", cluster = "1";
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

// The functions extern "C" __global__ void [__launch_bounds__(…)] [__cluster_dims__(…)] name(…), without duplicates.
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
      if (word == "__cluster_dims__") {
        entry.cluster = text.substr(open + 1, text.find(',', open) - open - 1);
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

int compile(Program& program) {
  std::string text = without_comments(program.text);
  if (text.find("#include") != std::string::npos) return program.log = "catastrophic error: cannot open source file: texts include nothing", kCompilation;
  const std::vector<Entry> entries = entries_of(text);
  drop_shared_declarations(text);
  std::string source = simulator::kShim;
  source += "#line 1 \"text\"\n" + text + "\n}\n#line 1 \"simulator\"\n";
  for (const Entry& entry : entries)
    source += "extern \"C\" __attribute__((visibility(\"default\"))) SimulatorEntry simulator_entry_" + entry.name + ";\nSimulatorEntry simulator_entry_" +
              entry.name + " = simulator_entry(&" + entry.name + ", " + entry.bound + ", " + entry.cluster + ");\n";
  const simulator::Compiled made = simulator::compile(source, {"-D__CUDACC_RTC__", "-D__CUDA_ARCH__=" + std::to_string(program.arch)});
  program.library = made.library, program.log = made.log;
  return program.library.empty() ? kCompilation : kOk;
}

}  // namespace

extern "C" {
// A version that no NVIDIA compiler has, to keep this compiler's output separate from theirs.
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
