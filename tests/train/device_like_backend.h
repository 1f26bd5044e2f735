// A CPU that acts like a GPU: it has memory that the host must not touch, and runs work only when something waits for it.
#pragma once
#include <deque>
#include <functional>
#include <limits>
#include <map>

#include <gtest/gtest.h>

#include "backend/cpu/backend.h"
#include "base/error.h"
#include "base/rng.h"
#include "compile/program.h"
#include "measure/default_team.h"

namespace ridge {

class DeviceLikeBackend : public Backend {
 public:
  DeviceInfo info() const override { return {"far", "a CPU far away"}; }
  std::byte* allocate(int64_t bytes) override {
    std::byte* p = cpu_.allocate(bytes);
    held_[p] = bytes;
    return p;
  }
  void release(std::byte* p, int64_t bytes) override {
    wait();
    EXPECT_EQ(held_.count(p), 1u);
    held_.erase(p);
    cpu_.release(p, bytes);
  }
  void upload(void* to, const void* from, int64_t bytes) override {
    expect_own(to, bytes);
    const auto* data = static_cast<const std::byte*>(from);
    later([this, to, copy = std::vector<std::byte>(data, data + bytes)] { cpu_.copy(to, copy.data(), int64_t(copy.size())); });
    ++uploads;
  }
  void download(void* to, const void* from, int64_t bytes) override {
    expect_own(from, bytes);
    wait(), ++downloads;
    cpu_.copy(to, from, bytes);
  }
  void copy(void* to, const void* from, int64_t bytes) override {
    expect_own(to, bytes), expect_own(from, bytes);
    later([=, this] { cpu_.copy(to, from, bytes); });
  }
  void clear(void* to, int64_t bytes) override {
    expect_own(to, bytes);
    later([=, this] { cpu_.clear(to, bytes); });
  }
  int64_t mark() override { return line(Queue::work).asked; }
  void wait_for(int64_t mark) override {
    ++waits;
    while (line(Queue::work).done < mark) one();
  }
  void wait() override {
    while (one()) {
    }
  }
  std::byte* allocate_host(int64_t bytes) override {
    if (bytes > max_host_bytes) fail(ErrorCode::memory, "[far] no such memory for {} bytes", bytes);
    host_bytes += bytes;
    std::byte* p = cpu_.allocate(bytes);
    host_held_[p] = bytes;
    return p;
  }
  void release_host(std::byte* p, int64_t bytes) override {
    wait();
    host_held_.erase(p);
    cpu_.release(p, bytes);
  }
  void download_later(void* to, const void* from, int64_t bytes, Queue queue) override {
    expect_own(from, bytes);
    later([=, this] { cpu_.copy(to, from, bytes); }, queue);
  }
  void upload_later(void* to, const void* from, int64_t bytes, Queue queue) override {
    expect_own(to, bytes);
    later([=, this] { cpu_.copy(to, from, bytes); }, queue);
  }
  void order(Queue first, Queue then) override { line(then).calls.push_back({{}, first, line(first).asked}); }
  bool behind() const override { return true; }
  std::unique_ptr<Code> compile(Program program) override { return std::make_unique<DeviceLikeCode>(*this, cpu_.compile(std::move(program))); }

  bool empty() const { return held_.empty(); }
  int64_t held_bytes() const {
    int64_t sum = 0;
    for (const auto& [p, bytes] : held_) sum += bytes;
    return sum;
  }
  int uploads = 0, downloads = 0, waits = 0, runs_ = 0;
  int64_t host_bytes = 0;                                        // total from allocate_host()
  int64_t max_host_bytes = std::numeric_limits<int64_t>::max();  // largest single allocate_host() in bytes

 private:
  class DeviceLikeCode : public Code {
   public:
    DeviceLikeCode(DeviceLikeBackend& device, std::unique_ptr<Code> code) : device_(device), code_(std::move(code)) {}
    const Program& program() const override { return code_->program(); }
    int64_t workspace_bytes() const override { return code_->workspace_bytes(); }
    int64_t scratch_bytes() const override { return code_->scratch_bytes(); }
    size_t loop_kernels(size_t kernel) const override { return code_->loop_kernels(kernel); }
    std::string dump() const override { return code_->dump(); }
    void run(std::byte* arena, std::span<const void* const> inputs, std::span<void* const> outputs) override {
      const Program& p = program();
      for (size_t i = 0; i < inputs.size(); ++i) device_.expect_reachable(inputs[i], p.graph.type(p.inputs[i]).bytes());
      for (size_t i = 0; i < outputs.size(); ++i) device_.expect_reachable(outputs[i], p.graph.type(p.outputs[i]).bytes());
      device_.later([this, arena, in = std::vector<const void*>(inputs.begin(), inputs.end()), out = std::vector<void*>(outputs.begin(), outputs.end())] {
        code_->run(arena, in, out);
      });
      ++device_.runs_;
    }

   private:
    DeviceLikeBackend& device_;
    std::unique_ptr<Code> code_;
  };

  using Held = std::map<const std::byte*, int64_t>;
  static bool inside(const Held& held, const void* p, int64_t bytes) {
    auto it = held.upper_bound(static_cast<const std::byte*>(p));
    return bytes == 0 || (it != held.begin() && static_cast<const std::byte*>(p) + bytes <= (--it)->first + it->second);
  }
  void expect_own(const void* p, int64_t bytes) const { EXPECT_TRUE(inside(held_, p, bytes)) << "an address that is not the device's"; }
  // Programs may also use memory of allocate_host().
  void expect_reachable(const void* p, int64_t bytes) const {
    EXPECT_TRUE(inside(held_, p, bytes) || inside(host_held_, p, bytes)) << "an address that the device cannot reach";
  }
  // A call, or if `work` is empty a wait for another queue's first calls.
  struct Call {
    std::function<void()> work;
    Queue other = Queue::work;
    int64_t until = 0;
  };
  struct Line {
    std::deque<Call> calls;
    int64_t asked = 0, done = 0;
  };
  Line& line(Queue queue) { return lines_[size_t(queue)]; }

  void later(std::function<void()> work, Queue queue = Queue::work) {
    line(queue).calls.push_back({std::move(work)});
    ++line(queue).asked;
  }
  // Runs one ready call of any queue, picked at random; false: no work is left.
  bool one() {
    std::vector<Line*> free;
    for (Line& l : lines_) {
      while (!l.calls.empty() && !l.calls.front().work && line(l.calls.front().other).done >= l.calls.front().until) l.calls.pop_front();
      if (!l.calls.empty() && l.calls.front().work) free.push_back(&l);
    }
    if (free.empty()) {
      for (Line& l : lines_) EXPECT_TRUE(l.calls.empty()) << "queues wait for each other";
      return false;
    }
    Line& l = *free[random_word({1, 0, 1}, draws_++) % free.size()];
    const std::function<void()> work = std::move(l.calls.front().work);
    l.calls.pop_front(), ++l.done;
    work();
    return true;
  }

  cpu::CpuBackend cpu_{default_team()};
  Held held_, host_held_;
  Line lines_[3];
  uint64_t draws_ = 0;
};

}  // namespace ridge
