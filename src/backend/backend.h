// What a device provides: memory, copies, and compiled programs. It has no functions per operation.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "machine/precision.h"

namespace ridge {

struct Program;

struct DeviceInfo {
  std::string name;       // "cpu", "cuda", "reference"
  std::string what;       // "avx512, 8 threads"
  std::string chip = {};  // "NVIDIA H200"; empty: the host's processor
};

// Device memory in bytes, as the driver counts it; all zeros if the device uses host memory.
struct DeviceMemory {
  int64_t total = 0, free = 0;
  int64_t held = 0;  // held by this process in addition to what programs requested: context, kernels, recordings, libraries
};

// A program compiled for one device and bound to memory offsets; it can be run repeatedly.
class Code {
 public:
  virtual ~Code() = default;
  virtual const Program& program() const = 0;
  virtual int64_t workspace_bytes() const = 0;           // the part of the arena for workspaces: the most that any kernel needs
  virtual int64_t scratch_bytes() const = 0;             // outside the arena, for all threads together
  virtual size_t loop_kernels(size_t kernel) const = 0;  // kernels per step if the kernel is a loop over time; otherwise 0
  virtual std::string dump() const = 0;                  // the program, then the bodies of its loops
  virtual int64_t launches() const;                      // in one run; of a device without launches: its kernels

  // Before it runs, a program may need machine code and measurements that choose among candidates. compile_ahead() starts what can be done
  // in the background; prepare() returns when all of it is done. The first run does whatever is left.
  virtual void compile_ahead() {}
  virtual void prepare() {}

  // Takes one pointer per input and per output of the program; the arena has the program's arena_bytes. If a kernel finds an index out of
  // range, an Error is thrown afterwards. After the first run nothing is allocated (except by the reference backend).
  virtual void run(std::byte* arena, std::span<const void* const> inputs, std::span<void* const> outputs) = 0;
};

// A way to build a kernel that a search may try; same_bits: whatever the operands, its result has the bits of the kernel as the device would build it.
struct KernelCandidate {
  std::string name;
  bool same_bits = false;
};
inline constexpr std::string_view kKernelChoice = "kernel ";  // precedes the key of a kernel among choices()

// Programs, and copies that do not name a queue, run in `work`.
enum class Queue { work, in, out };

class Backend {
 public:
  virtual ~Backend() = default;
  virtual DeviceInfo info() const = 0;
  virtual std::string remark() const { return {}; }   // what is missing although the device works; empty: nothing
  virtual bool host_memory() const { return false; }  // its pointers are valid on the host
  virtual DeviceMemory memory() const { return {}; }
  virtual ArithmeticUnit arithmetic() const { return arithmetic_of({}, {}); }  // the number formats it computes in

  // Sets the format for products of f32 numbers in programs compiled from now on. Devices that only have fp32 ignore it.
  virtual void use_f32_products(Precision format) { (void)format; }
  virtual Precision f32_products() const { return Precision::fp32; }
  virtual void use_pinned_memory(bool wanted) { (void)wanted; }  // for upload() and download(), from now on

  // Zeroed, 64-byte aligned, and touched, so that no later access can fail for lack of memory. Throws ErrorCode::memory with the sizes if
  // there is not enough.
  virtual std::byte* allocate(int64_t bytes) = 0;
  virtual void release(std::byte* p, int64_t bytes) = 0;
  virtual void upload(void* to, const void* from, int64_t bytes) = 0;    // host to device
  virtual void download(void* to, const void* from, int64_t bytes) = 0;  // device to host
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;      // on the device
  virtual void clear(void* to, int64_t bytes) = 0;                       // zeros, on the device

  // Copies and runs execute in the order of the calls, possibly asynchronously. When upload() returns, its source may be changed; when
  // download() returns, the data has arrived. wait_for() waits for the work requested before a mark, but not for later work.
  virtual int64_t mark() { return 0; }
  virtual void wait_for(int64_t mark) { (void)mark; }
  virtual void wait() {}  // for all work; throws an Error if a kernel found an index out of range
  // Host memory that the device can copy to and from directly. A value has arrived once a mark set after its copy is done.
  virtual std::byte* allocate_host(int64_t bytes) { return allocate(bytes); }
  virtual void release_host(std::byte* p, int64_t bytes) { release(p, bytes); }
  // Copy from and to memory of allocate_host(), which must not change until a mark set after the copy is done. In queues other than `work`,
  // copies run concurrently with programs and are ordered with them only by order().
  virtual void download_later(void* to, const void* from, int64_t bytes, Queue queue = Queue::work) { (void)queue, download(to, from, bytes); }
  virtual void upload_later(void* to, const void* from, int64_t bytes, Queue queue = Queue::work) { (void)queue, upload(to, from, bytes); }
  virtual void order(Queue first, Queue then) { (void)first, (void)then; }  // work added to `then` from now on waits for everything in `first` so far
  virtual bool behind() const { return false; }                             // runs return before they are done

  // Whether convolutions have their own kernels; otherwise they become windows and products before compilation.
  virtual bool convolutions() const { return false; }
  // Whether these kernels take an epilogue as products do, and run inside loops over time.
  virtual bool convolutions_fuse() const { return false; }
  virtual bool convolutions_read_bytes() const { return convolutions_fuse(); }
  // Whether a macro node can be compiled; if not, its decomposition is compiled.
  virtual bool runs(const Graph& graph, NodeId node) const { return (void)graph, (void)node, true; }
  // Whether a conv is faster if its images and its result are stored with channels last.
  virtual bool channels_last(const Graph& graph, NodeId conv) const { return (void)graph, (void)conv, false; }
  // Whether a conv is best stored in the axis order of this permutation of it.
  virtual bool stores_permuted(const Graph& graph, NodeId permuted) const { return (void)graph, (void)permuted, false; }
  // Choices that may change result bits, by key: choices() returns those made or used so far; use_choices() sets those to use instead of
  // measuring.
  virtual std::map<std::string, std::string> choices() const { return {}; }
  virtual void use_choices(const std::map<std::string, std::string>& choices) { (void)choices; }

  // For devices whose kernels are chosen by searches: the same device with choices of its own, which must not outlive the threads of this one (null: it has
  // none); the keys of kernels compiled since use_choices(), which are also their `choice_key`; and what may be tried for one.
  virtual std::unique_ptr<Backend> with_choices(const std::map<std::string, std::string>& choices) const { return (void)choices, nullptr; }
  virtual std::vector<std::string> tunable_kernels() const { return {}; }
  virtual std::vector<KernelCandidate> kernel_candidates(std::string_view key) const { return (void)key, std::vector<KernelCandidate>(); }

  // Ways to share out the work of programs, of which none can change a result, in words; the first one is used until another is set, between two runs.
  virtual std::vector<std::string> sharings() const { return {}; }
  virtual void use_sharing(size_t way) { (void)way; }

  virtual std::unique_ptr<Code> compile(Program program) = 0;
};

// Sets the format in which the device computes products of f32 numbers: tf32 with precision=tf32 or matmul_precision=high, and bf16
// with medium if its matrix units support it.
void choose_products(Backend& backend, Precision precision, std::string_view matmul_precision);
Precision product_format(const Backend& backend, Precision precision);  // the format used by a step in this precision, after choose_products()

}  // namespace ridge
