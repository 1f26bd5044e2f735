#include "machine/gpus.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <optional>

#include <fmt/core.h>

#include "drivers/cuda_driver.h"
#include "drivers/dynamic_library.h"
#include "drivers/guarded_call.h"
#include "drivers/nvml.h"
#include "machine/gpus_sysfs.h"

namespace ridge {
namespace {

constexpr int kMaxDevices = 256;  // a driver that reports more is not believed

// The part of CUDA's driver that is used here.
struct CudaDriver {
  DynamicLibrary library;
  int (*init)(unsigned) = nullptr;
  int (*get_version)(int*) = nullptr;
  int (*get_count)(int*) = nullptr;
  int (*get_device)(int*, int) = nullptr;
  int (*get_name)(char*, int, int) = nullptr;
  int (*get_attribute)(int*, int, int) = nullptr;
  int (*get_memory)(size_t*, int) = nullptr;
  int (*get_pci)(char*, int, int) = nullptr;
  int (*error_name)(int, const char**) = nullptr;
  int (*retain_context)(void**, int) = nullptr;
  int (*set_context)(void*) = nullptr;
  int (*free_memory)(size_t*, size_t*) = nullptr;

  // The first missing function; null if all exist.
  const char* bind_all() {
    library.bind(error_name, "cuGetErrorName");
    library.bind(get_pci, "cuDeviceGetPCIBusId");
    library.bind(retain_context, "cuDevicePrimaryCtxRetain");
    library.bind(set_context, "cuCtxSetCurrent");
    library.bind(free_memory, "cuMemGetInfo_v2");
    if (!library.bind(init, "cuInit")) return "cuInit";
    if (!library.bind(get_version, "cuDriverGetVersion")) return "cuDriverGetVersion";
    if (!library.bind(get_count, "cuDeviceGetCount")) return "cuDeviceGetCount";
    if (!library.bind(get_device, "cuDeviceGet")) return "cuDeviceGet";
    if (!library.bind(get_name, "cuDeviceGetName")) return "cuDeviceGetName";
    if (!library.bind(get_attribute, "cuDeviceGetAttribute")) return "cuDeviceGetAttribute";
    if (!library.bind(get_memory, "cuDeviceTotalMem_v2")) return "cuDeviceTotalMem_v2";
    return nullptr;
  }

  int attribute(int which, int device) const {
    int value = 0;
    return get_attribute(&value, which, device) == 0 ? value : 0;
  }
};

// These run in child processes. An answer is a line of tab-separated words; the first is its type.
void ask_cuda(ChildOutput& output, const std::string& path) {
  constexpr int kProcessors = 16, kMajor = 75, kMinor = 76;
  CudaDriver driver;
  driver.library = DynamicLibrary(path);
  if (!driver.library) return output.line("missing\t" + driver.library.error());
  if (const char* symbol = driver.bind_all()) return output.line(fmt::format("lacks\t{}", symbol));
  auto failed = [&](const char* call, int code) {
    const char* text = nullptr;
    if (code != 0 && driver.error_name) driver.error_name(code, &text);
    if (code != 0) output.line(fmt::format("error\t{}\t{}\t{}", call, code, text ? text : "?"));
    return code != 0;
  };
  int version = 0, count = 0;
  if (driver.get_version(&version) == 0) output.line(fmt::format("version\t{}", version));
  if (failed("cuInit", driver.init(0)) || failed("cuDeviceGetCount", driver.get_count(&count))) return;
  for (int i = 0; i < std::min(count, kMaxDevices); ++i) {
    int device = 0;
    if (failed("cuDeviceGet", driver.get_device(&device, i))) continue;
    std::array<char, 256> text{};
    std::array<char, 64> pci{};
    size_t bytes = 0;
    driver.get_name(text.data(), int(text.size()) - 1, device);
    driver.get_memory(&bytes, device);
    if (driver.get_pci) driver.get_pci(pci.data(), int(pci.size()) - 1, device);
    std::replace(text.begin(), text.end(), '\t', ' ');
    output.line(fmt::format("device\t{}\t{}\t{}\t{}\t{}\t{}", i, text.data(), 10 * driver.attribute(kMajor, device) + driver.attribute(kMinor, device),
                            driver.attribute(kProcessors, device), bytes, pci.data()));
  }
}

// Free memory as seen by a context. Creating one is slow, so this is used only if NVML has not reported it.
void ask_cuda_memory(ChildOutput& output, const std::string& path) {
  CudaDriver driver;
  driver.library = DynamicLibrary(path);
  int count = 0;
  if (!driver.library || driver.bind_all() || !driver.retain_context || !driver.set_context || !driver.free_memory) return;
  if (driver.init(0) != 0 || driver.get_count(&count) != 0) return;
  for (int i = 0; i < std::min(count, kMaxDevices); ++i) {
    int device = 0;
    void* context = nullptr;
    size_t free = 0, total = 0;
    if (driver.get_device(&device, i) == 0 && driver.retain_context(&context, device) == 0 && driver.set_context(context) == 0 &&
        driver.free_memory(&free, &total) == 0)
      output.line(fmt::format("free\t{}\t{}", i, free));
  }
}

void ask_nvml(ChildOutput& output, const std::string& path) {
  std::string why;
  std::unique_ptr<Nvml> nvml = Nvml::open(path, why);
  if (!nvml) return output.line("missing\t" + why);
  output.line("driver\t" + nvml->driver());
  for (int i = 0; i < nvml->count(); ++i) {
    const NvmlReading r = nvml->read(i);
    std::string name = nvml->name(i);
    std::replace(name.begin(), name.end(), '\t', ' ');
    output.line(
        fmt::format("gpu\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}", name, nvml->pci(i), r.memory_total, r.memory_free, r.busy, r.celsius, r.watts, r.watts_limit));
  }
}

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words(1);
  for (char c : line)
    if (c == '\t')
      words.emplace_back();
    else
      words.back() += c;
  return words;
}

// What the child loaded may have corrupted it, so its output is validated.
template <class Number>
Number number(const std::vector<std::string>& words, size_t index, Number low, Number high, Number otherwise) {
  if (index >= words.size()) return otherwise;
  const std::string& text = words[index];
  Number value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= low && value <= high ? value : otherwise;
}

constexpr int64_t kMaxMemory = int64_t(1) << 50;
std::string word(const std::vector<std::string>& words, size_t index) { return index < words.size() ? words[index] : std::string(); }
int64_t bytes(const std::vector<std::string>& words, size_t index) { return number<int64_t>(words, index, 0, kMaxMemory, 0); }

// Adds the CUDA child's answer to the scan. Returns why there are no devices; empty if there are some.
std::string read_cuda(const ChildAnswer& answer, const std::string& path, GpuScan& scan, bool& absent) {
  std::string why;
  for (const std::string& line : answer.lines) {
    const std::vector<std::string> words = words_of(line);
    if (words[0] == "version") scan.cuda = number(words, 1, 0, 1'000'000, 0);
    if (words[0] == "missing") {
      const std::string error = word(words, 1);
      absent = error.starts_with(path + ": cannot open shared object file: No such file");
      why = absent ? fmt::format("{} was not found", path) : fmt::format("{} cannot be loaded ({})", path, error);
    }
    if (words[0] == "lacks") why = fmt::format("{} lacks {}: it is too old or not the driver's", path, word(words, 1));
    if (words[0] == "error")
      why = fmt::format("{} failed with {} ({}): {}", word(words, 1), word(words, 3), word(words, 2), cuda::remedy_for(number(words, 2, 0, 99999, 0)));
    if (words[0] == "device" && words.size() == 7) {
      Gpu gpu;
      gpu.vendor = Gpu::Vendor::nvidia;
      gpu.ordinal = number(words, 1, 0, kMaxDevices - 1, -1);
      gpu.name = words[2].empty() ? "NVIDIA GPU" : words[2];
      gpu.capability = number(words, 3, 0, 999, 0);
      gpu.processors = number(words, 4, 0, 100'000, 0);
      gpu.memory_total = bytes(words, 5);
      gpu.pci = canonical_pci(words[6]);
      if (gpu.ordinal >= 0) scan.gpus.push_back(gpu);
    }
  }
  if (answer.end != ChildAnswer::End::finished) why = fmt::format("{} {}", path, describe(answer));
  return why;
}

void read_cuda_memory(const ChildAnswer& answer, GpuScan& scan) {
  for (const std::string& line : answer.lines) {
    const std::vector<std::string> words = words_of(line);
    if (words[0] != "free") continue;
    for (Gpu& gpu : scan.gpus)
      if (gpu.ordinal == number(words, 1, 0, kMaxDevices, -2)) gpu.memory_free = std::min(bytes(words, 2), gpu.memory_total);
  }
}

void read_nvml(const ChildAnswer& answer, GpuScan& scan) {
  for (const std::string& line : answer.lines) {
    const std::vector<std::string> words = words_of(line);
    if (words[0] == "driver") scan.driver = word(words, 1);
    if (words[0] != "gpu" || words.size() != 9) continue;
    const std::string pci = canonical_pci(words[2]);
    auto found = std::find_if(scan.gpus.begin(), scan.gpus.end(), [&](const Gpu& gpu) { return !pci.empty() && gpu.pci == pci; });
    if (found == scan.gpus.end()) {
      scan.gpus.push_back({.vendor = Gpu::Vendor::nvidia, .name = words[1].empty() ? "NVIDIA GPU" : words[1], .pci = pci});
      found = scan.gpus.end() - 1;
    }
    if (!found->memory_total) found->memory_total = bytes(words, 3);
    found->memory_free = std::min(bytes(words, 4), found->memory_total);
    found->busy = number(words, 5, 0, 100, -1);
    found->celsius = number(words, 6, 0, 200, -1);
    found->watts = number(words, 7, 0.0, 1e5, -1.0);
    found->watts_limit = number(words, 8, 0.0, 1e5, -1.0);
  }
}

// GPUs that the system lists and no driver has reported.
void add_sysfs(const std::vector<Gpu>& seen, GpuScan& scan) {
  const bool named = std::any_of(scan.gpus.begin(), scan.gpus.end(), [](const Gpu& gpu) { return gpu.vendor == Gpu::Vendor::nvidia; });
  for (const Gpu& gpu : seen) {
    const bool known = std::any_of(scan.gpus.begin(), scan.gpus.end(), [&](const Gpu& g) { return !gpu.pci.empty() && g.pci == gpu.pci; });
    // A driver without bus addresses has still reported its GPUs: do not list them twice.
    const bool unaddressed =
        named && gpu.vendor == Gpu::Vendor::nvidia && std::any_of(scan.gpus.begin(), scan.gpus.end(), [](auto& g) { return g.pci.empty(); });
    if (!known && !unaddressed) scan.gpus.push_back(gpu);
  }
}

std::string why_absent(const GpuScan& scan, const std::string& kernel_driver, const std::string& library, bool& broken) {
  const auto nvidia = std::find_if(scan.gpus.begin(), scan.gpus.end(), [](const Gpu& gpu) { return gpu.vendor == Gpu::Vendor::nvidia; });
  broken = true;
  if (!kernel_driver.empty())
    return fmt::format(
        "the NVIDIA driver {} is loaded, but {} was not found: install the driver's CUDA library, or start the container with its GPUs (--gpus all)",
        kernel_driver, library);
  if (nvidia != scan.gpus.end()) return fmt::format("{} has no NVIDIA driver: install it (nouveau has no CUDA)", nvidia->name);
  broken = false;
  return fmt::format("no NVIDIA driver ({} was not found)", library);
}

}  // namespace

int GpuScan::cuda_devices() const {
  return int(std::count_if(gpus.begin(), gpus.end(), [](const Gpu& gpu) { return gpu.ordinal >= 0; }));
}

std::string_view name(Gpu::Vendor vendor) {
  switch (vendor) {
    case Gpu::Vendor::nvidia: return "NVIDIA";
    case Gpu::Vendor::amd: return "AMD";
    case Gpu::Vendor::intel: return "Intel";
    case Gpu::Vendor::apple: return "Apple";
    case Gpu::Vendor::other: break;
  }
  return "other";
}

GpuScan scan_gpus(const GpuScanOptions& options) {
  GpuScan scan;
  const auto start = std::chrono::steady_clock::now();
  const std::string cuda = options.cuda_library.empty() ? cuda::driver_library() : options.cuda_library;
  const std::string nvml = options.nvml_library.empty() ? nvml_library() : options.nvml_library;
  const std::vector<ChildAnswer> answers =
      ask_children({[&](ChildOutput& output) { ask_cuda(output, cuda); }, [&](ChildOutput& output) { ask_nvml(output, nvml); }}, options.seconds);
  bool absent = false;
  scan.no_cuda = read_cuda(answers[0], cuda, scan, absent);
  const int offered = scan.cuda_devices();
  read_nvml(answers[1], scan);
  if (scan.no_cuda.empty() && std::any_of(scan.gpus.begin(), scan.gpus.end(), [](const Gpu& gpu) { return gpu.ordinal >= 0 && gpu.memory_free == 0; })) {
    const double left = options.seconds - std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    read_cuda_memory(ask_children({[&](ChildOutput& output) { ask_cuda_memory(output, cuda); }}, std::max(0.0, left))[0], scan);
  }
  add_sysfs(gpus_of_system(options.root), scan);

  const std::string kernel_driver = nvidia_kernel_driver(options.root);
  if (scan.driver.empty()) scan.driver = kernel_driver;
  scan.broken = !scan.no_cuda.empty();
  scan.slow = answers[0].end == ChildAnswer::End::timed_out;
  if (scan.slow) scan.no_cuda += fmt::format(" ({} s): it hangs, or wakes the GPUs at each start (nvidia-smi -pm 1 keeps them awake)", options.seconds);
  if (absent) scan.no_cuda = why_absent(scan, kernel_driver, cuda, scan.broken);
  if (scan.no_cuda.empty() && offered == 0) scan.no_cuda = "the NVIDIA driver reports no device: " + cuda::remedy_for(100), scan.broken = true;
  // Devices reported before the driver failed are not usable.
  if (!scan.no_cuda.empty())
    for (Gpu& gpu : scan.gpus) gpu.ordinal = -1;

  if (!scan.no_cuda.empty()) scan.remarks.push_back("CUDA: " + scan.no_cuda);
  if (answers[1].end != ChildAnswer::End::finished)
    scan.remarks.push_back(fmt::format("NVML: {} {}; load and temperature are unknown", nvml, describe(answers[1])));
  if (const auto all = std::count_if(scan.gpus.begin(), scan.gpus.end(), [](const Gpu& gpu) { return gpu.vendor == Gpu::Vendor::nvidia; });
      scan.no_cuda.empty() && all > offered) {
    const char* mask = std::getenv("CUDA_VISIBLE_DEVICES");
    scan.remarks.push_back(
        fmt::format("CUDA reports {} of {} NVIDIA GPUs{}", offered, all, mask ? fmt::format(" (CUDA_VISIBLE_DEVICES={})", mask) : std::string()));
  }
  return scan;
}

const GpuScan& gpus() {
  static const GpuScan scan = scan_gpus();
  return scan;
}

}  // namespace ridge
