// The CUDA backend as a whole: on the simulated GPU, or on the machine's GPU with RIDGE_TEST_GPU=1.
#include "backend/cuda/backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "autograd/gradients.h"
#include "backend/cuda/modules.h"
#include "base/error.h"
#include "graph/scan.h"
#include "support/cuda_device.h"
#include "support/steps.h"

namespace ridge::cuda {
namespace {

// How often a driver call was made on the simulated GPU.
int calls(const char* call) {
  DynamicLibrary library(test::fake_driver("simulator"));
  int (*count)(const char*) = nullptr;
  return library.bind(count, "simulatorCalls") ? count(call) : -1;
}

class CudaBackendTest : public test::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    if (!test::tests_real_gpu()) simulator_.emplace();
    cache_.emplace("RIDGE_CACHE", folder_.path());
    // Kernels of the simulated GPU are cached elsewhere; those of a real one persist between runs.
    backend_ = std::make_unique<CudaBackend>(options());
  }
  CudaOptions options() const {
    CudaOptions options;
    if (!test::tests_real_gpu()) options.cubins.folder.clear();
    return options;
  }
  void only_simulated() {
    if (test::tests_real_gpu()) GTEST_SKIP() << "needs the simulated GPU";
  }

  test::TempFolder folder_;
  std::optional<test::Simulator> simulator_;
  std::optional<test::Variable> cache_;
  std::unique_ptr<CudaBackend> backend_;
};

// A program over f32 tensors with its memory on the device.
struct OnDevice {
  OnDevice(Backend& backend, const Graph& graph, std::vector<NodeId> inputs, std::vector<NodeId> outputs) : backend(backend) {
    CompileOptions options(backend);
    executable.emplace(graph, inputs, outputs, options);
    for (const Type& t : executable->input_types()) in.push_back(backend.allocate(t.bytes()));
    for (const Type& t : executable->output_types()) out.push_back(backend.allocate(t.bytes()));
  }
  ~OnDevice() {
    for (size_t i = 0; i < in.size(); ++i) backend.release(const_cast<std::byte*>(static_cast<const std::byte*>(in[i])), executable->input_types()[i].bytes());
    for (size_t i = 0; i < out.size(); ++i) backend.release(static_cast<std::byte*>(out[i]), executable->output_types()[i].bytes());
  }
  template <class T>
  void set(size_t input, const std::vector<T>& values) {
    backend.upload(const_cast<void*>(in[input]), values.data(), int64_t(values.size() * sizeof(T)));
  }
  void run() { executable->run(in, out); }
  std::vector<float> get(size_t output = 0) {
    std::vector<float> values(size_t(executable->output_types()[output].shape.numel()));
    backend.download(values.data(), out[output], int64_t(values.size() * 4));
    return values;
  }

  Backend& backend;
  std::optional<Executable> executable;
  std::vector<const void*> in;
  std::vector<void*> out;
};

std::vector<float> counted(size_t n, float step = 1) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = step * float(i);
  return values;
}

TEST_F(CudaBackendTest, MovesBytes) {
  const std::pair<int64_t, bool> cases[] = {
      {1, true}, {3, true}, {64, true}, {4097, true}, {(2 << 20) + 5, true}, {(37 << 20) + 1, true}, {3, false}, {(37 << 20) + 1, false}, {4097, true}};
  for (auto [bytes, pinned] : cases) {
    backend_->use_pinned_memory(pinned);
    std::vector<char> from(static_cast<size_t>(bytes)), to(from.size(), 'x');
    for (size_t i = 0; i < from.size(); ++i) from[i] = char(i * 31 + i / 256);
    std::byte *a = backend_->allocate(bytes), *b = backend_->allocate(bytes);
    backend_->download(to.data(), a, bytes);
    EXPECT_EQ(std::count(to.begin(), to.end(), 0), bytes) << "fresh memory is zero";
    backend_->upload(a, from.data(), bytes);
    const std::vector<char> sent = from;
    std::fill(from.begin(), from.end(), 'y');  // the source may be overwritten immediately
    backend_->copy(b, a, bytes);
    backend_->clear(a, bytes);
    backend_->download(to.data(), b, bytes);
    EXPECT_TRUE(to == sent) << bytes;
    backend_->download(to.data(), a, bytes);
    EXPECT_EQ(std::count(to.begin(), to.end(), 0), bytes);
    backend_->release(a, bytes), backend_->release(b, bytes);
  }
  EXPECT_EQ(backend_->allocate(0), nullptr);
  backend_->release(nullptr, 0);
  backend_->upload(nullptr, nullptr, 0), backend_->download(nullptr, nullptr, 0), backend_->copy(nullptr, nullptr, 0);
}

TEST_F(CudaBackendTest, SmallUploadsKeepTheirOrder) {
  constexpr int64_t kCount = 3000;
  std::byte* there = backend_->allocate(kCount * 24);
  std::vector<int64_t> values(kCount * 3), back(values.size());
  std::iota(values.begin(), values.end(), 5);
  for (int round = 0; round < 2; ++round)
    for (int64_t i = 0; i < kCount; ++i) backend_->upload(there + 24 * i, values.data() + 3 * i, 24);
  backend_->download(back.data(), there, kCount * 24);
  EXPECT_EQ(back, values);
  backend_->release(there, kCount * 24);
}

TEST_F(CudaBackendTest, MarksCompleteInOrder) {
  std::byte* host = backend_->allocate_host(8 * 1000);
  std::byte* there = backend_->allocate(8);
  std::vector<int64_t> marks;
  for (int64_t i = 0; i < 1000; ++i) {
    backend_->upload(there, &i, 8);
    backend_->download_later(host + 8 * i, there, 8);
    marks.push_back(backend_->mark());
    if (i) {
      EXPECT_GT(marks[size_t(i)], marks[size_t(i) - 1]);
    }
  }
  for (int64_t i : {int64_t(0), int64_t(500), int64_t(999)}) {
    backend_->wait_for(marks[size_t(i)]);
    int64_t value = -1;
    std::memcpy(&value, host + 8 * i, 8);
    EXPECT_EQ(value, i);
  }
  backend_->wait_for(0), backend_->wait();
  EXPECT_TRUE(backend_->behind());
  backend_->release(there, 8), backend_->release_host(host, 8000);
}

// Copies in separate queues keep the requested order, across programs.
TEST_F(CudaBackendTest, ConcurrentCopiesWaitForTheirEvents) {
  constexpr int64_t kCount = 50000, kBytes = 4 * kCount;
  Graph graph;
  Builder b(graph);
  NodeId x = graph.input({DType::f32, {kCount}}, "x");
  OnDevice p(*backend_, graph, {x}, {b.mul(x, 2.0)});
  constexpr int kRounds = 6;
  auto* from = reinterpret_cast<float*>(backend_->allocate_host(kRounds * kBytes));
  auto* to = reinterpret_cast<float*>(backend_->allocate_host(kRounds * kBytes));
  for (int64_t i = 0; i < kRounds * kCount; ++i) from[i] = float(i);
  for (int round = 0; round < kRounds; ++round) {
    backend_->order(Queue::work, Queue::in);  // after the previous program has read its input
    backend_->upload_later(const_cast<void*>(p.in[0]), from + round * kCount, kBytes, Queue::in);
    backend_->order(Queue::in, Queue::work), backend_->order(Queue::out, Queue::work);
    p.run();
    backend_->order(Queue::work, Queue::out);
    backend_->download_later(to + round * kCount, p.out[0], kBytes, Queue::out);
  }
  backend_->wait();
  int64_t wrong = 0;
  for (int64_t i = 0; i < kRounds * kCount; ++i) wrong += to[i] != 2 * from[i];
  EXPECT_EQ(wrong, 0);
  backend_->release_host(reinterpret_cast<std::byte*>(from), kRounds * kBytes), backend_->release_host(reinterpret_cast<std::byte*>(to), kRounds * kBytes);
}

TEST_F(CudaBackendTest, DescribesTheDevice) {
  const DeviceInfo info = backend_->info();
  EXPECT_EQ(info.name, "cuda");
  EXPECT_FALSE(backend_->host_memory());
  EXPECT_EQ(info.chip, backend_->chip().name);
  EXPECT_EQ(backend_->memory().total, backend_->memory_use().total);
  EXPECT_EQ(backend_->memory().held, backend_->memory_use().held());
  EXPECT_NE(info.what.find(backend_->chip().name), std::string::npos);
  const MemoryUse before = backend_->memory_use();
  EXPECT_GT(before.total, 0);
  constexpr int64_t kBytes = int64_t(8) << 20;
  std::byte* p = backend_->allocate(kBytes);
  EXPECT_EQ(backend_->memory_use().asked, before.asked + kBytes);
  if (!test::tests_real_gpu()) {  // others may be using a real one
    EXPECT_LE(backend_->memory_use().free, before.free - kBytes);
  }
  backend_->release(p, kBytes);
  EXPECT_EQ(backend_->memory_use().asked, before.asked);
}

// The first run at new addresses is not recorded, the second is, and all others replay. New addresses get a separate recording.
TEST_F(CudaBackendTest, RecordsAndReplays) {
  Graph graph;
  Builder b(graph);
  NodeId x = graph.input({DType::f32, {1000}}, "x"), w = graph.input({DType::f32, {1000}}, "w");
  OnDevice p(*backend_, graph, {x, w}, {b.mul(b.add(x, w), x), b.sum(b.mul(x, w))});
  p.set(0, counted(1000, 0.01f));
  std::vector<float> ones(1000, 1.f);
  p.set(1, ones);
  p.run();
  const std::vector<float> first = p.get(), sum = p.get(1);
  EXPECT_FLOAT_EQ(first[100], 2.f);
  EXPECT_NEAR(sum[0], 4995, 0.1);
  EXPECT_EQ(backend_->counts().recordings, 0);
  const int64_t asked = backend_->memory_use().asked;
  for (int i = 0; i < 10; ++i) p.run();
  EXPECT_EQ(p.get(), first) << "a replay has the same bits";
  EXPECT_EQ(p.get(1), sum);
  EXPECT_EQ(backend_->counts().recordings, 1);
  EXPECT_EQ(backend_->counts().replays, 10);
  EXPECT_EQ(backend_->counts().direct, 1);
  EXPECT_EQ(backend_->memory_use().asked, asked);
  // Values that change between runs are read from memory.
  p.set(1, std::vector<float>(1000, 2.f));
  p.run();
  EXPECT_FLOAT_EQ(p.get()[100], 3.f);
  // At other addresses, and back again; more addresses than recordings are kept.
  std::vector<std::byte*> places;
  const void* home = p.in[1];
  for (int i = 0; i < 12; ++i) {
    places.push_back(backend_->allocate(4000));
    backend_->upload(places.back(), ones.data(), 4000);
    p.in[1] = places.back();
    for (int k = 0; k < 3; ++k) p.run();
    EXPECT_EQ(p.get(), first) << i;
  }
  p.in[1] = home;
  for (int k = 0; k < 3; ++k) p.run();
  EXPECT_FLOAT_EQ(p.get()[100], 3.f);
  EXPECT_LE(backend_->counts().recordings, 15);
  for (std::byte* place : places) backend_->release(place, 4000);
}

TEST_F(CudaBackendTest, ReplayMakesNoDriverCalls) {
  only_simulated();
  if (IsSkipped()) return;
  engine::Step step = engine::make_step(engine::mlp_model(7));
  CompileOptions options(*backend_);
  engine::Training training(step, 10, options);
  for (int i = 0; i < 3; ++i) training.run(1e-2f);
  const int memory = calls("cuMemAlloc_v2"), pinned = calls("cuMemHostAlloc"), modules = calls("cuModuleLoadData"), launches = calls("cuLaunchKernel");
  for (int i = 0; i < 5; ++i) training.run(1e-2f);
  EXPECT_EQ(calls("cuMemAlloc_v2"), memory);
  EXPECT_EQ(calls("cuMemHostAlloc"), pinned);
  EXPECT_EQ(calls("cuModuleLoadData"), modules);
  EXPECT_EQ(calls("cuLaunchKernel"), launches) << "a replay is one call";
}

TEST_F(CudaBackendTest, TrainsLikeTheCpu) {
  GptConfig small = engine::small_gpt();
  small.layers = 2, small.width = 32, small.heads = 2, small.vocab = 37;
  const std::pair<StepModel, int64_t> models[] = {{engine::mlp_model(9), 10}, {engine::conv_model(3), 10}, {engine::gpt_model(small, 2, 12), small.vocab}};
  for (const auto& [model, classes] : models) {
    engine::Step step = engine::make_step(model);
    CompileOptions options(*backend_);
    engine::Training here(step, classes), there(step, classes, options);
    for (int i = 0; i < 3; ++i) {
      const float expected = here.run(1e-2f), loss = there.run(1e-2f);
      EXPECT_NEAR(loss, expected, 1e-4f) << "step " << i;
      EXPECT_NEAR(there.norm(), here.norm(), 1e-3f * here.norm());
    }
    EXPECT_EQ(there.applied(), 3);
    for (size_t w = 0; w < step.parameters.size(); ++w) {
      float apart = 0;
      for (size_t i = 0; i < here.parameter(w).size(); ++i) apart = std::max(apart, std::abs(here.parameter(w)[i] - there.parameter(w)[i]));
      // AdamW moves a weight whose gradient is pure rounding by the full rate, so single elements may differ by steps.
      EXPECT_LT(apart, 3e-2f) << step.parameters[w].name;
    }
  }
}

TEST_F(CudaBackendTest, TwoBackendsGiveTheSameBits) {
  engine::Step step = engine::make_step(engine::mlp_model(33));
  std::vector<std::vector<std::byte>> states[2];
  for (auto& state : states) {
    CudaBackend own(options());
    CompileOptions options(own);
    engine::Training training(step, 10, options);
    for (int i = 0; i < 3; ++i) training.run(1e-2f);
    state = training.state();
  }
  EXPECT_EQ(states[0], states[1]);
}

// h' = tanh(h + x_t · w), forward and backward in time, with its gradient: a loop inside the recording.
TEST_F(CudaBackendTest, LoopsOverTime) {
  for (bool reverse : {false, true}) {
    Graph graph;
    Builder b(graph);
    auto body = std::make_shared<ScanBody>();
    Builder s(body->graph);
    const Type row{DType::f32, {3}};
    body->carry_in = {body->graph.input(row, "h")}, body->sequence_in = {body->graph.input(row, "x")}, body->constant_in = {body->graph.input(row, "w")};
    NodeId next = s.unary(Op::tanh, s.add(body->carry_in[0], s.mul(body->sequence_in[0], body->constant_in[0])));
    body->carry_out = {next}, body->step_out = {s.mul(next, 2.0)};
    NodeId h = graph.input(row, "h"), x = graph.input({DType::f32, {5, 3}}, "x"), w = graph.input(row, "w");
    NodeId carry[] = {h}, sequences[] = {x}, constants[] = {w};
    ScanResult r = scan(graph, body, carry, sequences, constants, 5, reverse);
    NodeId loss = b.sum(b.mul(r.outputs[0], r.outputs[0]));
    NodeId wrt[] = {h, x, w};
    std::vector<NodeId> outputs = {r.outputs[0], r.carry[0]};
    for (NodeId g : gradients(graph, loss, wrt)) outputs.push_back(g);
    const std::vector<std::vector<float>> values = {{0.1f, -0.2f, 0.3f}, counted(15, 0.05f), {0.5f, -1.f, 2.f}};

    Executable cpu(graph, {h, x, w}, outputs, default_backend());
    std::vector<std::vector<float>> expected;
    std::vector<const void*> in = {values[0].data(), values[1].data(), values[2].data()};
    std::vector<void*> out;
    for (const Type& t : cpu.output_types()) expected.emplace_back(size_t(t.shape.numel()));
    for (auto& e : expected) out.push_back(e.data());
    cpu.run(in, out);

    OnDevice p(*backend_, graph, {h, x, w}, outputs);
    for (size_t i = 0; i < values.size(); ++i) p.set(i, values[i]);
    for (int k = 0; k < 3; ++k) p.run();
    for (size_t o = 0; o < expected.size(); ++o) {
      const std::vector<float> got = p.get(o);
      for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[o][i], 1e-5f) << "output " << o << " element " << i;
    }
  }
}

class BadIndex {
 public:
  explicit BadIndex(Backend& backend) : p_(make(backend)) {
    p_->set(0, std::vector<float>(15, 1.f));
    set(0);
  }
  void set(int64_t second) { p_->set(1, std::vector<int64_t>{0, second}); }
  OnDevice& program() { return *p_; }

 private:
  static std::unique_ptr<OnDevice> make(Backend& backend) {
    Graph graph;
    Builder b(graph);
    NodeId table = graph.input({DType::f32, {5, 3}}, "table"), at = graph.input({DType::i64, {2}}, "at");
    return std::make_unique<OnDevice>(backend, graph, std::vector<NodeId>{table, at}, std::vector<NodeId>{b.take(table, at, 0)});
  }
  std::unique_ptr<OnDevice> p_;
};

template <class Body>
void expect_bad_index(Body&& body, const char* where) {
  try {
    body();
    ADD_FAILURE() << where << " took row 7 of 5";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::value) << where << ": " << error.what();
    EXPECT_NE(std::string(error.what()).find("index 7"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("0 to 4"), std::string::npos) << error.what();
  }
}

// run() does not wait, so a bad index is reported by the next wait, or by the next run; once.
TEST_F(CudaBackendTest, BadIndicesAreReportedByTheNextWait) {
  BadIndex bad(*backend_);
  auto meet = [&] {
    bad.set(7);
    bad.program().run();
    bad.set(4);
  };
  meet();
  expect_bad_index([&] { backend_->wait(); }, "wait");
  backend_->wait();
  meet();
  expect_bad_index([&] { bad.program().get(); }, "download");
  meet();
  expect_bad_index([&] { backend_->wait_for(backend_->mark()); }, "wait_for");
  if (!test::tests_real_gpu()) {  // a real device may not be that far yet
    meet();
    expect_bad_index([&] { bad.program().run(); }, "run");
  }
  bad.program().run(), bad.program().run();
  EXPECT_EQ(bad.program().get(), std::vector<float>(6, 1.f)) << "usable afterwards";
}

TEST_F(CudaBackendTest, BadClassesAreReportedLikeOnTheCpu) {
  engine::Step step = engine::make_step(engine::mlp_model(4));
  std::string said[2];
  for (int k = 0; k < 2; ++k) {
    CompileOptions options(default_backend());
    if (k) options.backend = backend_.get();
    engine::Training training(step, 10, options);
    const int64_t wrong = 17;
    std::memcpy(training.data(1).data() + 4, &wrong, 8);  // in the third sample
    try {
      training.run(1e-2f);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::value);
      said[k] = error.what();
    }
  }
  EXPECT_EQ(said[0], said[1]);
}

TEST_F(CudaBackendTest, OutOfMemoryErrorsHaveNumbers) {
  const MemoryUse memory = backend_->memory_use();
  try {
    backend_->allocate(memory.total + (int64_t(1) << 30));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::memory);
    const std::string what = error.what();
    EXPECT_NE(what.find("are free"), std::string::npos) << what;
  }
  std::byte* p = backend_->allocate(100);
  EXPECT_NE(p, nullptr) << "usable afterwards";
  backend_->release(p, 100);
}

TEST_F(CudaBackendTest, DebugModeWaitsAfterEveryLaunch) {
  CudaOptions debug = options();
  debug.debug = true;
  CudaBackend careful(debug);
  Graph graph;
  Builder b(graph);
  NodeId x = graph.input({DType::f32, {100}}, "x");
  OnDevice p(careful, graph, {x}, {b.add(x, 1.0)});
  p.set(0, counted(100));
  for (int i = 0; i < 4; ++i) p.run();
  EXPECT_FLOAT_EQ(p.get()[7], 8.f);
  EXPECT_EQ(careful.counts().recordings, 0);
  EXPECT_EQ(careful.counts().direct, 4);
  if (test::tests_real_gpu()) return;
  const test::Variable fault("FAKE_GPU", "cuStreamSynchronize=719");
  try {
    p.run();
    FAIL();
  } catch (const DriverError& error) {
    EXPECT_TRUE(error.lost());
    EXPECT_NE(std::string(error.what()).find("kernel 0 of 1 (map["), std::string::npos) << error.what();
  }
}

TEST_F(CudaBackendTest, FailedLaunchesNameTheirKernel) {
  only_simulated();
  if (IsSkipped()) return;
  Graph graph;
  Builder b(graph);
  NodeId x = graph.input({DType::f32, {100}}, "x");
  OnDevice p(*backend_, graph, {x}, {b.add(x, 1.0)});
  p.set(0, counted(100));
  p.run();
  for (int recorded = 0; recorded < 2; ++recorded) {
    const test::Variable fault("FAKE_GPU", "cuLaunchKernel=701");
    OnDevice q(*backend_, graph, {x}, {b.add(x, 1.0)});
    try {
      if (recorded)
        p.run();  // while it is recorded
      else
        q.run();
      FAIL();
    } catch (const DriverError& error) {
      EXPECT_NE(std::string(error.what()).find("kernel 0 of 1 (map["), std::string::npos) << error.what();
    }
  }
  for (int i = 0; i < 3; ++i) p.run();
  EXPECT_FLOAT_EQ(p.get()[7], 8.f) << "usable afterwards";
}

TEST_F(CudaBackendTest, LostDevicesPointToTheCheckpoint) {
  only_simulated();
  if (IsSkipped()) return;
  Graph graph;
  Builder b(graph);
  NodeId x = graph.input({DType::f32, {100}}, "x");
  OnDevice p(*backend_, graph, {x}, {b.add(x, 1.0)});
  for (int i = 0; i < 3; ++i) p.run();
  for (const char* call : {"cuGraphLaunch=700", "cuStreamSynchronize=719", "cuEventSynchronize=999"}) {
    const test::Variable fault("FAKE_GPU", call);
    try {
      p.run(), p.get(), backend_->wait();
      FAIL() << call;
    } catch (const DriverError& error) {
      EXPECT_TRUE(error.lost());
      const std::string what = error.what();
      EXPECT_NE(what.find("the last checkpoint is intact"), std::string::npos) << what;
      EXPECT_NE(what.find("RIDGE_CUDA_DEBUG"), std::string::npos) << what;
      EXPECT_EQ(what.find("lost", what.find("lost") + 1), std::string::npos) << "said once: " << what;
    }
  }
  // Everything is destroyed while the device returns only errors.
  const test::Variable fault("FAKE_GPU", "cuCtxSetCurrent=709,cuStreamSynchronize=709,cuMemFree_v2=709");
}

TEST_F(CudaBackendTest, NamesMissingLibraries) {
  only_simulated();
  if (IsSkipped()) return;
  const test::TempFolder nothing;
  CudaOptions none = options();
  none.libraries = LibrarySearch{.first = {nothing.path()}, .folders = {}, .system = false, .cuda = 13000};
  try {
    CudaBackend backend(none);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("pip install nvidia-cuda-nvrtc"), std::string::npos) << error.what();
  }
  CudaOptions third = options();
  third.device = 3;
  EXPECT_THROW(CudaBackend{third}, Error);
  simulator_.reset();
  simulator_.emplace(test::SimulatorOptions{.cublas_lt = false});
  CudaBackend without(options());
  EXPECT_EQ(without.cublas_lt(), nullptr);
  EXPECT_NE(without.remark().find("own matmul kernels"), std::string::npos) << without.remark();
  engine::Step step = engine::make_step(engine::mlp_model(5));
  CompileOptions compile(without);
  engine::Training here(step, 10), there(step, 10, compile);
  for (int i = 0; i < 2; ++i) EXPECT_NEAR(there.run(1e-2f), here.run(1e-2f), 1e-4f);
}

// Planning compiles and allocates nothing.
TEST_F(CudaBackendTest, PlanningAllocatesNothing) {
  engine::Step step = engine::make_step(engine::mlp_model(64));
  const MemoryUse before = backend_->memory_use();
  CompileOptions options(*backend_);
  options.state = step.state, options.forward = {step.loss};
  Executable plan(step.graph, step.inputs, step.outputs, options);
  EXPECT_GT(plan.report().arena_bytes, 0);
  EXPECT_EQ(backend_->memory_use().asked, before.asked);
  EXPECT_EQ(backend_->kernels().compiled + backend_->kernels().found, 0);
  plan.prepare();
  EXPECT_GT(backend_->kernels().compiled + backend_->kernels().found, 0);
  EXPECT_EQ(backend_->memory_use().asked, before.asked + plan.report().arena_bytes);
}

// A file with another kernel's code under a kernel's name is detected on loading.
TEST_F(CudaBackendTest, RecompilesBadCodeInTheCache) {
  Device& device = backend_->device();
  const KernelText one{"one", "extern \"C\" __global__ void one(float* x) { x[0] = 1; }\n"},
      two{"two", "extern \"C\" __global__ void two(float* x) { x[0] = 2; }\n"};
  CubinOptions kept{.folder = folder_ / "kernels", .threads = 1};
  std::string names[2];
  {
    Modules modules(device, library_search(device.driver().version()), kept);
    device.use([&] { modules.load(one), modules.load(two); });
    names[0] = modules.cubins().key(one), names[1] = modules.cubins().key(two);
  }
  std::filesystem::copy_file(kept.folder / names[0], kept.folder / names[1], std::filesystem::copy_options::overwrite_existing);
  for (int64_t broken : {1, 0}) {
    Modules modules(device, library_search(device.driver().version()), kept);
    EXPECT_NO_THROW(device.use([&] { modules.load(two); }));
    EXPECT_EQ(modules.cubins().statistics().broken, broken) << "mended once";
  }
}

// Later processes reuse measurements; choices from a checkpoint take precedence, and only those in use are reported.
TEST_F(CudaBackendTest, StoresAndRestoresChoices) {
  Device& device = backend_->device();
  auto modules = [&] { return Modules(device, library_search(device.driver().version()), options().cubins); };
  {
    Modules first = modules();
    EXPECT_EQ(first.choice("product/1"), "");
    first.keep_choice("product/1", "algorithm 7, \"quoted\"");
    first.keep_choice("product/2", "b");
    EXPECT_EQ(first.choice("product/1"), "algorithm 7, \"quoted\"");
  }
  Modules second = modules();
  EXPECT_TRUE(second.used_choices().empty());
  EXPECT_EQ(second.choice("product/1"), "algorithm 7, \"quoted\"");
  second.use_choices({{"product/1", "c"}, {"product/3", "d"}});
  EXPECT_EQ(second.choice("product/1"), "c");
  EXPECT_EQ(second.choice("product/3"), "d");
  EXPECT_EQ(second.used_choices(), (std::map<std::string, std::string>{{"product/1", "c"}, {"product/3", "d"}}));
  EXPECT_EQ(modules().choice("product/1"), "algorithm 7, \"quoted\"") << "what was given is not kept";
}

}  // namespace
}  // namespace ridge::cuda
