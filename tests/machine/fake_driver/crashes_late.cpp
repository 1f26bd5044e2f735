// Names a device, then crashes on the next.
#include <csignal>
#include <cstdio>

extern "C" {
int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 12000, 0; }
int cuDeviceGetCount(int* count) { return *count = 2, 0; }
int cuDeviceGet(int* device, int ordinal) {
  if (ordinal == 1) std::raise(SIGBUS);
  return *device = ordinal, 0;
}
int cuDeviceGetName(char* text, int size, int) { return std::snprintf(text, size_t(size), "Fake GPU"), 0; }
int cuDeviceGetAttribute(int* value, int, int) { return *value = -5, 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = ~size_t(0), 0; }
}
