// What a device does for Ridge: memory, copies, and programs made ready to run. Nothing per operation.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "graph/graph.h"
#include "machine/precision.h"

namespace ridge {

struct Program;

struct DeviceInfo {
  std::string name;       // "cpu", "cuda", "reference"
  std::string what;       // "avx512, 8 threads"
  std::string chip = {};  // "NVIDIA H200"; empty: the host's processor
};

// Memory of a device in bytes, as its driver counts it; zeros where it is the host's.
struct DeviceMemory {
  int64_t total = 0, free = 0;
  int64_t held = 0;  // by this process in addition to what programs asked for: context, kernels, recordings, libraries
};

// A program compiled for one device and bound to places in memory: what is replayed.
class Code {
 public:
  virtual ~Code() = default;
  virtual const Program& program() const = 0;
  virtual int64_t workspace_bytes() const = 0;           // of the arena: the most that a kernel needs for itself
  virtual int64_t scratch_bytes() const = 0;             // beside the arena, for all threads together
  virtual size_t loop_kernels(size_t kernel) const = 0;  // kernels of one step of a loop over time; 0 for any other kernel
  virtual std::string dump() const = 0;                  // the program, then its loops' bodies

  // A program may need more than a plan before it runs: machine code, and measurements among candidates. compile_ahead() begins with what
  // can be done in the background; prepare() has done all of it. The first run does what is left.
  virtual void compile_ahead() {}
  virtual void prepare() {}

  // One pointer per input and per output of the program; the arena has the program's arena_bytes. A bad index met by a kernel is an
  // Error afterwards. After the first run nothing is allocated (the reference apart).
  virtual void run(std::byte* arena, std::span<const void* const> inputs, std::span<void* const> outputs) = 0;
};

// Programs and all copies that do not name another are in `work`.
enum class Queue { work, in, out };

class Backend {
 public:
  virtual ~Backend() = default;
  virtual DeviceInfo info() const = 0;
  virtual std::string remark() const { return {}; }   // what is missing although the device works; empty: nothing
  virtual bool host_memory() const { return false; }  // its pointers are the host's too
  virtual DeviceMemory memory() const { return {}; }
  virtual ArithmeticUnit arithmetic() const { return arithmetic_of({}, {}); }  // which number formats it computes in

  // The format in which products of f32 numbers are computed by what is compiled from now on. Ignored by devices that have fp32 alone.
  virtual void use_f32_products(Precision format) { (void)format; }
  virtual Precision f32_products() const { return Precision::fp32; }
  virtual void use_pinned_memory(bool wanted) { (void)wanted; }  // for upload() and download(), from now on

  // Zeros, 64-byte aligned, and touched: nothing can be taken away later. ErrorCode::memory with the numbers when there is no room.
  virtual std::byte* allocate(int64_t bytes) = 0;
  virtual void release(std::byte* p, int64_t bytes) = 0;
  virtual void upload(void* to, const void* from, int64_t bytes) = 0;    // host to device
  virtual void download(void* to, const void* from, int64_t bytes) = 0;  // device to host
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;      // on the device
  virtual void clear(void* to, int64_t bytes) = 0;                       // zeros, on the device

  // Copies and runs happen one after another, as they were asked for, and a device may be behind. upload() leaves its source free to be
  // changed, download() has waited. What was asked for before can be waited for without all that follows.
  virtual int64_t mark() { return 0; }
  virtual void wait_for(int64_t mark) { (void)mark; }
  virtual void wait() {}  // for everything; a bad index met meanwhile is an Error
  // Memory of the host that the device copies from and to by itself; a value is there once what was marked after it is done.
  virtual std::byte* allocate_host(int64_t bytes) { return allocate(bytes); }
  virtual void release_host(std::byte* p, int64_t bytes) { release(p, bytes); }
  // From and to memory of allocate_host(), which must stay as it is until what was marked after it is done. In a queue of their own copies
  // run beside the programs, and are in no order with them but the one that order() makes.
  virtual void download_later(void* to, const void* from, int64_t bytes, Queue queue = Queue::work) { (void)queue, download(to, from, bytes); }
  virtual void upload_later(void* to, const void* from, int64_t bytes, Queue queue = Queue::work) { (void)queue, upload(to, from, bytes); }
  virtual void order(Queue first, Queue then) { (void)first, (void)then; }  // what is asked of `then` from now on waits for all of `first` so far
  virtual bool behind() const { return false; }                             // runs return before they are done

  // Whether convolutions are kernels of their own; elsewhere they become windows and products before anything is compiled.
  virtual bool convolutions() const { return false; }
  // Whether a macro node can be compiled; where not, its decomposition is.
  virtual bool runs(const Graph& graph, NodeId node) const { return (void)graph, (void)node, true; }
  // Whether a conv is best stored in the order of this permutation of it.
  virtual bool stores_permuted(const Graph& graph, NodeId permuted) const { return (void)graph, (void)permuted, false; }
  // Choices that may change bits, by key: those made or used so far, and those to use from now on instead of measuring.
  virtual std::map<std::string, std::string> choices() const { return {}; }
  virtual void use_choices(const std::map<std::string, std::string>& choices) { (void)choices; }

  virtual std::unique_ptr<Code> compile(Program program) = 0;
};

// Tells the device in which format to compute products of f32 numbers: tf32 with precision=tf32 or matmul_precision=high, bf16 with medium
// where its matrix units have it.
void choose_products(Backend& backend, Precision precision, std::string_view matmul_precision);
Precision product_format(const Backend& backend, Precision precision);  // of a step in this precision, after that choice

}  // namespace ridge
