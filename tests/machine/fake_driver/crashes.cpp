// Crashes while it is being loaded.
#include <csignal>

[[gnu::constructor]] static void crash() { std::raise(SIGSEGV); }
