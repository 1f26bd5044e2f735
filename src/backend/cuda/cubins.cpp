#include "backend/cuda/cubins.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

#include <unistd.h>

#include "backend/cuda/prelude.h"
#include "base/error.h"
#include "drivers/nvrtc.h"
#include "io/atomic_file.h"
#include "io/checksum.h"
#include "io/trust.h"
#include "machine/measurement_store.h"

namespace ridge::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "ridge kernel 1\n";
constexpr size_t kSumDigits = 32;

// A file holds the magic line, the checksum of the code, and the code.
std::string packed(const std::string& code) { return std::string(kMagic) + checksum_of(code) + code; }

std::string unpacked(const std::string& file) {  // empty: corrupt
  const size_t head = kMagic.size() + kSumDigits;
  if (file.size() <= head || !file.starts_with(kMagic)) return {};
  std::string code = file.substr(head);
  return checksum_of(code) == file.substr(kMagic.size(), kSumDigits) ? code : std::string();
}

std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Job {
  KernelText text;
  std::string key;
  bool taken = false, done = false;
  std::shared_ptr<const std::string> code;
  std::exception_ptr error;
};

}  // namespace

fs::path kernel_folder() {
  const fs::path folder = cache_folder();
  return folder.empty() ? folder : folder / "kernels";
}

// The compiler destroys its own objects at process exit, so nothing may be compiling then, even for Cubins objects that are never destroyed.
struct Cubins::LiveStates {
  std::mutex mutex;
  std::set<State*> states;
  const pid_t process = ::getpid();  // a forked child has none of the threads

  static LiveStates& the() {
    static LiveStates* const live_states = new LiveStates;
    return *live_states;
  }
  static void stop_all();  // finishes what is being compiled
};

struct Cubins::State {
  const Nvrtc& nvrtc;
  std::string target, salt;
  CubinOptions options;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::unordered_map<std::string, std::shared_ptr<Job>> jobs;  // until the code is fetched
  std::deque<std::shared_ptr<Job>> queue;
  std::vector<std::thread> threads;
  int busy = 0;
  bool ending = false;
  int64_t written = 0;
  Statistics statistics;

  State(const Nvrtc& nvrtc, std::string target, const CubinOptions& options) : nvrtc(nvrtc), target(std::move(target)), options(options) {
    salt = fmt::format("{}\n{}\n", nvrtc.identity(), checksum_of(prelude()));
    for (const std::string& word : Nvrtc::options(this->target)) salt += word + "\n";
    if (!why_untrusted(options.folder).empty()) this->options.folder.clear();
    if (this->options.threads <= 0) this->options.threads = std::max(1, int(std::thread::hardware_concurrency()));
  }

  // Drops waiting jobs and finishes running ones.
  void stop() {
    std::vector<std::thread> ended;
    {
      std::lock_guard lock(mutex);
      ending = true;
      queue.clear();
      ended.swap(threads);
    }
    changed.notify_all();
    for (std::thread& t : ended) t.join();
  }

  std::string read(const std::string& key) {
    if (options.folder.empty()) return {};
    const fs::path path = options.folder / key;
    std::error_code error;
    if (!fs::exists(path, error)) return {};
    std::string code = why_untrusted(path).empty() ? unpacked(contents(path)) : std::string();
    if (code.empty()) {
      std::lock_guard lock(mutex);
      ++statistics.broken;
    } else {
      fs::last_write_time(path, fs::file_time_type::clock::now(), error);  // marks the file as used
    }
    return code;
  }

  void write(const std::string& key, const std::string& code) {
    if (options.folder.empty()) return;
    try {
      if (!make_private_folder(options.folder).empty()) return;
      // Files are checked when they are read, so there is no need to sync to disk.
      write_atomically((options.folder / key).string(), packed(code), FileOptions(kSystemFileCalls, nullptr, false));
      std::lock_guard lock(mutex);
      written += int64_t(code.size());
    } catch (const Error&) {
      // The disk is full or read-only, or another process is writing the same file: the code is still available in memory.
    }
  }

  // Deletes the least recently used files.
  void prune() {
    struct File {
      fs::path path;
      fs::file_time_type used;
      int64_t bytes;
    };
    std::vector<File> files;
    int64_t bytes = 0;
    std::error_code error;
    for (fs::directory_iterator at(options.folder, error), end; !error && at != end; at.increment(error)) {
      std::error_code gone;
      File file{at->path(), at->last_write_time(gone), int64_t(at->file_size(gone))};
      if (gone) continue;
      bytes += file.bytes;
      files.push_back(std::move(file));
    }
    std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.used < b.used; });
    for (const File& file : files) {
      if (bytes <= options.max_bytes) break;
      if (fs::remove(file.path, error)) bytes -= file.bytes;
    }
  }

  void work(Job& job) {
    try {
      std::string code = read(job.key);
      const bool found = !code.empty();
      if (!found) {
        code = compile_text(nvrtc, job.text, target);
        // Registered after the compiler's first use, so that stop_all runs before the compiler destroys its objects.
        [[maybe_unused]] static const int registered = std::atexit(LiveStates::stop_all);
        write(job.key, code);
      }
      std::lock_guard lock(mutex);
      ++(found ? statistics.found : statistics.compiled);
      job.code = std::make_shared<const std::string>(std::move(code));
    } catch (...) {
      std::lock_guard lock(mutex);
      job.error = std::current_exception();
    }
    std::lock_guard lock(mutex);
    job.done = true;
    changed.notify_all();
  }

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return ending || !queue.empty(); });
      if (ending) return;
      std::shared_ptr<Job> job = std::move(queue.front());
      queue.pop_front();
      if (job->taken) continue;
      job->taken = true;
      ++busy;
      lock.unlock();
      work(*job);
      lock.lock();
      --busy;
    }
  }

  // Call with the mutex held.
  std::shared_ptr<Job> enter(const KernelText& text, const std::string& key) {
    auto& job = jobs[key];
    if (!job) {
      job = std::make_shared<Job>();
      job->text = text, job->key = key;
      queue.push_back(job);
    }
    return job;
  }
};

void Cubins::LiveStates::stop_all() {
  if (the().process != ::getpid()) return;
  std::lock_guard lock(the().mutex);
  for (State* state : the().states) state->stop();
}

Cubins::Cubins(const Nvrtc& nvrtc, std::string target, const CubinOptions& options) : state_(std::make_unique<State>(nvrtc, std::move(target), options)) {
  std::lock_guard lock(LiveStates::the().mutex);
  LiveStates::the().states.insert(state_.get());
}

Cubins::~Cubins() {
  {
    std::lock_guard lock(LiveStates::the().mutex);
    LiveStates::the().states.erase(state_.get());
  }
  state_->stop();
  if (state_->written) state_->prune();
}

std::string Cubins::key(const KernelText& text) const { return checksum_of(state_->salt + text.entry + (text.overlaps ? "\noverlaps\n" : "\n") + text.body); }

void Cubins::ask(std::span<const KernelText> texts) {
  std::vector<std::string> keys;
  for (const KernelText& text : texts) keys.push_back(key(text));
  std::lock_guard lock(state_->mutex);
  for (size_t i = 0; i < texts.size(); ++i) state_->enter(texts[i], keys[i]);
  // Long texts take longest, so they start first and do not delay the end.
  std::stable_sort(state_->queue.begin(), state_->queue.end(), [](const auto& a, const auto& b) { return a->text.body.size() > b->text.body.size(); });
  const size_t wanted = std::min(state_->queue.size() + size_t(state_->busy), size_t(state_->options.threads));
  while (state_->threads.size() < wanted) state_->threads.emplace_back([this] { state_->serve(); });
  state_->changed.notify_all();
}

std::shared_ptr<const std::string> Cubins::get(const KernelText& text) {
  const std::string name = key(text);
  std::unique_lock lock(state_->mutex);
  std::shared_ptr<Job> job = state_->enter(text, name);
  if (!job->taken) {  // no worker has started it, so compile it on this thread
    job->taken = true;
    lock.unlock();
    state_->work(*job);
    lock.lock();
  }
  state_->changed.wait(lock, [&] { return job->done; });
  state_->jobs.erase(name);
  if (job->error) std::rethrow_exception(job->error);
  return job->code;
}

std::shared_ptr<const std::string> Cubins::recompile(const KernelText& text) {
  auto code = std::make_shared<const std::string>(compile_text(state_->nvrtc, text, state_->target));
  state_->write(key(text), *code);
  std::lock_guard lock(state_->mutex);
  ++state_->statistics.compiled, ++state_->statistics.broken;
  return code;
}

Cubins::Statistics Cubins::statistics() const {
  std::lock_guard lock(state_->mutex);
  return state_->statistics;
}

}  // namespace ridge::cuda
