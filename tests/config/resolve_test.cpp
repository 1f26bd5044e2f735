#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "config/samples.h"
#include "support/temp_folder.h"

namespace ridge::config {
namespace {

// Who finds this key by all of its names: everyone, or only its own task if others have keys of the same name.
unsigned reader_of(const Key& key) {
  bool found = find_key(key.name) == &key;
  for (std::string_view alias : split(key.aliases, ' ')) found = found && find_key(alias) == &key;
  return found ? kAllTasks : key.tasks;
}

// The ways to set a key, weakest first.
enum Way { kTuned, kIni, kYaml, kFile, kVariable, kWord, kWays };

class Resolve : public InFolder {
 protected:
  Sources sources() const {
    Sources s;
    s.working_folder = folder_;
    return s;
  }

  // Sets `key` to `value` in one way; returns the source that must be reported.
  std::string add(Sources& s, Way way, const Key& key, const std::string& value) const {
    switch (way) {
      case kTuned: s.tuned.emplace_back(key.name, value); return "tuned choices";
      case kIni: return write("config_gpu.ini", fmt::format("# line 1\n{} = \"{}\"\n", key.name, value)).string() + ":2";
      case kYaml: return write("train.yaml", fmt::format("\n\n{}: \"{}\"\n", key.name, value)).string() + ":3";
      case kFile: return s.files.emplace_back(write("named.json", fmt::format("{{\"{}\":\n\"{}\"}}", key.name, value))).string() + ":1";
      case kVariable: s.environment.emplace_back(variable_of(key), value); return "environment " + variable_of(key);
      default: s.words.push_back(fmt::format("{}={}", key.name, value)); return "command line";
    }
  }

  void clear() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) std::filesystem::remove_all(entry);
  }
};

TEST_F(Resolve, EveryKeyFromEverySourceAndPairOfSources) {
  for (const Key& key : keys()) {
    const auto [a, b] = samples(key);
    const Value first = *parse_value(key, a).value, second = *parse_value(key, b).value;
    for (int strong = 0; strong < kWays; ++strong) {
      for (int weak = 0; weak < strong; ++weak) {
        clear();
        Sources s = sources();
        s.task = reader_of(key);
        const std::string lesser = add(s, Way(weak), key, b), winner = add(s, Way(strong), key, a);
        const Resolved r = resolve(s);
        ASSERT_EQ(r.setting(key.name).source, winner) << key.name;
        EXPECT_EQ(r.setting(key.name).value, first) << key.name;
        const Setting& overrode = r.history(key.name).end()[-2];
        EXPECT_EQ(overrode.source, lesser) << key.name;
        EXPECT_EQ(overrode.value, second) << key.name;
      }
      clear();
      Sources s = sources();
      s.task = reader_of(key);
      const std::string winner = add(s, Way(strong), key, a);
      const Resolved r = resolve(s);
      EXPECT_EQ(r.setting(key.name).source, winner) << key.name;
      EXPECT_EQ(r.setting(key.name).value, first) << key.name;
      for (const Key& other : keys()) EXPECT_TRUE(other.name == key.name || r.history(other.name).size() <= 2) << key.name << " moved " << other.name;
    }
  }
}

TEST_F(Resolve, AcceptsEveryCommandLineForm) {
  for (const Key& key : keys()) {
    const std::string a = samples(key).first;
    const Value value = *parse_value(key, a).value;
    std::string hyphens(key.name);
    std::replace(hyphens.begin(), hyphens.end(), '_', '-');
    std::vector<std::vector<std::string>> forms = {{fmt::format("--{}={}", key.name, a)},
                                                   {fmt::format("--{}", key.name), a},
                                                   {fmt::format("--{}={}", hyphens, a)},
                                                   {"--" + hyphens, a, "lr=1"},
                                                   {"lr=1", fmt::format("{}={}", hyphens, a)}};
    for (std::string_view alias : split(key.aliases, ' ')) forms.push_back({fmt::format("{}={}", alias, a)});
    for (const auto& form : forms) {
      if (key.name == "lr" && form.size() > 1) continue;
      Sources s = sources();
      s.task = reader_of(key);
      s.words = form;
      EXPECT_EQ(resolve(s).setting(key.name).value, value) << form[0];
    }
    if (key.type != Type::boolean) continue;
    Sources s = sources();
    s.task = reader_of(key);
    s.words = {"--" + hyphens, "seed=3"};
    EXPECT_TRUE(resolve(s).get<bool>(key.name)) << key.name;
    s.words = {"--no-" + hyphens, "seed=3"};
    EXPECT_FALSE(resolve(s).get<bool>(key.name)) << key.name;
    EXPECT_EQ(resolve(s).get<int64_t>("seed"), 3);
    s.words = {fmt::format("--no_{}", key.name)};
    EXPECT_FALSE(resolve(s).get<bool>(key.name)) << key.name;
  }
}

TEST_F(Resolve, TheLastValueWinsAndNamedFilesKeepTheirOrder) {
  Sources s = sources();
  s.words = {"batch_size=3", "--batch-size", "4"};
  EXPECT_EQ(resolve(s).get<int64_t>("batch"), 4);
  EXPECT_EQ(resolve(s).history("batch").size(), 4u);  // default, preset, both words
  s.words.clear();
  s.files = {write("a.yaml", "batch: 5"), write("b.ini", "batch = 6")};
  EXPECT_EQ(resolve(s).get<int64_t>("batch"), 6);
  std::swap(s.files[0], s.files[1]);
  EXPECT_EQ(resolve(s).get<int64_t>("batch"), 5);
}

TEST_F(Resolve, TasksMayHaveDifferentKeysOfOneName) {
  const unsigned gpt = task_bit("gpt"), cfc = task_bit("cfc");
  ASSERT_NE(find_key("preset", gpt), find_key("preset", cfc));
  Sources s = sources();
  s.task = cfc, s.words = {"preset=sine", "hidden_size=12"};
  Resolved r = resolve(s);
  EXPECT_EQ(r.get<std::string>("preset"), "sine");
  EXPECT_EQ(r.get<int64_t>("units"), 12) << "an alias of this task's key, not of GPT's width";
  EXPECT_EQ(r.setting("lr").source, "preset sine");
  EXPECT_NE(r.to_yaml().find("cell: "), std::string::npos);
  EXPECT_EQ(r.to_yaml().find("heads: "), std::string::npos);
  s.task = gpt;
  EXPECT_THROW(resolve(s), Error) << "not a preset of GPT";
  s.words = {"preset=gpt2"};
  EXPECT_EQ(resolve(s).get<std::string>("preset"), "gpt2");
  s.words.clear(), s.environment = {{"RIDGE_PRESET", "copy"}}, s.task = cfc;
  EXPECT_EQ(resolve(s).get<std::string>("preset"), "copy");
  s.task = kAllTasks;
  EXPECT_NO_THROW(resolve(s)) << "some task has this preset";
  EXPECT_TRUE(check_file(write("train.yaml", "preset: lorenz")).problems.empty());
  EXPECT_FALSE(check_file(write("train.yaml", "preset: nothing")).problems.empty());
}

// Without a preset, data names it: a generated set's own, or the one for tables.
TEST_F(Resolve, DataChoosesThePreset) {
  Sources s = sources();
  s.task = task_bit("cfc");
  for (const auto& [words, preset] : std::map<std::vector<std::string>, std::string>{{{}, "xor"},
                                                                                     {{"data=lorenz"}, "lorenz"},
                                                                                     {{"data=my.csv"}, "table"},
                                                                                     {{"data=builtin"}, "xor"},
                                                                                     {{"data=my.csv", "preset=sine"}, "sine"},
                                                                                     {{"data=sine", "preset=xor"}, "xor"}}) {
    s.words = words;
    const Resolved r = resolve(s);
    EXPECT_EQ(r.get<std::string>("preset"), preset);
    EXPECT_EQ(r.setting("units").source, "preset " + preset);
  }
}

TEST_F(Resolve, PresetsOverrideOnlyDefaults) {
  Sources s = sources();
  s.words = {"preset=shakespeare-char"};
  Resolved r = resolve(s);
  EXPECT_EQ(r.get<int64_t>("layers"), 6);
  EXPECT_EQ(r.get<double>("dropout"), 0.2);
  EXPECT_EQ(r.setting("layers").source, "preset shakespeare-char");
  s.tuned = {{"batch", "32"}};
  s.words.push_back("heads=2");
  r = resolve(s);
  EXPECT_EQ(r.setting("batch").source, "tuned choices");
  EXPECT_EQ(r.history("heads")[1].source, "preset shakespeare-char");
  EXPECT_EQ(r.get<int64_t>("heads"), 2);
  s.words.push_back("layers=auto");
  EXPECT_EQ(resolve(s).get<int64_t>("layers"), 6) << "auto is the preset's";
  s.task = kProgram;
  s.words.clear();
  EXPECT_EQ(resolve(s).get<std::string>("steps"), "auto") << "presets are for tasks of the command line";
}

TEST_F(Resolve, FindsFilesNextToTheRunThenInTheWorkingFolder) {
  write("config_gpu.ini", "[threads]\nnum_threads = 1\n");
  write("train.yaml", "seed: 1\n");
  Sources s = sources();
  EXPECT_EQ(resolve(s).get<int64_t>("threads"), 1);
  const auto beside = write("exp/config_gpu.ini", "[threads]\nnum_threads = 2\n");
  for (const char* out : {"out=exp/run_0", "--out_dir=exp/run_0/", "out=exp/run_0/."}) {
    s.words = {out};
    EXPECT_EQ(resolve(s).get<int64_t>("threads"), 2) << out;
    EXPECT_EQ(resolve(s).get<int64_t>("seed"), 1);
    EXPECT_EQ(resolve(s).files().size(), 2u);
    EXPECT_EQ(resolve(s).setting("threads").source, beside.string() + ":2") << out;
  }
  write("exp/run_0/config_gpu.ini", "threads = 3\n");
  EXPECT_EQ(resolve(s).get<int64_t>("threads"), 3);
  s.words.clear();
  s.environment = {{"RIDGE_OUT", (folder_ / "exp/run_0").string()}};
  EXPECT_EQ(resolve(s).get<int64_t>("threads"), 3);
  s.working_folder.reset();
  EXPECT_EQ(resolve(s).get<std::string>("threads"), "auto");
  EXPECT_TRUE(resolve(s).files().empty());
}

TEST_F(Resolve, AFoundFileThatIsAlsoNamedIsReadOnce) {
  Sources s = sources();
  s.files = {write("train.yaml", "seed: 7\n")};
  write("config_gpu.ini", "seed = 8\n");
  const Resolved r = resolve(s);
  EXPECT_EQ(r.get<int64_t>("seed"), 7);
  EXPECT_EQ(r.files().size(), 2u);
  EXPECT_EQ(r.history("seed").size(), 3u);
}

TEST_F(Resolve, ATypicalGpuIniWorks) {
  write(
      "config_gpu.ini",
      "[gpu]\ndevice = \"mps\"\nmemory_fraction = 0.99\nempty_cache_frequency = 10\n[memory_management]\nenable_pinned_memory = true\npin_memory_ratio = 0.25\n"
      "offload_optimizer = false\noffload_parameters = false\nenable_async_loading = true\nstreaming_transfer = true\nprefetch_factor = 8\n[precision]\n"
      "default_dtype = \"float32\"\nmatmul_precision = \"highest\"\n[threads]\nnum_threads = 12\n");
  const Resolved r = resolve(sources());
  EXPECT_TRUE(r.notes().empty());
  EXPECT_EQ(r.get<std::string>("device"), "metal");
  EXPECT_EQ(r.get<double>("memory_fraction"), 0.99);
  EXPECT_EQ(r.get<int64_t>("empty_cache_frequency"), 10);
  EXPECT_TRUE(r.get<bool>("enable_pinned_memory"));
  EXPECT_EQ(r.get<double>("pin_memory_ratio"), 0.25);
  EXPECT_FALSE(r.get<bool>("offload_optimizer"));
  EXPECT_TRUE(r.get<bool>("enable_async_loading"));
  EXPECT_EQ(r.get<int64_t>("prefetch_factor"), 8);
  EXPECT_EQ(r.get<std::string>("precision"), "fp32");
  EXPECT_EQ(r.get<std::string>("matmul_precision"), "highest");
  EXPECT_EQ(r.get<int64_t>("threads"), 12);
  EXPECT_EQ(r.setting("threads").source, (folder_ / "config_gpu.ini:17").string());
}

TEST_F(Resolve, ATypicalTrainYamlWorks) {
  write(
      "train.yaml",
      "seed: 42\ndataset:\n  name: dummy\n  path: ./data\n  size: 1000\n  split: [0.8, 0.1, 0.1]\ntraining:\n  epochs: 10\n  batch_size: 32\n  num_workers: 0\n"
      "  learning_rate: 1e-3\n  weight_decay: 1e-5\nmodel:\n  hidden_size: 128\n  num_layers: 2\n  dropout: 0.1\ndevice: mps\nprecision: fp32\npaths:\n  "
      "runs_dir: my_runs\n"
      "  checkpoints_dir: checkpoints\n  data_dir: data\nlogging:\n  level: INFO\n  format: json\n  save_interval: 100\n");
  const Resolved r = resolve(sources());
  EXPECT_EQ(r.get<int64_t>("seed"), 42);
  EXPECT_EQ(r.get<std::vector<std::string>>("data"), std::vector<std::string>{"./data"});
  EXPECT_EQ(r.get<int64_t>("batch"), 32);
  EXPECT_EQ(r.get<double>("lr"), 1e-3);
  EXPECT_EQ(r.get<double>("weight_decay"), 1e-5);
  EXPECT_EQ(r.get<int64_t>("width"), 128);
  EXPECT_EQ(r.get<int64_t>("layers"), 2);
  EXPECT_EQ(r.get<double>("dropout"), 0.1);
  EXPECT_EQ(r.get<std::string>("device"), "metal");
  EXPECT_EQ(r.get<std::string>("precision"), "fp32");
  EXPECT_EQ(r.get<std::string>("runs_dir"), "my_runs");
  EXPECT_EQ(r.get<std::string>("log_level"), "info");
  EXPECT_EQ(r.get<int64_t>("checkpoint_interval"), 100);
  std::vector<std::string> without_effect;
  for (const Note& note : r.notes()) {
    EXPECT_NE(note.text.find("has no effect: "), std::string::npos);
    without_effect.push_back(note.text.substr(0, note.text.find(' ')));
  }
  EXPECT_EQ(without_effect, (std::vector<std::string>{"name", "size", "split", "epochs", "num_workers", "checkpoints_dir", "data_dir", "format"}));
}

TEST_F(Resolve, RidgeVariablesOverrideForeignOnes) {
  Sources s = sources();
  s.environment = {{"RIDGE_THREADS", "3"}, {"OMP_NUM_THREADS", "5,2"}, {"OPTIMIZE_PERF", "false"}, {"RIDGE_SEED", ""}, {"PATH", "/bin"}};
  Resolved r = resolve(s);
  EXPECT_EQ(r.get<int64_t>("threads"), 3);
  EXPECT_EQ(r.history("threads")[1].source, "environment OMP_NUM_THREADS");
  EXPECT_EQ(r.history("threads")[1].value, Value(int64_t(5)));
  EXPECT_FALSE(r.get<bool>("optimize_perf"));
  EXPECT_EQ(r.setting("seed").source, "default") << "an empty variable says nothing";
  s.environment = {{"OMP_NUM_THREADS", "many"}, {"OPTIMIZE_PERF", "banana"}, {"RIDGE_THREADS", "banana"}};
  EXPECT_EQ(error_of(s),
            "[config] environment OMP_NUM_THREADS: threads is 'many', but must be a whole number from 1 to 4096, or auto, performance or all\n"
            "[config] environment OPTIMIZE_PERF: optimize_perf is 'banana', but must be true or false\n"
            "[config] environment RIDGE_THREADS: threads is 'banana', but must be a whole number from 1 to 4096, or auto, performance or all");
  s.environment = {{"OMP_NUM_THREADS", "many"}, {"OPTIMIZE_PERF", "banana"}, {"RIDGE_THREADS", "3"}};
  s.words = {"optimize_perf=false"};
  EXPECT_EQ(error_of(s), "") << "stronger sources decide";
  s.words = {"optimize_perf=apple"};
  EXPECT_EQ(error_of(s),
            "[config] environment OPTIMIZE_PERF: optimize_perf is 'banana', but must be true or false\n"
            "[config] command line: optimize_perf is 'apple', but must be true or false");
  s.words = {};
  s.environment = {{"RIDGE_ISA", "avx2"}};
  EXPECT_EQ(error_of(s), "");
}

TEST_F(Resolve, EveryErrorNamesPlaceAndRemedy) {
  const auto yaml = [&](std::string_view text) {
    Sources s = sources();
    s.files = {write("x.yaml", text)};
    return error_of(s);
  };
  const auto word = [&](const std::string& text, unsigned task = kAllTasks) {
    Sources s = sources();
    s.task = task;
    s.words = {text};
    return error_of(s);
  };
  const std::string x = (folder_ / "x.yaml").string();
  EXPECT_EQ(yaml("a: 1\n\nbacth: 3\n"), fmt::format("[config] {0}:1: {1}\n[config] {0}:3: unknown key 'bacth'; did you mean 'batch'?", x, unknown_key("a")));
  EXPECT_EQ(yaml("trainig: {batch: 1, lr: 2}\n"), fmt::format("[config] {}:1: unknown section 'trainig'; did you mean 'training'?", x));
  EXPECT_EQ(yaml("seed: 1\ntrainig:\n  batch: 1\n"), fmt::format("[config] {}:2: unknown section 'trainig'; did you mean 'training'?", x));
  EXPECT_EQ(yaml("seed: 1\ntrainig: {}\n"), fmt::format("[config] {}:2: unknown section 'trainig'; did you mean 'training'?", x));
  EXPECT_EQ(yaml("trainig: {model: {width: 1}, lr: 2}\n"), fmt::format("[config] {}:1: unknown section 'trainig'; did you mean 'training'?", x));
  EXPECT_EQ(yaml("training:\n#  batch: 1\nlogging: ~\nmodel: {}\n"), "");
  EXPECT_EQ(yaml("seed: 1\nbatch: x\n"), fmt::format("[config] {}:2: batch is 'x', but must be a whole number from 1 to 1000000000, or auto", x));
  EXPECT_EQ(yaml("training: {learning_rate: -1}\n"), fmt::format("[config] {}:1: learning_rate (lr) is '-1', but must be a number from 0 to 1000, or auto", x));
  EXPECT_EQ(yaml("batch: [1, 2]\n"), fmt::format("[config] {}:1: batch is a list of 2, but must be a whole number from 1 to 1000000000, or auto", x));
  EXPECT_EQ(yaml("batch: 1\ntraining:\n  batch_size: 2\n"),
            fmt::format("[config] {}:3: 'batch' is set twice: as batch in line 1, as batch_size in line 3; remove one", x));
  EXPECT_EQ(yaml("batch: 1\nbatch: 1\n"), fmt::format("[config] {}:2: 'batch' is set twice: as batch in line 1, as batch in line 2; remove one", x));
  const auto ini = [&](std::string_view text) {
    Sources s = sources();
    s.files = {write("x.ini", text)};
    return error_of(s);
  };
  EXPECT_EQ(ini("[training]\n[trainig]\n[trainig]\nlr = 1\n"),
            fmt::format("[config] {}:2: unknown section 'trainig'; did you mean 'training'?", (folder_ / "x.ini").string()));
  EXPECT_EQ(ini("[nothing]\n"),
            fmt::format("[config] {}:1: {}", (folder_ / "x.ini").string(),
                        "unknown section 'nothing'; valid: gpu, memory_management, precision, threads, backend, dataset, training, model, paths, logging"));
  EXPECT_EQ(ini("[]\n").find(fmt::format("[config] {}:1: unknown section ''; valid: ", (folder_ / "x.ini").string())), 0u);
  EXPECT_EQ(word("bach=1"), "[config] command line: unknown key 'bach'; did you mean 'batch'?");
  EXPECT_EQ(word("--bach"), "[config] command line: unknown key 'bach'; did you mean 'batch'?");
  EXPECT_EQ(word("fast"), "[config] command line: 'fast' is not a setting; write key=value");
  EXPECT_EQ(word("-b=1"), "[config] command line: '-b=1' is not a setting; write key=value");
  EXPECT_EQ(word("--batch"), "[config] command line: --batch needs a value: a whole number from 1 to 1000000000, or auto");
  EXPECT_EQ(word("heads=2", task_bit("cfc")), "[config] command line: 'heads' is a key of gpt, not of cfc");
  EXPECT_EQ(word("device=cud"), "[config] command line: device is 'cud', but must be auto, cpu, cuda, cuda:N or metal; did you mean 'cuda'?");
  Sources s = sources();
  s.environment = {{"RIDGE_BACTH", "1"}, {"RIDGE_LR", "x"}};
  EXPECT_EQ(error_of(s),
            "[config] environment RIDGE_BACTH: unknown variable; did you mean 'RIDGE_BATCH'?\n[config] environment RIDGE_LR: lr is 'x', but must be a number "
            "from 0 to 1000, or auto");
  s = sources();
  s.tuned = {{"btach", "1"}};
  EXPECT_EQ(error_of(s), "") << "another version of Ridge may have written it";
  ASSERT_EQ(resolve(s).notes().size(), 1u);
  EXPECT_EQ(resolve(s).notes()[0].text, "btach has no effect: unknown key 'btach'; did you mean 'batch'?");
  s = sources();
  s.files = {folder_ / "none.yaml"};
  EXPECT_EQ(error_of(s), fmt::format("[config] {}: does not exist", (folder_ / "none.yaml").string()));
}

TEST_F(Resolve, TwoNamesOfOneKeyAreAnErrorOnTheCommandLine) {
  Sources s = sources();
  s.words = {"lr=1e-3", "--learning-rate", "2e-3"};
  EXPECT_EQ(error_of(s), "[config] command line: 'lr' is set twice: as lr and as learning_rate; remove one");
  s.words = {"--out_dir=a", "out=b"};
  EXPECT_EQ(error_of(s), "[config] command line: 'out' is set twice: as out_dir and as out; remove one");
  // The last of several settings with the same name wins, so that a script's setting can be overridden.
  s.words = {"lr=1e-3", "--lr", "2e-3", "--bias", "--no-bias", "batch_size=3", "batch-size=4"};
  const Resolved r = resolve(s);
  EXPECT_EQ(r.get<double>("lr"), 2e-3);
  EXPECT_FALSE(r.get<bool>("bias"));
  EXPECT_EQ(r.get<int64_t>("batch"), 4);
  // A command's own arguments are not part of the line.
  s.words = {"num_seeds=3", "batch_size=5"}, s.assumed = {"batch=2", "seed=7"}, s.decided = {"seeds=1"};
  const Resolved own = resolve(s);
  EXPECT_EQ(own.get<int64_t>("seeds"), 1);
  EXPECT_EQ(own.get<int64_t>("batch"), 5);
  EXPECT_EQ(own.get<int64_t>("seed"), 7);
}

TEST_F(Resolve, MapsOrExplainsNamesOfOtherPrograms) {
  auto error = [&](const std::string& word) {
    Sources s = sources();
    s.words = {word};
    return error_of(s);
  };
  Sources s = sources();
  s.words = {"allow_tf32=true", "pin_memory=false"};
  Resolved r = resolve(s);
  EXPECT_EQ(r.get<std::string>("matmul_precision"), "high");
  EXPECT_FALSE(r.get<bool>("enable_pinned_memory"));
  s.words = {"--allow-tf32=False"};
  EXPECT_EQ(resolve(s).get<std::string>("matmul_precision"), "highest");
  EXPECT_EQ(error("cudnn_benchmark=true"),
            "[config] command line: 'cudnn_benchmark' cannot be set: kernels are always chosen by measurement; optimize_perf=false turns measuring off");
  for (const char* word : {"memory_format=channels_last", "--channels-last", "cudnn.benchmark=1", "gradient_checkpointing=true"})
    EXPECT_NE(error(word).find("cannot be set: "), std::string::npos) << error(word);
  EXPECT_EQ(error("zebra=1"), "[config] command line: unknown key 'zebra'; ridge config keys lists all");

  s = sources();
  write("config_gpu.ini", "[backend]\nallow_tf32 = true\ncudnn_benchmark = true\nmemory_format = channels_last\n");
  r = resolve(s);
  EXPECT_EQ(r.get<std::string>("matmul_precision"), "high");
  ASSERT_EQ(r.notes().size(), 2u) << "files are for other programs too";
  EXPECT_NE(r.notes()[0].text.find("cudnn_benchmark has no effect: kernels are always chosen"), std::string::npos);
}

TEST_F(Resolve, RejectsUnsupportedSettingsWithAReason) {
  for (const char* word : {"streaming_transfer=true", "--no-streaming-transfer", "offload_parameters=true", "--offload-parameters=false"}) {
    Sources s = sources();
    s.words = {word};
    EXPECT_NE(error_of(s).find("cannot be set: "), std::string::npos) << word << error_of(s);
  }
  Sources s = sources();
  s.environment = {{"RIDGE_OFFLOAD_PARAMETERS", "true"}};
  EXPECT_NE(error_of(s).find("environment RIDGE_OFFLOAD_PARAMETERS: cannot be set: weights stay on the device"), std::string::npos) << error_of(s);
  s = sources();
  s.files = {write("x.ini", "offload_parameters = true\nstreaming_transfer = no\n")};
  EXPECT_NE(error_of(s).find("x.ini:1: offload_parameters cannot be set: weights stay on the device; offload_optimizer=true"), std::string::npos)
      << error_of(s);
  EXPECT_NE(error_of(s).find("x.ini:2: streaming_transfer cannot be set: "), std::string::npos) << error_of(s);
  // A value that requests nothing, as in every older run's settings.
  s.files = {write("x.yaml", "offload_parameters: false\nstreaming_transfer: true\n")};
  EXPECT_EQ(error_of(s), "");
  EXPECT_TRUE(resolve(s).notes().empty());
}

TEST_F(Resolve, PrecisionCanBeSetForSingleDevices) {
  Sources s = sources();
  s.words = {"precision.cuda=bf16", "--precision.cpu", "fp32"};
  Resolved r = resolve(s);
  EXPECT_EQ(r.precision_key("cuda:1"), "precision.cuda");
  EXPECT_EQ(r.get<std::string>("precision.cuda"), "bf16");
  EXPECT_EQ(r.get<std::string>(r.precision_key("cpu")), "fp32");
  EXPECT_EQ(r.precision_key("metal"), "precision");
  for (const char* text :
       {"precision: {cuda: bf16, cpu: float32}\n", "precision.cuda: bf16\nprecision.cpu: fp32\n", "precision_cuda: bf16\nprecision:\n  cpu: fp32\n"}) {
    s = sources();
    s.files = {write("x.yaml", text)};
    r = resolve(s);
    EXPECT_EQ(r.get<std::string>("precision.cuda"), "bf16") << text;
    EXPECT_EQ(r.get<std::string>("precision.cpu"), "fp32") << text;
    EXPECT_EQ(r.setting("precision.cuda").source, (folder_ / "x.yaml:1").string());
  }
  for (const char* text : {"precision.cuda = bf16\n", "[precision]\ncuda = bf16\n", "[gpu]\nprecision.cuda = bf16\n"}) {
    s = sources();
    s.files = {write("x.ini", text)};
    EXPECT_EQ(resolve(s).get<std::string>("precision.cuda"), "bf16") << text;
  }
  s.environment = {{"RIDGE_PRECISION_CUDA", "fp16"}};
  EXPECT_EQ(resolve(s).get<std::string>("precision.cuda"), "fp16");
  // A stronger source's setting for all devices overrides this one's too; within one source the device's own setting is stronger.
  s.words = {"precision=fp32", "precision.cpu=bf16"};
  r = resolve(s);
  EXPECT_EQ(r.precision_key("cuda"), "precision");
  EXPECT_EQ(r.setting("precision.cuda").source, "command line");
  EXPECT_EQ(r.precision_key("cpu"), "precision.cpu");
}

TEST_F(Resolve, RemarksOnKeysOfOtherTasksInFiles) {
  Sources s = sources();
  s.task = task_bit("ppo");
  write("train.yaml", "heads: 2\nbatch: 3\nlr: null\nnorm: rms\n");
  s.environment = {{"RIDGE_MIN_TFLOPS", "2"}};
  const Resolved r = resolve(s);
  ASSERT_EQ(r.notes().size(), 3u);
  EXPECT_EQ(r.notes()[0].text, "lr has no value and is ignored");
  EXPECT_EQ(r.notes()[1].text, "keys of other tasks have no effect: heads, norm");
  EXPECT_EQ(r.notes()[2].text, "has no effect: min_tflops is a key of machine");
  for (const Row& row : r.describe({})) EXPECT_TRUE(row.key->tasks & s.task);
}

TEST_F(Resolve, GettersRejectWrongNamesAndTypes) {
  Sources s = sources();
  s.words = {"threads=performance", "batch=12", "data=a,b"};
  const Resolved r = resolve(s);
  EXPECT_EQ(r.get<double>("batch"), 12.0);
  EXPECT_EQ(r.get<std::optional<int64_t>>("batch"), 12);
  EXPECT_EQ(r.get<std::optional<int64_t>>("threads"), std::nullopt);
  EXPECT_EQ(r.get<std::optional<double>>("min_tflops"), std::nullopt);
  EXPECT_EQ(r.get<std::string>("batch"), "12");
  EXPECT_EQ(r.get<std::string>("data"), "a, b");
  EXPECT_EQ(r.get<std::optional<int64_t>>("memory"), std::nullopt);
  EXPECT_THROW(r.get<int64_t>("no_such_key"), Error);
  EXPECT_THROW(r.get<int64_t>("batch_size"), Error) << "aliases are for files";
  EXPECT_THROW(r.get<int64_t>("threads"), Error);
  EXPECT_THROW(r.get<std::optional<int64_t>>("device"), Error);
  EXPECT_THROW(r.get<int64_t>("lr"), Error);
  EXPECT_THROW(r.get<bool>("batch"), Error);
  EXPECT_THROW(r.get<std::vector<std::string>>("out"), Error);
  EXPECT_THROW(r.setting("nothing"), Error);
}

TEST_F(Resolve, RowsShowOverridesAndMissingEffects) {
  write("config_gpu.ini", "enable_pinned_memory = true\ndevice = cuda\nthreads = 64\noffload_optimizer = yes\nprecision = tf32\nmatmul_precision = high\n");
  Sources s = sources();
  s.words = {"threads=32"};
  const Resolved r = resolve(s);
  auto rows = [&](const MachineFacts& machine) {
    std::map<std::string, Row> all;
    for (const Row& row : r.describe(machine)) all.emplace(row.key->name, row);
    return all;
  };
  auto here = rows({.cpus = 2}), there = rows({.cuda = true, .cpus = 128});
  std::set<std::string_view> names;
  for (const Key& key : keys()) names.insert(key.name);
  EXPECT_EQ(here.size(), names.size());
  for (const char* key : {"enable_pinned_memory", "device", "offload_optimizer", "precision", "matmul_precision", "threads"}) {
    EXPECT_FALSE(here.at(key).remark.empty()) << key;
    EXPECT_NE(here.at(key).remark, "accepted, not used yet") << key;
    EXPECT_NE(there.at(key).remark, here.at(key).remark) << key;
  }
  EXPECT_EQ(here.at("threads").remark, "more than the 2 CPUs available to this process");
  EXPECT_EQ(here.at("threads").overrode, std::vector<std::string>{"64 (" + (folder_ / "config_gpu.ini:3").string() + ")"});
  EXPECT_EQ(here.at("pin_memory_ratio").remark, "") << "nobody asked for it";
  EXPECT_EQ(here.at("pin_memory_ratio").source, "default");
}

TEST_F(Resolve, TheYamlOfARunRoundTrips) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    Sources s = sources();
    s.task = task_bit(round % 2 ? "cfc" : "gpt");
    s.words = {"out=a \"b\" \\ 'c' # ü: {x}"};
    if (round % 2 == 0) s.words.push_back("init_from=~");
    for (const Key& key : keys())
      if ((key.tasks & s.task) && random() % 2 && key.name != "out")
        s.words.push_back(fmt::format("{}={}", key.name, random() % 2 ? samples(key).first : samples(key).second));
    const Resolved first = resolve(s);
    Sources again;
    again.task = s.task;
    again.working_folder.reset();
    again.files = {write("config.yaml", first.to_yaml())};
    const Resolved second = resolve(again);
    EXPECT_TRUE(second.notes().empty());
    for (const Key& key : keys()) {
      if (!(key.tasks & s.task)) continue;
      EXPECT_EQ(second.setting(key.name).value, first.setting(key.name).value) << key.name << "\n" << first.to_yaml();
      EXPECT_TRUE(second.setting(key.name).source.starts_with(again.files[0].string()) || second.setting(key.name).source.starts_with("preset")) << key.name;
    }
  }
}

TEST_F(Resolve, CheckReportsEveryProblemOfAFile) {
  const FileReport bad =
      check_file(write("x.ini", "[gpu]\ndevic = 1\ndevice = cud\n[gpus]\na = 1\nb = 2\nnonsense\nmemory_fraction = 2\nseed = 1\nseed = 2\n"));
  std::vector<std::string> places;
  for (const std::string& p : bad.problems) places.push_back(p.substr((folder_ / "x.ini:").string().size(), 2));
  EXPECT_EQ(places, (std::vector<std::string>{"2:", "3:", "4:", "7:"})) << "the whole section [gpus] is told once, where it begins";
  std::string many;
  for (int i = 0; i < 100'000; ++i) many += "k=1\n";
  EXPECT_EQ(check_file(write("many.ini", many)).problems.size(), 101u);
  const FileReport good = check_file(write("y.yaml", "seed: 1\nepochs: 3\nlr: ~\n"));
  EXPECT_TRUE(good.problems.empty());
  EXPECT_EQ(good.keys, 1u);
  EXPECT_EQ(good.notes.size(), 2u);
}

TEST_F(Resolve, MutatedFilesNeverCrash) {
  std::mt19937 random(5);
  std::string seed;
  for (const Key& key : keys()) seed += fmt::format("{}: \"{}\"\n", key.name, samples(key).first);
  for (int i = 0; i < 300; ++i) {
    std::string text = seed;
    for (int n = 0; n < 6; ++n) text[random() % text.size()] = char(random() % 3 ? 32 + random() % 95 : random());
    const auto path = write("fuzz.yaml", text);
    const FileReport report = check_file(path);
    EXPECT_TRUE(report.keys > 0 || !report.problems.empty());
    for (const std::string& problem : report.problems) {
      EXPECT_TRUE(problem.starts_with(path.string())) << problem;
      EXPECT_LT(problem.size(), 1000u);
    }
  }
}

// The file of a run says where each value came from; elsewhere a setting's origin is its source.
TEST_F(Resolve, ARunsFileKnowsTheOrigins) {
  Sources s = sources();
  s.task = task_bit("cfc"), s.words = {"data=sine", "units=7"};
  const Resolved first = resolve(s);
  Sources again;
  again.task = s.task, again.working_folder.reset(), again.words = {"steps=2"};
  again.files = {write("config.yaml", first.to_yaml())};
  const Resolved second = resolve(again);
  for (const char* key : {"data", "units", "backbone_units", "activation", "layers"}) {
    EXPECT_EQ(second.origin(key), first.setting(key).source) << key;
    EXPECT_TRUE(second.setting(key).source.starts_with(again.files[0].string())) << key;
  }
  EXPECT_EQ(second.origin("activation"), "preset sine");
  EXPECT_EQ(second.origin("steps"), "command line");
  std::filesystem::remove(again.files[0]);
  EXPECT_EQ(second.origin("units"), second.setting("units").source);
  again.files = {write("other.yaml", "units: 7  # preset sine\n")};
  EXPECT_EQ(resolve(again).origin("units"), again.files[0].string() + ":1") << "only a run's file is believed";
  again.files = {write("config.yaml", "# our settings\nunits: 7  # preset of our group\n")};
  EXPECT_EQ(resolve(again).origin("units"), again.files[0].string() + ":2") << "not every file of that name";
}

TEST_F(Resolve, KeepPathsMakesThemAbsolute) {
  const test::TempFolder folder;
  test::write_text(folder / "own.txt", "text");
  const std::filesystem::path here = std::filesystem::current_path(), file = std::filesystem::path(folder / "own.txt");
  Sources sources;
  sources.task = task_bit("gpt"), sources.working_folder.reset();
  sources.words = {"data=" + std::filesystem::relative(file, here).string() + ",builtin,not_there.txt", "tokenizer=char"};
  Resolved resolved = resolve(sources);
  resolved.keep_paths();
  EXPECT_EQ(resolved.get<std::vector<std::string>>("data"), (std::vector<std::string>{file.lexically_normal().string(), "builtin", "not_there.txt"}));
  EXPECT_EQ(resolved.get<std::string>("tokenizer"), "char");
  EXPECT_EQ(resolved.setting("data").source, "command line");
}

}  // namespace
}  // namespace ridge::config
