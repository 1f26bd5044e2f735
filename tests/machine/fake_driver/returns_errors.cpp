// A driver that is present but fails: cuInit returns FAKE_CUDA_ERROR.
#include <cstdlib>

extern "C" {
int cuInit(unsigned) {
  const char* text = std::getenv("FAKE_CUDA_ERROR");
  return text ? std::atoi(text) : 999;
}
int cuDriverGetVersion(int*) { return 999; }
int cuDeviceGetCount(int*) { return 999; }
int cuDeviceGet(int*, int) { return 999; }
int cuDeviceGetName(char*, int, int) { return 999; }
int cuDeviceGetAttribute(int*, int, int) { return 999; }
int cuDeviceTotalMem_v2(unsigned long*, int) { return 999; }
int nvmlInit_v2() { return 9; }
int nvmlShutdown() { return 9; }
int nvmlDeviceGetCount_v2(unsigned*) { return 9; }
int nvmlDeviceGetHandleByIndex_v2(unsigned, void**) { return 9; }
int nvmlDeviceGetName(void*, char*, unsigned) { return 9; }
int nvmlDeviceGetMemoryInfo(void*, unsigned long long*) { return 9; }
}
