#include "drivers/nvrtc.h"

#include <dlfcn.h>

#include <cstdint>
#include <filesystem>

#include "base/error.h"

namespace ridge::cuda {
namespace {

FoundLibrary require(const LibrarySearch& search) {
  FoundLibrary found = open_library(Library::nvrtc, search);
  if (!found.library) fail(ErrorCode::unsupported, "{}", found.missing);
  return found;
}

// The error lines, without noise from the prelude.
std::string first_errors(const std::string& log) {
  constexpr int kMax = 6;
  std::string out;
  int lines = 0;
  for (size_t at = 0; at < log.size() && lines < kMax;) {
    const size_t end = std::min(log.find('\n', at), log.size());
    const std::string line = log.substr(at, end - at);
    at = end + 1;
    if (line.find("error") == std::string::npos) continue;
    out += "\n  " + line;
    ++lines;
  }
  return out.empty() ? "\n  " + log.substr(0, 400) : out;
}

}  // namespace

Nvrtc::Nvrtc(const LibrarySearch& search) : found_(require(search)) {}

void Nvrtc::throw_missing(const char* symbol) const { fail(ErrorCode::unsupported, "{} lacks {}: install NVRTC of CUDA 12 or newer", found_.path, symbol); }

void Nvrtc::refuse(const char* symbol, int code) const {
  const char* (*text)(int) = nullptr;
  fail(ErrorCode::internal, "[{}] {} ({})", symbol, library().bind(text, "nvrtcGetErrorString") ? text(code) : "unknown error", code);
}

std::string Nvrtc::version() const {
  int major = 0, minor = 0;
  get_version(&major, &minor);
  return fmt::format("{}.{}", major, minor);
}

std::string Nvrtc::identity() const {
  int (*function)(int*, int*) = nullptr;
  Dl_info where = {};
  std::error_code error;
  uintmax_t bytes = 0;
  if (library().bind(function, "nvrtcVersion") && ::dladdr(reinterpret_cast<const void*>(function), &where) && where.dli_fname)
    bytes = std::filesystem::file_size(where.dli_fname, error);
  return fmt::format("{} {}", version(), error ? 0 : bytes);
}

std::vector<std::string> Nvrtc::options(const std::string& target) {
  return {"--gpu-architecture=" + target, "--std=c++17", "--fmad=false", "-default-device"};
}

std::string Nvrtc::compile(const std::string& kernel, const std::string& source, const std::string& target) const {
  NvrtcProgram program = nullptr;
  create(&program, source.c_str(), (kernel + ".cu").c_str(), 0, nullptr, nullptr);
  struct Destroyed {
    const Nvrtc& nvrtc;
    NvrtcProgram& program;
    ~Destroyed() { nvrtc.destroy.quietly(&program); }
  } destroyed{*this, program};

  const std::vector<std::string> words = options(target);
  std::vector<const char*> pointers;
  for (const std::string& word : words) pointers.push_back(word.c_str());
  if (const int code = compile_program.quietly(program, int(pointers.size()), pointers.data())) {
    constexpr int kCompilation = 6, kInvalidOption = 5;
    if (code == kInvalidOption)
      fail(ErrorCode::unsupported, "[nvrtc] {} (NVRTC {}) does not support the chip {}: install a newer NVRTC", found_.path, version(), target);
    if (code != kCompilation) refuse(compile_program.symbol(), code);
    size_t size = 0;
    log_size(program, &size);
    std::string build_log(size, '\0');
    if (size) log(program, build_log.data());
    fail(ErrorCode::internal, "[nvrtc] kernel {} does not compile for {}:{}", kernel, target, first_errors(build_log.c_str()));
  }
  size_t size = 0;
  cubin_size(program, &size);
  std::string code(size, '\0');
  cubin(program, code.data());
  return code;
}

}  // namespace ridge::cuda
