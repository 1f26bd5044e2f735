#include "train/checkpoint_writer.h"

#include <utility>

#include "base/error.h"
#include "io/mapped_file.h"

namespace ridge {
namespace {

using Clock = std::chrono::steady_clock;
using Held = TrainStep::Held;

constexpr const char* kTaskFile = "task.safetensors";
constexpr const char* kMomentNames[] = {"first.", "second."};

}  // namespace

CheckpointWriter::CheckpointWriter(const TrainerTask& task, const TrainerOptions& options, Calls calls)
    : task_(task), o_(options), step_(*task.step), calls_(std::move(calls)), store_(options.folder / "checkpoints", 2, *options.files) {}

std::optional<StoredCheckpoint> CheckpointWriter::newest() const {
  std::vector<std::string> notices;
  std::optional<StoredCheckpoint> stored = store_.newest(notices);
  for (const std::string& line : notices) calls_.notice(line);
  return stored;
}

template <class Visit>
void CheckpointWriter::each_tensor(Visit visit) {  // visit(file, name, parameter, index, Held)
  for (size_t i = 0; i < task_.parameters.size(); ++i) {
    const Parameter& p = task_.parameters[i];
    visit("model.safetensors", p.name, p, i, Held::parameter);
    for (int m = 0; m < step_.moments(i); ++m) visit("optimizer.safetensors", kMomentNames[m] + p.name, p, i, Held(m + 1));
  }
}

void CheckpointWriter::restore(const StoredCheckpoint& stored, const StepState& state) {
  each_tensor([&](const char* file, const std::string& name, const Parameter& p, size_t index, Held what) {
    auto it = stored.tensors.find(file);
    if (it == stored.tensors.end()) fail(ErrorCode::io, "[resume] {} is missing in {}", file, stored.folder.string());
    const SafetensorView& view = it->second.at(name);
    if (view.dtype != DType::f32 || !(view.shape == p.shape))
      fail(ErrorCode::io, "[resume] {} in {} is {}{}, this model needs f32{}", name, (stored.folder / file).string(), ridge::name(view.dtype),
           to_string(view.shape), to_string(p.shape));
    step_.write(what, index, {reinterpret_cast<const float*>(view.data.data()), view.data.size() / sizeof(float)});
    drop_pages(view.data);  // the memory plan does not include these pages
  });
  step_.restore(state);
  if (task_.restore) {
    auto it = stored.tensors.find(kTaskFile);
    if (it != stored.tensors.end())
      task_.restore(it->second);
    else if (task_.restore_nothing)
      task_.restore_nothing();
    else
      fail(ErrorCode::io, "[resume] {} is missing in {}", kTaskFile, stored.folder.string());
  }
  saved_step_ = state.attempted;
}

// The step's own values, or copies of them. Memory for copies is reused by the next checkpoint.
std::span<const float> CheckpointWriter::values_of(size_t index, Held what, size_t count, size_t& used) {
  if (step_.in_place()) return (what == Held::parameter ? step_.parameter(index) : step_.moment(index, int(what) - 1)).first(count);
  if (used == copies_.size()) {
    const size_t most = size_t(o_.pinned_bytes) / sizeof(float);  // the rest of a large model uses ordinary memory
    CopiedValues copy;
    if (straight_ + count <= most) try {
        copy.data = step_.host_memory(count), copy.straight = true;
        straight_ += count;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::memory) throw;
        straight_ = most;  // no more pinned memory is available
      }
    if (!copy.data) copy.data.reset(new float[count], std::default_delete<float[]>());
    copies_.push_back(std::move(copy));
  }
  const CopiedValues& copy = copies_[used++];
  const std::span<float> values(copy.data.get(), count);
  copy.straight ? step_.read_straight(what, index, values) : step_.read(what, index, values);
  return values;
}

bool CheckpointWriter::rested() const {
  return o_.checkpoint_interval || std::chrono::duration<double>(Clock::now() - saved_at_).count() >= o_.checkpoint_rest;
}

void CheckpointWriter::save(bool best, bool later) {
  later = later && !step_.in_place() && !rested();
  if (!best) write_held(Clock::now());
  wait();
  const Time start = Clock::now();
  const RunState& state = calls_.state();
  held_ = std::make_shared<CheckpointContent>();
  held_->step = state.step.attempted, held_->texts = task_.texts;
  held_->texts["state.json"] = to_json(state);
  size_t used = 0;
  each_tensor([&](const char* file, const std::string& name, const Parameter& p, size_t index, Held what) {
    SafetensorView view;
    view.name = name, view.dtype = DType::f32, view.shape = p.shape;
    view.data = std::as_bytes(values_of(index, what, size_t(p.shape.numel()), used));
    held_->tensors[file].push_back(view);
  });
  if (task_.save) add_task_state(*held_);
  held_best_ = best;
  if (!step_.in_place()) calls_.spent(start);
  if (!later) write_held(start);
}

void CheckpointWriter::add_task_state(CheckpointContent& content) const {
  const auto state = std::make_shared<const std::vector<StateTensor>>(task_.save());
  if (state->empty() && task_.restore_nothing) return;
  std::vector<SafetensorView>& views = content.tensors[kTaskFile];
  for (const StateTensor& t : *state) {
    SafetensorView& view = views.emplace_back();
    view.name = t.name, view.dtype = t.dtype, view.shape = t.shape, view.data = t.data;
  }
  content.owner = state;
}

void CheckpointWriter::write_held(Time start) {
  if (!held_) return;
  calls_.before_write();
  // Copies can be written while training continues; values in place cannot.
  const std::launch when = step_.in_place() ? std::launch::deferred : std::launch::async;
  in_progress_ = {held_->step, start};
  saving_ = std::async(when, [this, content = std::exchange(held_, {}), best = held_best_] {
    std::vector<std::string> left = store_.save(*content, best);
    return Saved{std::move(left), Clock::now()};
  });
  saved_at_ = Clock::now();
  if (step_.in_place()) wait();
}

void CheckpointWriter::wait() {
  if (!saving_.valid()) return;
  const Time start = step_.in_place() ? in_progress_.start : Clock::now();
  Time end;
  try {
    const Saved saved = saving_.get();
    end = saved.end;
    for (const std::string& line : saved.left) calls_.notice(line);
    saved_step_ = in_progress_.step, failed_ = 0;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::io) throw;
    ++failed_;
    calls_.spent(start);
    return calls_.on_failed(in_progress_.step, error.what());
  }
  calls_.spent(start);
  calls_.on_written(in_progress_.step, std::chrono::duration<double>(end - in_progress_.start).count());
}

void CheckpointWriter::poll() {
  if (saving_.valid() && saving_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) wait();
  if (held_ && rested()) write_held(Clock::now());
}

void CheckpointWriter::finish() {
  wait();
  write_held(Clock::now());
  wait();
}

}  // namespace ridge
