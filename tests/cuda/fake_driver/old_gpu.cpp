// A very old driver: it starts, but lacks most later functions.
extern "C" {
int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 5000, 0; }
}
