// Dies while it is loaded.
#include <csignal>

[[gnu::constructor]] static void crash() { std::raise(SIGSEGV); }
