// NVIDIA's run-time compiler, opened at run time: compiles kernel source to machine code for one chip. Needs no device.
#pragma once
#include <string>
#include <vector>

#include "drivers/checked_call.h"
#include "drivers/cuda_libraries.h"

namespace ridge::cuda {

class Nvrtc;
template <class... Args>
using NvrtcCall = CheckedCall<Nvrtc, Args...>;
using NvrtcProgram = struct NvrtcProgramTag*;

class Nvrtc {
 public:
  explicit Nvrtc(const LibrarySearch& search);  // ErrorCode::unsupported if missing

  std::string version() const;   // "13.0"
  std::string identity() const;  // the version and the library's size, since updates within a version differ too
  const std::string& path() const { return found_.path; }

  // Options for every compilation: results must be the same in every kernel, so FMA is used only where written explicitly.
  static std::vector<std::string> options(const std::string& target);

  // Machine code for a chip ("sm_90a"). Thread-safe. On failure ErrorCode::internal with the kernel's name and the compiler's first error messages.
  std::string compile(const std::string& kernel, const std::string& source, const std::string& target) const;

  const DynamicLibrary& library() const { return found_.library; }
  [[noreturn]] void throw_missing(const char* symbol) const;
  [[noreturn]] void refuse(const char* symbol, int code) const;

 private:
  FoundLibrary found_;

 public:
  NvrtcCall<int*, int*> get_version{*this, "nvrtcVersion"};
  NvrtcCall<NvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*> create{*this, "nvrtcCreateProgram"};
  NvrtcCall<NvrtcProgram*> destroy{*this, "nvrtcDestroyProgram"};
  NvrtcCall<NvrtcProgram, int, const char* const*> compile_program{*this, "nvrtcCompileProgram"};
  NvrtcCall<NvrtcProgram, size_t*> log_size{*this, "nvrtcGetProgramLogSize"};
  NvrtcCall<NvrtcProgram, char*> log{*this, "nvrtcGetProgramLog"};
  NvrtcCall<NvrtcProgram, size_t*> cubin_size{*this, "nvrtcGetCUBINSize"};
  NvrtcCall<NvrtcProgram, char*> cubin{*this, "nvrtcGetCUBIN"};
};

}  // namespace ridge::cuda
