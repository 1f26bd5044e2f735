#include "step/step_planner.h"

#include <algorithm>
#include <cmath>

#include "backend/backend.h"
#include "base/error.h"
#include "compile/plan_memory.h"
#include "machine/features.h"

namespace ridge {

std::string size_rounded_up(int64_t bytes) {
  constexpr double kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;
  if (double(bytes) >= 100 * kGiB) return fmt::format("{:.0f} GiB", std::ceil(double(bytes) / kGiB));
  return double(bytes) < 10 * kMiB ? fmt::format("{:.0f} KiB", std::ceil(double(bytes) / kKiB))
                                   : fmt::format("{:.1f} MiB", std::ceil(double(bytes) / kMiB * 10) / 10);
}

namespace {

// Evens out the parts at no cost: the smallest micro-batch that needs no more parts than this one.
int64_t evened(int64_t batch, int64_t micro) {
  const int64_t parts = (batch + micro - 1) / micro;
  return (batch + parts - 1) / parts;
}

// The vector tier that determines a step's bits: the highest tier only adds products of bf16 pairs.
std::string tier_of_bits(bool multiplies_bf16) { return std::string(name(multiplies_bf16 || !has_avx512(isa_tier()) ? isa_tier() : IsaTier::avx512)); }

}  // namespace

StepPlanner::StepPlanner(const StepModel& model, const StepOptions& options, const StepPrograms& programs, int64_t fixed_bytes, StepPlan& plan,
                         std::vector<Range> parts)
    : model_(model),
      options_(options),
      programs_(programs),
      in_host_memory_(options.backend->host_memory()),
      fixed_(fixed_bytes),
      limit_(options.memory > 0 ? options.memory : std::numeric_limits<int64_t>::max()),
      plan_(plan),
      parts_(std::move(parts)) {
  out_.activations = std::make_shared<Arena>(*options.backend);
}

// Device memory of a batch's samples; 0 if the device works in host memory.
int64_t StepPlanner::batch_bytes(int64_t samples) const {
  if (in_host_memory_) return 0;
  int64_t bytes = 0;
  for (const Type& t : model_.batch) bytes += (t.bytes() / t.shape[0] * samples + kAlignment - 1) / kAlignment * kAlignment;
  return bytes;
}

void StepPlanner::Need::add(const Report& r, int64_t its_samples) {
  arena = std::max(arena, r.arena_bytes), scratch = std::max(scratch, r.scratch_bytes), samples = std::max(samples, its_samples);
}

int64_t StepPlanner::held(const Need& need) const { return fixed_ + batch_bytes(need.samples) + need.arena + need.scratch; }

int64_t StepPlanner::min_evaluation_samples() const { return !options_.evaluation ? 0 : programs_.evaluation_coupling().empty() ? 1 : plan_.batch; }

StepPlanner::Need StepPlanner::others(Recompute level) {
  Need need;
  need.add(out_.update->report(), 0);
  for (const PlannedStep::Part& part : out_.parts) need.add(part.exe->report(), 0);
  if (const int64_t samples = min_evaluation_samples()) {
    std::unique_ptr<Executable>& exe = small_evaluations_[level >= Recompute::segments];
    if (!exe) {
      exe = programs_.evaluation(samples, level);
      plan_.compile_ms += exe->report().compile_ms;
    }
    need.add(exe->report(), samples);
  }
  return need;
}

StepPlanner::Try StepPlanner::attempt(int64_t micro, Recompute level, bool with_rest) {
  Try t{micro, level, nullptr, nullptr, 0, {}, others(level)};
  t.exe = programs_.body(micro, micro < plan_.batch, level, &t.notes);
  t.need.add(t.exe->report(), micro);
  t.bytes = held(t.need);
  // Fewer samples do not always need less memory: a micro-batch may fit alone but not with its remainder.
  if (const int64_t samples = plan_.batch % micro; samples > 0 && (with_rest || t.bytes <= limit_)) {
    t.rest = programs_.body(samples, true, level);
    t.need.add(t.rest->report(), samples);
    t.bytes = held(t.need);
    plan_.compile_ms += t.rest->report().compile_ms;
  }
  plan_.compile_ms += t.exe->report().compile_ms;
  plan_.decisions.push_back(fmt::format("tried micro-batch {} with recompute={}: {}", micro, name(level), size_rounded_up(t.bytes)));
  tried_.push_back({micro, level, t.bytes});
  return t;
}

void StepPlanner::refuse_split() const {
  if (!programs_.coupling().empty())
    fail(ErrorCode::unsupported, "[step] the batch of {} cannot be split: {}; train it whole, or change the loss (docs/training.md, Splitting a batch)",
         plan_.batch, programs_.coupling());
}

// Quotes a budget that is known to work: the smallest one tried, including its remainder.
void StepPlanner::refuse(int64_t micro) {
  const Size least = *std::min_element(tried_.begin(), tried_.end(), [](const Size& a, const Size& b) { return a.bytes < b.bytes; });
  const int64_t least_bytes = plan_.batch % least.micro ? attempt(least.micro, least.level, true).bytes : least.bytes;
  throw StepTooLarge(fmt::format("[step] the budget of {} is too small: parameters, gradients and moments take {}, and {} at a time needs {} in total; the "
                                 "smallest budget that works is {}",
                                 size_rounded_up(limit_), size_rounded_up(plan_.parameter_bytes + plan_.gradient_bytes + plan_.optimizer_bytes),
                                 micro == 1 ? "one sample" : fmt::format("{} samples", micro), size_rounded_up(least_bytes), size_rounded_up(least_bytes)),
                     least_bytes);
}

// Memory grows almost linearly with the samples, so two sizes predict the limit; the one chosen has been compiled and counted.
StepPlanner::Try StepPlanner::largest_that_fits(Try whole) {
  Try best = attempt(1, whole.level);
  int64_t high = whole.micro, high_bytes = whole.bytes;
  whole.exe.reset();
  constexpr int kMaxTries = 5;
  for (int i = 0; i < kMaxTries && best.bytes <= limit_; ++i) {
    const double share = double(limit_ - best.bytes) / double(std::max<int64_t>(high_bytes - best.bytes, 1));
    const int64_t reach = std::min(best.micro + int64_t(share * double(high - best.micro)), high - 1), guess = evened(plan_.batch, std::max<int64_t>(reach, 1));
    if (guess <= best.micro) break;
    Try t = attempt(guess, best.level);
    if (t.bytes <= limit_)
      best = std::move(t);
    else
      high = guess, high_bytes = t.bytes;
  }
  return best;
}

// Approximate time of a step's bodies, in units of bytes moved: for each kernel, the longer of its memory traffic and its arithmetic.
double StepPlanner::cost(const Try& t, double balance) const {
  auto of = [&](const Executable& exe) {
    double sum = 0;
    for (const KernelReport& k : exe.report().kernels) sum += std::max(k.bytes, k.flops / balance);
    return sum;
  };
  return double(plan_.batch / t.micro) * of(*t.exe) + (t.rest ? of(*t.rest) : 0);
}

bool StepPlanner::faster(const Try& a, const Try& b) {
  constexpr double kHostGuess = 2, kDeviceGuess = 150;
  const double measured = options_.balance ? options_.balance() : 0;
  const double balance = measured > 0 ? measured : in_host_memory_ ? kHostGuess : kDeviceGuess;
  plan_.decisions.push_back(fmt::format("splitting and recomputing are compared at {:.3g} operations in the time of one byte: {}", balance,
                                        measured > 0 ? "measured on this device" : "a guess, as this device's rates are not known"));
  return cost(a, balance) < cost(b, balance);
}

StepPlanner::Try StepPlanner::choose() {
  std::vector<Recompute> levels = {Recompute::free, Recompute::elementwise, Recompute::attention};
  if (programs_.has_scan()) levels.push_back(Recompute::segments);
  if (options_.recompute) levels = {*options_.recompute};
  if (options_.micro > 0) {
    const int64_t micro = std::min(options_.micro, plan_.batch);
    if (micro < plan_.batch) refuse_split();
    if (!options_.recompute) levels.push_back(Recompute::layers);
    for (Recompute level : levels) {
      Try t = attempt(micro, level);
      why_ = "asked for";
      if (t.bytes <= limit_) return t;
    }
    refuse(micro);
  }
  const bool splits = programs_.coupling().empty() && plan_.batch > 1;
  std::vector<Try> whole;
  for (Recompute level : levels) {
    whole.push_back(attempt(plan_.batch, level));
    why_ = level == Recompute::free ? "it fits whole" : "recomputing makes it fit whole";
    if (whole.back().bytes <= limit_) {
      if (whole.size() == 1 || !splits || programs_.has_scan()) return std::move(whole.back());
      // Two ways to fit: split the batch, or keep it whole and recompute some of the work.
      Try parts = largest_that_fits(std::move(whole[0]));
      if (parts.bytes > limit_ || !faster(parts, whole.back())) return std::move(whole.back());
      why_ = fmt::format("recompute={} would make the batch fit whole, but takes longer than splitting", name(level));
      return parts;
    }
    whole.back().exe.reset();  // only its size is needed from here on
  }
  // A loop repeats all its steps for every micro-batch, so the level that allows the largest micro-batch comes first.
  if (programs_.has_scan()) std::reverse(whole.begin(), whole.end());
  why_ = "the largest micro-batch that fits";
  for (Try& w : whole) {
    if (!splits) break;
    Try t = largest_that_fits(std::move(w));
    if (t.bytes <= limit_) return t;
  }
  if (!options_.recompute) {
    why_ = "only with everything recomputed";
    Try t = attempt(plan_.batch, Recompute::layers);
    if (t.bytes > limit_ && splits) t = largest_that_fits(std::move(t));
    if (t.bytes <= limit_) return t;
  }
  refuse_split();
  refuse(1);
}

void StepPlanner::describe(const char* name, int64_t samples, int64_t times, Executable& exe) {
  const Report& r = exe.report();
  ProgramPlan p{name, samples, times, r.arena_bytes, r.scratch_bytes, int(r.kernels.size()), 0};
  for (const KernelReport& k : r.kernels) p.flops += k.algorithmic_flops;
  plan_.kernels += int(times) * p.kernels, plan_.flops += double(times) * p.flops;
  plan_.scratch_bytes = std::max(plan_.scratch_bytes, r.scratch_bytes);
  exe.share(out_.activations);
  plan_.programs.push_back(std::move(p));
}

// Runner-up for splitting: the next larger micro-batch tried, whether it did not fit or was slower; if the batch is whole, a split of it.
// Runner-up for recomputation: the smallest attempt at another level.
void StepPlanner::name_others(const Try& taken) {
  const bool splits = programs_.coupling().empty() && plan_.batch > 1;
  const Size *larger = nullptr, *smaller = nullptr, *level = nullptr;
  for (const Size& s : tried_) {
    if (s.micro > taken.micro && (!larger || s.micro < larger->micro)) larger = &s;
    if (s.micro < taken.micro && s.bytes <= limit_ && (!smaller || s.micro > smaller->micro)) smaller = &s;
    if (s.level != taken.level && (!level || s.bytes < level->bytes)) level = &s;
  }
  auto describe_size = [&](const Size& s) {
    return fmt::format("{} with recompute={}: {}{}", s.micro, name(s.level), size_rounded_up(s.bytes),
                       s.bytes > limit_ ? fmt::format(", more than the {} left for the step", size_rounded_up(limit_)) : "");
  };
  if (larger || smaller)
    plan_.other_split = describe_size(larger ? *larger : *smaller);
  else if (splits && options_.micro == 0 && taken.micro == plan_.batch)
    plan_.other_split = fmt::format("{} at a time, which takes less memory and more kernels", evened(plan_.batch, (plan_.batch + 1) / 2));
  if (options_.recompute) return;
  plan_.other_recompute = level ? describe_size(*level) : fmt::format("{}, which takes less memory and more work", name(Recompute::elementwise));
}

void StepPlanner::take(Try t) {
  name_others(t);
  plan_.micro = t.micro, plan_.recompute = t.level, taken_ = t.need;
  plan_.repeats = plan_.batch / t.micro, plan_.remainder = plan_.batch % t.micro;
  plan_.decisions.push_back(fmt::format("micro-batch {} of {}, recompute={}: {}", t.micro, plan_.batch, name(t.level), why_));
  if (t.level >= Recompute::segments) plan_.decisions.insert(plan_.decisions.end(), t.notes.begin(), t.notes.end());
  const std::vector<std::string>& moved = t.exe->report().scans;
  plan_.decisions.insert(plan_.decisions.end(), moved.begin(), moved.end());
  out_.bodies.push_back({t.micro, std::move(t.exe)});
  describe("body", plan_.micro, plan_.repeats, *out_.bodies[0].exe);
  if (plan_.remainder) {
    out_.bodies.push_back({plan_.remainder, std::move(t.rest)});
    describe("remainder", plan_.remainder, 1, *out_.bodies[1].exe);
  }
}

void StepPlanner::add_evaluations() {
  const bool splits = programs_.evaluation_coupling().empty();
  auto add = [&](int64_t samples, const char* name) {
    std::unique_ptr<Executable> exe;
    if (samples == min_evaluation_samples()) {  // already counted
      exe = std::move(small_evaluations_.at(plan_.recompute >= Recompute::segments));
    } else {
      exe = programs_.evaluation(samples, plan_.recompute);
      plan_.compile_ms += exe->report().compile_ms;
    }
    Need need = taken_;
    need.add(exe->report(), samples);
    if (held(need) > limit_ && samples > 1 && splits) return false;
    taken_ = need;
    describe(name, samples, 0, *exe);
    out_.evaluations.push_back({samples, std::move(exe)});
    return true;
  };
  int64_t samples = splits ? std::min(options_.evaluation_micro > 0 ? options_.evaluation_micro : plan_.micro, plan_.batch) : plan_.batch;
  while (!add(samples, "evaluation")) samples /= 2;
  plan_.choices.evaluation = samples;
  if (!in_host_memory_ && samples >= 16 && splits) add(samples / 8, "evaluation of some");  // a single sample cannot keep a GPU busy
  if (samples > 1 && splits) add(1, "evaluation of one");
}

namespace {

// "h.3.weight" becomes "h.*.weight", to group what is the same in all layers.
std::string without_numbers(const std::string& name) {
  std::string out;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    const std::string part = name.substr(at, end - at);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    out += (at ? "." : "") + (number ? std::string("*") : part);
    at = end + 1;
  }
  return out;
}

}  // namespace

// Lists the tensors at the memory peak of the largest program, in addition to permanent ones.
void StepPlanner::list_largest() {
  constexpr size_t kMax = 12;
  std::vector<LargeTensor>& all = plan_.largest;
  auto add = [&](const std::string& name, const std::string& shared, int64_t bytes) {
    for (LargeTensor& l : all)
      if (l.bytes == bytes && (l.name == shared || without_numbers(l.name) == shared)) {
        l.name = shared, ++l.count;
        return;
      }
    all.push_back({name, bytes, 1});
  };
  for (size_t i = 0; i < model_.parameters.size(); ++i) {
    const Parameter& p = model_.parameters[i];
    const std::string name = p.name + (parts_.empty() ? ", with gradient and moments" : ", with gradient");
    add(name, without_numbers(name), p.shape.numel() * int64_t(sizeof(float)) * (2 + (parts_.empty() ? programs_.moments(i) : 0)));
  }
  const Report* fullest = &out_.update->report();
  for (const auto* list : {&out_.bodies, &out_.evaluations})
    for (const StepBody& body : *list)
      if (body.exe->report().arena_bytes > fullest->arena_bytes) fullest = &body.exe->report();
  for (const LiveValue& v : fullest->peak) add(v.name, v.name, v.bytes);
  std::stable_sort(all.begin(), all.end(), [](const LargeTensor& a, const LargeTensor& b) { return a.bytes > b.bytes; });
  if (all.size() > kMax) all.resize(kMax);
}

void StepPlanner::add_update() {
  describe("update", 0, 1, *out_.update);
  if (out_.parts.empty()) return;
  const size_t at = plan_.programs.size();
  for (PlannedStep::Part& part : out_.parts) describe("update in parts", 0, 1, *part.exe);
  ProgramPlan all = plan_.programs[at];  // one line for all parts
  for (size_t i = at + 1; i < plan_.programs.size(); ++i) {
    const ProgramPlan& p = plan_.programs[i];
    all.kernels += p.kernels, all.flops += p.flops;
    all.arena_bytes = std::max(all.arena_bytes, p.arena_bytes), all.scratch_bytes = std::max(all.scratch_bytes, p.scratch_bytes);
  }
  plan_.programs.resize(at);
  plan_.programs.push_back(std::move(all));
}

PlannedStep StepPlanner::make() {
  out_.update = parts_.empty() ? programs_.update(out_.activations) : programs_.gradient_check(out_.activations);
  plan_.compile_ms += out_.update->report().compile_ms;
  for (auto [first, last] : parts_) {
    out_.parts.push_back({first, last, programs_.update_part(out_.activations, first, last)});
    plan_.compile_ms += out_.parts.back().exe->report().compile_ms;
  }
  take(choose());
  add_update();
  if (options_.evaluation) add_evaluations();
  plan_.redrawn = programs_.redrawn(plan_.micro < plan_.batch, options_.evaluation && programs_.evaluation_coupling().empty());
  plan_.activation_bytes = out_.activations->bytes();
  plan_.batch_bytes = batch_bytes(std::max(plan_.micro, plan_.choices.evaluation));
  plan_.planned_bytes = fixed_ + plan_.batch_bytes + plan_.activation_bytes + plan_.scratch_bytes;
  if (plan_.planned_bytes > limit_) fail(ErrorCode::internal, "[step] planned {} with a budget of {}: something was not counted", plan_.planned_bytes, limit_);
  plan_.choices.batch = plan_.batch, plan_.choices.micro = plan_.micro, plan_.choices.recompute = plan_.recompute;
  plan_.choices.precision = options_.precision, plan_.choices.isa = in_host_memory_ ? tier_of_bits(programs_.multiplies_bf16()) : options_.backend->info().what;
  plan_.choices.passes = disabled_passes(options_.passes);
  list_largest();
  return std::move(out_);
}

}  // namespace ridge
