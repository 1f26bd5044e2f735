// Makes the fake drivers fail as FAKE_GPU says: "CALL=CODE" makes a call fail, "CALL=CODE@N" from the N-th call on; separate several with commas.
#pragma once
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace fake {

// Calls since cuInit. Never destroyed: compiling threads may outlive main.
inline std::map<std::string, int>& calls = *new std::map<std::string, int>;
inline std::mutex calls_mutex;

inline long long setting(const char* name, long long otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoll(text) : otherwise;
}

// The code to fail this call with; 0: it succeeds, -1: it crashes, -2: it hangs.
inline int fault(const char* call) {
  int times = 0;
  {
    const std::lock_guard lock(calls_mutex);
    times = ++calls[call];
  }
  const char* text = std::getenv("FAKE_GPU");
  for (std::string list = text ? text : ""; !list.empty();) {
    const size_t end = std::min(list.find(','), list.size());
    const std::string rule = list.substr(0, end);
    list.erase(0, end + 1);
    const size_t is = rule.find('='), at = rule.find('@');
    if (rule.substr(0, is) != call) continue;
    const int from = at == std::string::npos ? 1 : std::atoi(rule.c_str() + at + 1);
    const int code = std::atoi(rule.c_str() + is + 1);
    if (times < from) continue;
    if (code == -1) std::raise(SIGSEGV);
    while (code == -2) ::pause();
    return code;
  }
  return 0;
}

inline void forget_calls() {
  const std::lock_guard lock(calls_mutex);
  calls.clear();
}

}  // namespace fake
