#include "ridge/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <list>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "autograd/gradients.h"
#include "backend/backend.h"
#include "base/error.h"
#include "base/half.h"
#include "eager/eager_device.h"
#include "eager/tensor_state.h"
#include "io/npy.h"
#include "runtime/buffer_pool.h"
#include "runtime/executable.h"

namespace ridge {
namespace detail {
namespace {

// Compiled programs of expressions, keyed by everything that affects them. Bounded: the least recently used one is evicted first.
class EagerCache {
 public:
  std::shared_ptr<Executable> find(const std::string& key, const std::function<std::shared_ptr<Executable>()>& make) {
    std::lock_guard lock(mutex_);
    if (auto it = places_.find(key); it != places_.end()) {
      entries_.splice(entries_.begin(), entries_, it->second);
      ++stats.reused;
      return entries_.front().second;
    }
    auto made = make();
    ++stats.compiled;
    entries_.emplace_front(key, made);
    places_[key] = entries_.begin();
    if (entries_.size() > kPrograms) {
      places_.erase(entries_.back().first);
      entries_.pop_back();
      if (++stats.evicted == int64_t(4 * kPrograms) && stats.reused < stats.compiled)
        fmt::print(stderr, "ridge: {} eager expressions were compiled and only {} reused; shapes that change in every call are compiled in every call\n",
                   stats.compiled, stats.reused);
    }
    return made;
  }
  EagerStatistics stats;

 private:
  static constexpr size_t kPrograms = 512;
  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<Executable>>> entries_;
  std::unordered_map<std::string, decltype(entries_)::iterator> places_;
};

EagerCache& cache() {
  static EagerCache c;
  return c;
}

}  // namespace

std::shared_ptr<std::byte> allocate(int64_t bytes, bool zero) {
  auto buffer =
      std::make_shared<BufferPool::Buffer>(host_device().pool->acquire(std::max<int64_t>(bytes, 1), zero ? BufferPool::Fill::zero : BufferPool::Fill::none));
  return {buffer, buffer->data()};
}

namespace {

std::shared_ptr<std::byte> allocate_on(EagerDevice& device, int64_t bytes) {
  auto buffer = std::make_shared<BufferPool::Buffer>(device.pool->acquire(std::max<int64_t>(bytes, 1)));
  return {buffer, buffer->data()};
}

std::shared_ptr<std::byte> on_device(TensorState& s, EagerDevice& device) {
  if (s.device_data && s.device == &device) return s.device_data;
  const std::shared_ptr<std::byte>& from = on_host(s);
  std::shared_ptr<std::byte> to = allocate_on(device, s.type.bytes());
  if (s.type.bytes()) device.backend->upload(to.get(), from.get(), s.type.bytes());
  if (!s.shared) s.device_data = to, s.device = &device;
  return to;
}

}  // namespace

const std::shared_ptr<std::byte>& on_host(TensorState& s) {
  if (!s.device_data || (s.data && !s.shared)) return s.data;
  // Reads into the same memory every time, so that the pointer from data() stays valid; unless someone else shares the old bytes.
  std::shared_ptr<std::byte> data = s.data && s.data.use_count() == 1 ? s.data : allocate(s.type.bytes());
  if (s.type.bytes()) s.device->backend->download(data.get(), s.device_data.get(), s.type.bytes());
  return s.data = std::move(data);
}

void share_memory(TensorState& s, std::shared_ptr<std::byte> data) {
  s.data = std::move(data), s.shared = true;
  s.device_data = nullptr, s.device = nullptr;
}

void share_memory(TensorState& s, std::shared_ptr<std::byte> device_data, EagerDevice& device) {
  s.device_data = std::move(device_data), s.device = &device, s.shared = true;
  s.data = nullptr;
}

void assign(TensorState& s, const void* bytes) {
  const std::weak_ptr<TensorState> self = s.weak_from_this();
  evaluate_readers({&self, 1});
  if (s.shared && s.device_data)
    s.device->backend->upload(s.device_data.get(), bytes, s.type.bytes());
  else
    std::memcpy(Tensor(s.shared_from_this()).mutable_data(), bytes, size_t(s.type.bytes()));
}

Tensor make_leaf(Type type, std::shared_ptr<std::byte> data, std::string name) {
  auto s = std::make_shared<TensorState>();
  s->type = std::move(type), s->data = std::move(data), s->name = std::move(name);
  return Tensor(std::move(s));
}

Tensor placeholder(Type type, std::string name) { return make_leaf(std::move(type), nullptr, std::move(name)); }

Tensor lazy_tensor(const std::shared_ptr<Lazy>& lazy, NodeId id) {
  auto s = std::make_shared<TensorState>();
  s->type = lazy->graph.type(id), s->lazy = lazy, s->id = id;
  lazy->tensors.push_back(s);
  return Tensor(std::move(s));
}

namespace {

std::mutex readers_mutex;  // guards all lists of readers: several threads may use one tensor

void add_reader(TensorState& s, const std::shared_ptr<Lazy>& lazy) {
  const std::lock_guard lock(readers_mutex);
  if (s.readers.size() == s.readers.capacity()) {
    std::erase_if(s.readers, [](const std::weak_ptr<Lazy>& reader) { return reader.expired(); });
    s.readers.reserve(2 * s.readers.size() + 1);
  }
  s.readers.push_back(lazy);
}

}  // namespace

void evaluate_readers(std::span<const std::weak_ptr<TensorState>> tensors) {
  std::map<std::shared_ptr<Lazy>, std::vector<NodeId>> readers;  // and their nodes whose values will change
  for (const std::weak_ptr<TensorState>& tensor : tensors) {
    const std::shared_ptr<TensorState> s = tensor.lock();
    if (!s || s->readers.empty()) continue;
    const std::lock_guard lock(readers_mutex);
    std::erase_if(s->readers, [](const std::weak_ptr<Lazy>& reader) { return reader.expired(); });
    for (const std::weak_ptr<Lazy>& reader : s->readers)
      if (const std::shared_ptr<Lazy> lazy = reader.lock()) readers[lazy].push_back(lazy->node_of.at(s.get()));
  }
  for (const auto& [lazy, nodes] : readers) {
    constexpr char kChanges = 1, kHasNoValue = 2;  // placeholders: what was traced has a value only inside a step
    std::vector<char> marks(lazy->graph.size(), 0);
    for (NodeId id : nodes) marks[id] = kChanges;
    for (const auto& [id, s] : lazy->bound)
      if (!s->has_value()) marks[id] = kHasNoValue;
    for (NodeId id = 1; id < lazy->graph.size(); ++id)
      for (NodeId in : lazy->graph[id].in) marks[id] |= marks[in];
    std::vector<Tensor> todo;
    for (const std::weak_ptr<TensorState>& tensor : lazy->tensors)
      if (const std::shared_ptr<TensorState> s = tensor.lock(); s && s->lazy == lazy && marks[s->id] == kChanges) todo.push_back(Tensor(s));
    evaluate(todo);
    // Later expressions in the same graph read the new values, through nodes of their own.
    const std::lock_guard lock(readers_mutex);
    for (NodeId id : nodes) {
      TensorState& s = *lazy->bound.at(id);
      lazy->node_of.erase(&s);
      std::erase_if(s.readers, [&](const std::weak_ptr<Lazy>& reader) { return reader.lock() == lazy; });
    }
  }
}

NodeId node_in(const std::shared_ptr<Lazy>& lazy, const Tensor& tensor) {
  if (!tensor.defined()) fail(ErrorCode::value, "[tensor] an operand is not a tensor: it was never given a value");
  const auto& s = tensor.state();
  if (s->lazy == lazy) return s->id;
  if (auto it = lazy->node_of.find(s.get()); it != lazy->node_of.end()) return it->second;
  NodeId id;
  if (!s->lazy) {
    id = lazy->graph.input(s->type, s->name);
    lazy->bound[id] = s;
    lazy->node_of[s.get()] = id;
    add_reader(*s, lazy);
  } else {
    std::unordered_map<NodeId, NodeId> known;
    NodeId root = s->id;
    for (NodeId n : topological(s->lazy->graph, {&root, 1}))
      if (s->lazy->graph[n].op == Op::input) known[n] = node_in(lazy, Tensor(s->lazy->bound.at(n)));
    id = import_nodes(lazy->graph, s->lazy->graph, {&root, 1}, known)[0];
  }
  return id;
}

std::shared_ptr<Lazy> common_lazy(std::span<const Tensor> tensors) {
  for (const Tensor& t : tensors)
    if (t.defined() && t.state()->lazy) return t.state()->lazy;
  return std::make_shared<Lazy>();
}

std::vector<Tensor> lift(std::span<const Tensor> in, const std::function<std::vector<NodeId>(Builder&, std::span<const NodeId>)>& fn) {
  std::shared_ptr<Lazy> lazy = common_lazy(in);
  std::vector<NodeId> nodes;
  for (const Tensor& t : in) nodes.push_back(node_in(lazy, t));
  Builder b(lazy->graph);
  std::vector<Tensor> out;
  for (NodeId id : fn(b, nodes)) out.push_back(lazy_tensor(lazy, id));  // also for an unchanged operand: writing to that must not change the result
  return out;
}

Tensor lift1(std::initializer_list<Tensor> in, const std::function<NodeId(Builder&, std::span<const NodeId>)>& fn) {
  return lift({in.begin(), in.size()}, [&](Builder& b, std::span<const NodeId> n) { return std::vector<NodeId>{fn(b, n)}; })[0];
}

void evaluate(std::span<const Tensor> tensors) {
  std::vector<Tensor> todo;
  for (const Tensor& t : tensors) {
    if (!t.defined()) fail(ErrorCode::value, "[eval] an undefined tensor has no value");
    if (t.state()->has_value()) continue;
    if (!t.state()->lazy)
      fail(ErrorCode::binding, "[eval] \"{}\" {} is a placeholder: it has a value only inside a compiled step", t.state()->name, to_string(t.state()->type));
    todo.push_back(t);
  }
  if (todo.empty()) return;
  std::shared_ptr<Lazy> lazy = common_lazy(todo);
  std::vector<NodeId> roots;
  for (const Tensor& t : todo) roots.push_back(node_in(lazy, t));
  // Renumbered, so that equal expressions have equal keys regardless of the graph they were built in.
  Graph own;
  std::unordered_map<NodeId, NodeId> known;
  EagerDevice& device = eager_device();
  const bool uses_device_memory = !device.backend->host_memory();
  std::vector<NodeId> inputs;
  std::vector<std::shared_ptr<std::byte>> operands;  // kept alive until the program has been launched
  std::vector<const void*> in;
  for (NodeId id : topological(lazy->graph, roots))
    if (lazy->graph[id].op == Op::input) {
      const auto& s = lazy->bound.at(id);
      if (!s->has_value())
        fail(ErrorCode::binding, "[eval] the expression depends on placeholder \"{}\" {}, which has a value only inside a compiled step", s->name,
             to_string(s->type));
      known[id] = own.input(s->type, "x");
      inputs.push_back(known[id]);
      operands.push_back(uses_device_memory ? on_device(*s, device) : on_host(*s));
      in.push_back(operands.back().get());
    }
  std::vector<NodeId> outputs = import_nodes(own, lazy->graph, roots, known);
  std::string key = to_string(own, outputs);
  for (NodeId id : outputs) key += fmt::format(" %{}", id);
  bool cacheable = key.find("scan(") == std::string::npos;  // a scan's body is identified only by its address
  CompileOptions options(*device.backend);
  options.arena = device.arena;
  if (uses_device_memory) key += " " + device.name;
  auto make = [&] { return std::make_shared<Executable>(own, inputs, outputs, options); };
  std::shared_ptr<Executable> exe = cacheable ? cache().find(key, make) : make();
  std::vector<std::shared_ptr<std::byte>> results;
  std::vector<void*> out;
  for (const Tensor& t : todo) {
    const int64_t bytes = t.state()->type.bytes();
    results.push_back(uses_device_memory ? allocate_on(device, bytes) : allocate(bytes));
    out.push_back(results.back().get());
  }
  exe->run(in, out);
  cache().stats.kernels = int64_t(exe->report().kernels.size());
  for (size_t i = 0; i < todo.size(); ++i) {
    TensorState& s = *todo[i].state();
    (uses_device_memory ? s.device_data : s.data) = std::move(results[i]), s.device = uses_device_memory ? &device : nullptr;
    s.lazy = nullptr, s.id = kNone;
  }
}

void bind_numbers(const Lazy& lazy, std::span<const NodeId> roots, Builder& b, std::unordered_map<NodeId, NodeId>& known, const std::string& who) {
  for (NodeId id : topological(lazy.graph, roots)) {
    if (lazy.graph[id].op != Op::input || known.count(id)) continue;
    const auto& s = lazy.bound.at(id);
    if (s->type.shape.numel() != 1 || !s->has_value()) fail(ErrorCode::binding, "{} tensor {} that it was not given", who, to_string(s->type));
    known[id] = b.reshape(b.literal(s->type.dtype, Tensor(s).item()), s->type.shape);
  }
}

RandomSource*& current_random() {
  thread_local RandomSource* current = nullptr;
  return current;
}

namespace {
Tensor whole_number(int64_t value) { return Tensor({}, std::span<const int64_t>(&value, 1)); }

thread_local RandomSource default_random{whole_number(0), whole_number(0), whole_number(0), 1};
}  // namespace

RandomSource& random_source() { return current_random() ? *current_random() : default_random; }

RandomDraw draw_random() {
  RandomSource& r = random_source();
  return {r.seed, r.step, r.base, r.next_stream++};
}

DrawsOfHook::DrawsOfHook(uint64_t seed, int64_t step, Purpose purpose) : before_(default_random) {
  constexpr int kBits = 28;  // calls of one hook are fewer, and so are those of a step; the uppermost bit is kSecondStream
  default_random = {whole_number(int64_t(seed)), whole_number(step), whole_number(0), (uint32_t(purpose) << kBits) + 1};
}

DrawsOfHook::~DrawsOfHook() { default_random = before_; }

}  // namespace detail

void seed(uint64_t value) { detail::default_random = {detail::whole_number(int64_t(value)), detail::whole_number(0), detail::whole_number(0), 1}; }

namespace {

template <class T>
void store_scalar(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

void write_value(std::byte* at, DType dtype, double value) {
  switch (dtype) {
    case DType::boolean: return store_scalar(at, uint8_t(value != 0));
    case DType::u8: return store_scalar(at, uint8_t(value));
    case DType::i32: return store_scalar(at, int32_t(value));
    case DType::i64: return store_scalar(at, int64_t(value));
    case DType::f16: return store_scalar(at, f32_to_f16(float(value)));
    case DType::bf16: return store_scalar(at, f32_to_bf16(float(value)));
    case DType::f32: return store_scalar(at, float(value));
    case DType::f64: return store_scalar(at, value);
  }
}

template <class T>
T load_scalar(const std::byte* at) {
  T v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

double read_value(const std::byte* at, DType dtype) {
  switch (dtype) {
    case DType::boolean:
    case DType::u8: return load_scalar<uint8_t>(at);
    case DType::i32: return load_scalar<int32_t>(at);
    case DType::i64: return double(load_scalar<int64_t>(at));
    case DType::f16: return f16_to_f32(load_scalar<uint16_t>(at));
    case DType::bf16: return bf16_to_f32(load_scalar<uint16_t>(at));
    case DType::f32: return load_scalar<float>(at);
    case DType::f64: return load_scalar<double>(at);
  }
  return 0;
}

}  // namespace

Tensor::Tensor(double value, DType dtype) {
  auto data = detail::allocate(size_of(dtype));
  write_value(data.get(), dtype, value);
  *this = detail::make_leaf({dtype, {}}, std::move(data));
}

Tensor Tensor::from_bytes(Shape shape, DType dtype, const void* bytes) {
  Type type{dtype, std::move(shape)};
  auto data = detail::allocate(type.bytes());
  if (type.bytes()) std::memcpy(data.get(), bytes, size_t(type.bytes()));
  return detail::make_leaf(std::move(type), std::move(data));
}

Tensor::Tensor(Shape shape, std::span<const float> values) {
  if (shape.numel() != int64_t(values.size()))
    fail(ErrorCode::shape, "[tensor] {} values for shape {}, which has {}", values.size(), to_string(shape), shape.numel());
  *this = from_bytes(std::move(shape), DType::f32, values.data());
}

Tensor::Tensor(Shape shape, std::span<const int64_t> values) {
  if (shape.numel() != int64_t(values.size()))
    fail(ErrorCode::shape, "[tensor] {} values for shape {}, which has {}", values.size(), to_string(shape), shape.numel());
  *this = from_bytes(std::move(shape), DType::i64, values.data());
}

Tensor Tensor::zeros(Shape shape, DType dtype) {
  Type type{dtype, std::move(shape)};
  auto data = detail::allocate(type.bytes(), true);
  return detail::make_leaf(std::move(type), std::move(data));
}

Tensor Tensor::load(const std::string& file) {
  NpyArray a = read_npy(file);
  return from_bytes(a.shape, a.dtype, a.data.data());
}

void Tensor::save(const std::string& file) const {
  auto* bytes = static_cast<const std::byte*>(data());
  write_npy(file, {dtype(), shape(), {bytes, bytes + state_->type.bytes()}});
}

const Shape& Tensor::shape() const {
  if (!state_) fail(ErrorCode::value, "[tensor] an undefined tensor has no shape");
  return state_->type.shape;
}

DType Tensor::dtype() const {
  if (!state_) fail(ErrorCode::value, "[tensor] an undefined tensor has no dtype");
  return state_->type.dtype;
}

void Tensor::eval() const { detail::evaluate({this, 1}); }

const void* Tensor::data() const {
  eval();
  return detail::on_host(*state_).get();
}

void* Tensor::mutable_data() {
  eval();
  if (state_->shared && state_->device_data)
    fail(ErrorCode::usage, "[tensor] \"{}\" {} is in the memory of a step on {}; set it before the step is compiled, or load weights", state_->name,
         to_string(state_->type), state_->device->name);
  const std::weak_ptr<detail::TensorState> self = state_;
  detail::evaluate_readers({&self, 1});
  detail::share_memory(*state_, detail::on_host(*state_));
  return state_->data.get();
}

std::vector<float> Tensor::to_floats() const {
  auto* bytes = static_cast<const std::byte*>(data());
  std::vector<float> out(static_cast<size_t>(size()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = float(read_value(bytes + int64_t(i) * size_of(dtype()), dtype()));
  return out;
}

std::vector<int64_t> Tensor::to_ints() const {
  auto* bytes = static_cast<const std::byte*>(data());
  std::vector<int64_t> out(static_cast<size_t>(size()));
  for (size_t i = 0; i < out.size(); ++i) {
    const std::byte* at = bytes + int64_t(i) * size_of(dtype());
    out[i] = dtype() == DType::i64 ? load_scalar<int64_t>(at) : int64_t(read_value(at, dtype()));
  }
  return out;
}

double Tensor::item() const {
  if (size() != 1) fail(ErrorCode::shape, "[item] {} has {} elements; item() is for one", to_string(shape()), size());
  return read_value(static_cast<const std::byte*>(data()), dtype());
}

std::string to_string(const Tensor& t) {
  constexpr int64_t kEdge = 3, kWhole = 8;  // axes longer than kWhole show kEdge elements at each end
  auto* bytes = static_cast<const std::byte*>(t.data());
  const Shape& s = t.shape();
  Shape strides = contiguous_strides(s);
  auto value = [&](int64_t at) {
    double v = read_value(bytes + at * size_of(t.dtype()), t.dtype());
    if (t.dtype() == DType::boolean) return std::string(v ? "true" : "false");
    return is_float(t.dtype()) ? fmt::format("{:.4g}", v) : fmt::format("{}", int64_t(v));
  };
  auto show = [&](auto& self, int axis, int64_t at) -> std::string {
    if (axis == s.rank()) return value(at);
    std::string text = "[";
    for (int64_t i = 0; i < s[axis]; ++i) {
      if (i) text += axis + 1 < s.rank() ? ",\n" + std::string(size_t(axis) + 1, ' ') : ", ";
      if (s[axis] > kWhole && i == kEdge) {
        text += "…";
        i = s[axis] - kEdge - 1;
        continue;
      }
      text += self(self, axis + 1, at + i * strides[axis]);
    }
    return text + "]";
  };
  return fmt::format("{} {}{}", show(show, 0, 0), name(t.dtype()), to_string(s));
}

void print(const Tensor& t) { fmt::print("{}\n", to_string(t)); }
void print(const std::string& text) { fmt::print("{}\n", text); }

std::vector<Tensor> grad(const Tensor& loss, std::span<const Tensor> wrt) {
  std::vector<Tensor> all = {loss};
  all.insert(all.end(), wrt.begin(), wrt.end());
  // Reading a tensor evaluates it and drops its expression, so a dependence on it may no longer be visible.
  if (loss.defined() && loss.state()->lazy) {
    const detail::Lazy& lazy = *loss.state()->lazy;
    NodeId root = loss.state()->id;
    std::vector<NodeId> below = topological(lazy.graph, {&root, 1});
    for (size_t i = 0; i < wrt.size(); ++i) {
      const auto& s = wrt[i].state();
      auto it = s ? lazy.node_of.find(s.get()) : lazy.node_of.end();
      NodeId id = s && s->lazy == loss.state()->lazy ? s->id : it != lazy.node_of.end() ? it->second : kNone;
      bool seen = id && std::find(below.begin(), below.end(), id) != below.end();
      if (!seen && !(s && s->lazy && s->lazy != loss.state()->lazy))
        fail(ErrorCode::value,
             "[grad] the loss does not depend on tensor {} of those asked for; a tensor that was read has dropped its expression, so take gradients before "
             "reading values",
             i);
    }
  } else if (loss.defined()) {
    fail(ErrorCode::value,
         "[grad] the loss has been computed already and its expression is gone; take gradients before reading it and before a step changes its weights");
  }
  return detail::lift(all, [](Builder& b, std::span<const NodeId> n) { return gradients(b.graph(), n[0], n.subspan(1)); });
}

EagerStatistics eager_statistics() {
  EagerStatistics s = detail::cache().stats;
  const PoolStatistics p = detail::eager_device().pool->statistics();
  s.pool_requests = p.requests, s.pool_reuses = p.reuses, s.pool_bytes = p.bytes_held, s.pool_peak = p.peak_bytes;
  return s;
}

void trim_pool() {
  detail::host_device().pool->trim();
  detail::eager_device().pool->trim();
}

}  // namespace ridge
