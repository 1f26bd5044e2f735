// Stands in for both libcuda and libnvidia-ml: two GPUs, of which FAKE_CUDA_DEVICES can hide some from CUDA. Prints when it is loaded.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr unsigned long long kTotal[2] = {80ull << 30, 24ull << 30}, kFree[2] = {70ull << 30, 20ull << 30};
constexpr const char* kName[2] = {"Fake\tGPU\none", "Fake GPU two"};

int devices() {
  const char* text = std::getenv("FAKE_CUDA_DEVICES");
  return text ? std::atoi(text) : 2;
}

[[gnu::constructor]] void talk() {
  std::puts("fake driver on stdout");
  std::fflush(stdout);
  std::fputs("fake driver on stderr\n", stderr);
}

}  // namespace

extern "C" {
int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 12040, 0; }
int cuDeviceGetCount(int* count) { return *count = devices(), 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = 7 + ordinal, 0; }
int cuDeviceGetName(char* text, int size, int device) { return std::snprintf(text, size_t(size), "%s", kName[device - 7]), 0; }
int cuDeviceGetAttribute(int* value, int which, int device) {
  *value = which == 75 ? (device == 7 ? 9 : 8) : which == 76 ? (device == 7 ? 0 : 6) : which == 16 ? 132 : 0;
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = kTotal[device - 7], 0; }
int cuDeviceGetPCIBusId(char* text, int size, int device) { return std::snprintf(text, size_t(size), "0000:%02X:00.0", device == 7 ? 0xA1 : 0xA2), 0; }
int cuGetErrorName(int, const char** text) { return *text = "CUDA_ERROR_FAKE", 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = const_cast<char*>(kName[device - 7]), 0; }
static void* current = nullptr;
int cuCtxSetCurrent(void* context) { return current = context, 0; }
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  const int i = current == kName[1];
  return *free = kFree[i] - 1, *total = kTotal[i], 0;
}

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) { return std::snprintf(text, size, "550.54.15"), 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = 2, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) { return *handle = reinterpret_cast<void*>(size_t(index) + 1), 0; }
int nvmlDeviceGetName(void* handle, char* text, unsigned size) { return std::snprintf(text, size, "%s", kName[size_t(handle) - 1]), 0; }
int nvmlDeviceGetMemoryInfo(void* handle, unsigned long long* memory) {
  const size_t i = size_t(handle) - 1;
  return memory[0] = kTotal[i], memory[1] = kFree[i], memory[2] = kTotal[i] - kFree[i], 0;
}
int nvmlDeviceGetPciInfo_v3(void* handle, char* info) {
  std::memset(info, 0, 68);
  return std::snprintf(info + 36, 32, "00000000:A%zu:00.0", size_t(handle)), 0;
}
int nvmlDeviceGetUtilizationRates(void* handle, unsigned* rates) { return rates[0] = handle == reinterpret_cast<void*>(1) ? 37 : 4000, rates[1] = 5, 0; }
int nvmlDeviceGetTemperature(void*, int, unsigned* celsius) { return *celsius = 51, 0; }
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) { return *milliwatts = 123456, 0; }
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) { return *milliwatts = 700000, 0; }
}
