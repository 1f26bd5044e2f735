// Models round-trip through files, in GPT-2's or Llama's format if it can express them; other programs' files give the same logits.
#include "tasks/gpt/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/half.h"
#include "data/byte_tokenizer.h"
#include "data/char_tokenizer.h"
#include "gpt/models.h"
#include "io/npy.h"
#include "support/mutate.h"
#include "support/source_dir.h"
#include "support/temp_folder.h"
#include "tasks/gpt/sampler.h"
#include "train/checkpoint.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using test::largest_difference;
using test::Model;
using test::small_gpt;
using test::TempFolder;

CharTokenizer letters(int count) {
  std::vector<std::string> all;
  for (int i = 0; i < count; ++i) all.push_back(std::string(1, char('!' + i)));
  return CharTokenizer(all);
}

std::vector<float> values_of(const GptWeights& w, size_t index) {
  std::vector<float> out(size_t(w.parameters()[index].shape.numel()));
  w.copy(index, out);
  return out;
}

void expect_same(const GptWeights& w, const Model& model, const std::string& what) {
  const std::vector<Parameter> parameters = gpt_parameters(model.config);
  ASSERT_EQ(w.parameters().size(), parameters.size()) << what;
  for (size_t i = 0; i < parameters.size(); ++i) EXPECT_EQ(values_of(w, i), model.values[i]) << what << " " << parameters[i].name;
}

Json read_json(const fs::path& path) {
  std::ifstream in(path);
  return Json::parse(in);
}

ErrorCode error_of(const fs::path& folder, std::string* message = nullptr) {
  try {
    load_gpt_weights(folder);
  } catch (const Error& e) {
    if (message) *message = e.what();
    return e.code();
  }
  return ErrorCode::internal;
}

GptConfig small_llama() {
  GptConfig c = small_gpt();
  c.norm = GptConfig::Norm::rms, c.position = GptConfig::Position::rope, c.mlp = GptConfig::Mlp::swiglu;
  return c;
}

// The models of the other tests, and forms that matter only for files.
std::vector<test::NamedConfig> stored_forms() {
  std::vector<test::NamedConfig> out = test::gpt_forms();
  auto add = [&](const std::string& name, GptConfig c, auto change) {
    change(c);
    out.push_back({name, c});
  };
  add("llama", small_llama(), [](GptConfig&) {});
  add("llama untied", small_llama(), [](GptConfig& c) { c.tied = false, c.kv_heads = 1, c.hidden = 40, c.epsilon = 1e-6, c.rope_theta = 5e5; });
  add("epsilon", small_gpt(), [](GptConfig& c) { c.epsilon = 1e-6; });
  add("rope theta", small_gpt(), [](GptConfig& c) { c.position = GptConfig::Position::rope, c.rope_theta = 5e5, c.epsilon = 1e-6; });
  return out;
}

TEST(GptFiles, RoundTripInEveryForm) {
  for (const auto& [name, config] : stored_forms()) {
    const Model model(config);
    TempFolder folder;
    const CharTokenizer tokenizer = letters(37);
    const GptForm form = export_gpt(folder.path(), config, model.views(), &tokenizer);
    EXPECT_EQ(form == GptForm::gpt2, name == "plain" || name == "bias" || name == "untied" || name == "odd head" || name == "epsilon") << name;
    EXPECT_EQ(form == GptForm::llama, name == "all" || name.starts_with("llama")) << name;
    const GptWeights w = load_gpt_weights(folder.path());
    EXPECT_EQ(gpt_config_json(w.config), gpt_config_json(config)) << name;
    ASSERT_TRUE(w.tokenizer);
    EXPECT_EQ(w.tokenizer->json(), tokenizer.json());
    expect_same(w, model, name);
  }
}

TEST(GptFiles, HaveGpt2NamesAndZerosForMissingBiases) {
  const GptConfig c = small_gpt();
  const Model model(c);
  TempFolder folder;
  export_gpt(folder.path(), c, model.views(), nullptr);
  const Json json = read_json(folder / "config.json");
  EXPECT_EQ(json["model_type"], "gpt2");
  EXPECT_EQ(json["architectures"][0], "GPT2LMHeadModel");
  EXPECT_EQ(json["activation_function"], "gelu_new");
  EXPECT_EQ(json["n_positions"], c.block);
  const SafetensorsFile file(folder / "model.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.at("transformer.h.1.attn.c_attn.weight").shape, (Shape{32, 96}));
  EXPECT_EQ(file.at("transformer.h.0.mlp.c_proj.weight").shape, (Shape{128, 32}));
  EXPECT_EQ(file.at("transformer.wte.weight").shape, (Shape{37, 32}));
  EXPECT_EQ(file.find("lm_head.weight"), nullptr);
  const SafetensorView& bias = file.at("transformer.h.0.ln_1.bias");
  EXPECT_EQ(bias.shape, (Shape{32}));
  EXPECT_TRUE(std::all_of(bias.data.begin(), bias.data.end(), [](std::byte b) { return b == std::byte(0); }));
}

TEST(GptFiles, HaveLlamaNamesAndShapes) {
  GptConfig c = small_llama();
  c.heads = 4, c.kv_heads = 2, c.tied = false, c.hidden = 40;
  const Model model(c);
  TempFolder folder;
  EXPECT_EQ(export_gpt(folder.path(), c, model.views(), nullptr), GptForm::llama);
  const Json json = read_json(folder / "config.json");
  const Json wanted = {{"model_type", "llama"},        {"hidden_size", 32},    {"intermediate_size", 40}, {"num_attention_heads", 4},
                       {"num_key_value_heads", 2},     {"head_dim", 8},        {"rms_norm_eps", 1e-5},    {"rope_theta", 10000.0},
                       {"tie_word_embeddings", false}, {"hidden_act", "silu"}, {"attention_bias", false}, {"max_position_embeddings", 24}};
  for (const auto& [key, value] : wanted.items()) EXPECT_EQ(json[key], value) << key;
  EXPECT_EQ(json["architectures"][0], "LlamaForCausalLM");
  EXPECT_EQ(json["rope_parameters"]["rope_type"], "default");
  const SafetensorsFile file(folder / "model.safetensors");
  EXPECT_EQ(file.tensors().size(), 2u * 9 + 3);
  EXPECT_EQ(file.at("model.layers.1.self_attn.q_proj.weight").shape, (Shape{32, 32}));
  EXPECT_EQ(file.at("model.layers.0.self_attn.v_proj.weight").shape, (Shape{16, 32}));
  EXPECT_EQ(file.at("model.layers.0.mlp.up_proj.weight").shape, (Shape{40, 32}));
  EXPECT_EQ(file.at("model.layers.0.mlp.down_proj.weight").shape, (Shape{32, 40}));
  EXPECT_EQ(file.at("lm_head.weight").shape, (Shape{37, 32}));
  // Rows of c_attn: queries, keys, values; of c_fc: the gate, then the gated values.
  const auto index_of = [&](const std::string& name) {
    const std::vector<Parameter> all = gpt_parameters(c);
    return size_t(std::find_if(all.begin(), all.end(), [&](const Parameter& p) { return p.name == name; }) - all.begin());
  };
  const auto expect_rows = [&](const std::string& name, const std::string& parameter, int64_t first) {
    const SafetensorView& t = file.at(name);
    EXPECT_EQ(0, std::memcmp(t.data.data(), model.values[index_of(parameter)].data() + first * 32, t.data.size())) << name;
  };
  expect_rows("model.layers.1.self_attn.k_proj.weight", "transformer.h.1.attn.c_attn.weight", 32);
  expect_rows("model.layers.1.self_attn.v_proj.weight", "transformer.h.1.attn.c_attn.weight", 48);
  expect_rows("model.layers.1.mlp.gate_proj.weight", "transformer.h.1.mlp.c_fc.weight", 0);
  expect_rows("model.layers.1.mlp.up_proj.weight", "transformer.h.1.mlp.c_fc.weight", 40);
}

// The tokenizer class must be stored: by model type, transformers picks one that loses the blanks of a character vocabulary.
TEST(GptFiles, NameTheTokenizersClass) {
  const GptConfig c = small_gpt();
  const Model model(c);
  TempFolder folder;
  const CharTokenizer characters = letters(37);
  export_gpt(folder.path(), c, model.views(), &characters);
  EXPECT_EQ(read_json(folder / "tokenizer_config.json"),
            Json({{"tokenizer_class", "PreTrainedTokenizerFast"}, {"model_max_length", 24}, {"clean_up_tokenization_spaces", false}}));
  GptConfig wide = c;
  wide.vocab = 257;
  export_gpt(folder.path(), wide, Model(wide).views(), std::make_unique<ByteTokenizer>().get());
  const Json json = read_json(folder / "tokenizer_config.json");
  EXPECT_EQ(json["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(json["eos_token"], "<|endoftext|>");
  EXPECT_EQ(json["bos_token"], "<|endoftext|>");
}

TEST(GptFiles, AcceptVocabJsonAndMergesTxt) {
  const fs::path files = fs::path(source_dir()) / "tests/fixtures/gpt2_tokenizer";
  GptConfig c = small_gpt();
  c.vocab = 360;
  TempFolder folder;
  export_gpt(folder.path(), c, Model(c).views(), nullptr);
  EXPECT_FALSE(load_gpt_weights(folder.path()).tokenizer);
  fs::copy_file(files / "vocab.json", folder / "vocab.json");
  EXPECT_FALSE(load_gpt_weights(folder.path()).tokenizer);  // half a tokenizer is none
  fs::copy_file(files / "merges.txt", folder / "merges.txt");
  const GptWeights w = load_gpt_weights(folder.path());
  ASSERT_TRUE(w.tokenizer);
  EXPECT_EQ(w.tokenizer->vocab_size(), 360);
  EXPECT_EQ(w.tokenizer->end_of_text(), 359);
}

TEST(GptFiles, AreReadFromCheckpointsAndRuns) {
  GptConfig c = small_gpt();
  c.norm = GptConfig::Norm::rms;
  TempFolder run;
  const CharTokenizer tokenizer = letters(37);
  CheckpointStore store(run / "checkpoints");
  std::vector<Model> models;
  for (int step : {10, 20, 30}) models.emplace_back(c, uint64_t(step));
  const std::vector<Parameter> parameters = gpt_parameters(c);
  for (int i = 0; i < 3; ++i) {
    CheckpointContent content;
    content.step = 10 * (i + 1);
    for (size_t k = 0; k < parameters.size(); ++k) {
      SafetensorView view;
      view.name = parameters[k].name, view.shape = parameters[k].shape, view.data = std::as_bytes(std::span(models[size_t(i)].values[k]));
      content.tensors["model.safetensors"].push_back(view);
    }
    content.texts["config.json"] = gpt_config_json(c), content.texts["tokenizer.json"] = tokenizer.json();
    store.save(content, i == 1);
  }
  const GptWeights best = load_gpt_weights(run.path());
  expect_same(best, models[1], "best");
  ASSERT_TRUE(best.tokenizer);
  EXPECT_EQ(best.tokenizer->vocab_size(), 37);
  expect_same(load_gpt_weights(store.load(30).folder), models[2], "a checkpoint's folder");
}

TEST(GptFiles, LeaveOutRowsBeyondTheVocabulary) {
  const GptConfig c = small_gpt();
  Model model(c);
  std::vector<float> padded = model.values[0];
  padded.resize(padded.size() + 27 * 32, 99.f);
  std::vector<std::span<const float>> views = model.views();
  views[0] = padded;
  TempFolder folder;
  export_gpt(folder.path(), c, views, nullptr);
  const GptWeights w = load_gpt_weights(folder.path());
  expect_same(w, model, "padded");
  std::vector<float> room(padded.size(), 7.f);  // and back: what follows is unchanged
  w.copy(0, room);
  EXPECT_TRUE(std::equal(model.values[0].begin(), model.values[0].end(), room.begin()));
  EXPECT_EQ(room.back(), 7.f);
}

// A folder as other programs write it: any prefix, any dtype, buffers next to the weights.
struct Foreign {
  TempFolder folder;
  std::vector<std::vector<std::byte>> data;
  std::vector<SafetensorView> tensors;

  Foreign(const GptConfig& c, DType type, const std::string& prefix) {
    GptConfig with_bias = c;
    with_bias.bias = true;
    Json json = Json::parse(gpt_config_json(with_bias, GptForm::gpt2));
    json.erase("ridge");
    test::write_text(folder / "config.json", json.dump());
    const Model model(with_bias);
    TempFolder plain;
    export_gpt(plain.path(), with_bias, model.views(), nullptr);
    const SafetensorsFile file(plain / "model.safetensors");
    for (const SafetensorView& t : file.tensors())
      add(prefix + t.name.substr(t.name.find('.') + 1), type, t.shape, {reinterpret_cast<const float*>(t.data.data())});
  }
  void add(const std::string& name, DType type, const Shape& shape, const float* from) {
    std::vector<std::byte>& to = data.emplace_back(size_t(shape.numel() * size_of(type)));
    for (int64_t i = 0; i < shape.numel(); ++i) {
      if (type == DType::f32) {
        std::memcpy(to.data() + 4 * i, from + i, 4);
      } else {
        const uint16_t x = type == DType::bf16 ? f32_to_bf16(from[i]) : f32_to_f16(from[i]);
        std::memcpy(to.data() + 2 * i, &x, 2);
      }
    }
    SafetensorView view;
    view.name = name, view.dtype = type, view.shape = shape, view.data = to;
    tensors.push_back(view);
  }
  fs::path save() {
    write_safetensors(folder / "model.safetensors", tensors);
    return folder.path();
  }
};

TEST(GptFiles, AcceptOtherProgramsNamesAndStorage) {
  const GptConfig c = small_gpt();
  GptConfig with_bias = c;
  with_bias.bias = true;
  const Model model(with_bias);
  for (DType type : {DType::f32, DType::bf16, DType::f16})
    for (const char* prefix : {"", "transformer."}) {
      Foreign foreign(c, type, prefix);
      const std::vector<float> mask(24 * 24, 1.f);
      foreign.add(prefix + std::string("h.0.attn.bias"), DType::f32, {1, 1, 24, 24}, mask.data());
      foreign.add(prefix + std::string("h.1.attn.masked_bias"), DType::f32, {}, mask.data());
      foreign.add("lm_head.weight", type, {37, 32}, model.values[0].data());
      const GptWeights w = load_gpt_weights(foreign.save());
      EXPECT_TRUE(w.config.bias);
      for (size_t i = 0; i < model.values.size(); ++i) {
        const std::vector<float> got = values_of(w, i);
        for (size_t k = 0; k < got.size(); ++k) {
          const float x = model.values[i][k], want = type == DType::f32 ? x : type == DType::bf16 ? bf16_to_f32(f32_to_bf16(x)) : f16_to_f32(f32_to_f16(x));
          ASSERT_EQ(got[k], want) << name(type) << " " << w.parameters()[i].name << " " << k;
        }
      }
    }
}

TEST(GptFiles, ReportErrors) {
  const GptConfig c = small_gpt();
  std::string message;
  {
    Foreign f(c, DType::f32, "");
    std::erase_if(f.tensors, [](const SafetensorView& t) { return t.name == "h.1.ln_2.weight"; });
    EXPECT_EQ(error_of(f.save(), &message), ErrorCode::io);
    EXPECT_NE(message.find("h.1.ln_2.weight"), std::string::npos) << message;
  }
  {
    Foreign f(c, DType::f32, "");
    const float x[4] = {};
    f.add("h.2.ln_1.weight", DType::f32, {4}, x);
    EXPECT_EQ(error_of(f.save(), &message), ErrorCode::io);
    EXPECT_NE(message.find("h.2.ln_1.weight"), std::string::npos) << message;
  }
  {
    Foreign f(c, DType::f32, "");
    for (SafetensorView& t : f.tensors)
      if (t.name == "h.0.mlp.c_fc.weight") t.shape = {128, 32};  // not GPT-2's order
    EXPECT_EQ(error_of(f.save(), &message), ErrorCode::io);
    EXPECT_NE(message.find("[128, 32]"), std::string::npos) << message;
  }
  auto changed = [&](auto change) {
    Foreign f(c, DType::f32, "");
    const fs::path folder = f.save();
    Json json = read_json(folder / "config.json");
    change(json);
    test::write_text((folder / "config.json").string(), json.dump());
    return error_of(folder, &message);
  };
  EXPECT_EQ(changed([](Json& j) { j["model_type"] = "mamba"; }), ErrorCode::io);
  EXPECT_NE(message.find("llama"), std::string::npos) << message;
  EXPECT_EQ(changed([](Json& j) { j["model_type"] = "llama"; }), ErrorCode::io);
  EXPECT_EQ(changed([](Json& j) { j["activation_function"] = "relu"; }), ErrorCode::io);
  EXPECT_EQ(changed([](Json& j) { j["layer_norm_epsilon"] = -1e-3; }), ErrorCode::io);
  EXPECT_EQ(changed([](Json& j) { j["scale_attn_by_inverse_layer_idx"] = true; }), ErrorCode::io);
  EXPECT_EQ(changed([](Json& j) { j.erase("n_layer"); }), ErrorCode::io);
  EXPECT_EQ(changed([](Json& j) { j["n_head"] = 5; }), ErrorCode::io);
  EXPECT_EQ(changed([](Json& j) { j["n_embd"] = "wide"; }), ErrorCode::io);
  EXPECT_EQ(changed([](Json& j) { j["n_embd"] = -4; }), ErrorCode::io);
  EXPECT_EQ(changed([](Json& j) { j["vocab_size"] = 38; }), ErrorCode::io);
  EXPECT_EQ(changed([](Json& j) { j["ridge"]["bias"] = false; }), ErrorCode::io);  // its biases are not zero
  EXPECT_EQ(changed([](Json& j) { j = Json::array(); }), ErrorCode::io);
  TempFolder empty;
  EXPECT_EQ(error_of(empty.path(), &message), ErrorCode::io);
  EXPECT_EQ(error_of(empty / "nowhere"), ErrorCode::io);
  test::write_text(empty / "file", "x");
  EXPECT_EQ(error_of(empty / "file"), ErrorCode::io);
  fs::create_directory(empty / "checkpoints");
  EXPECT_EQ(error_of(empty.path()), ErrorCode::io);
  test::write_text(empty / "config.json", "{");
  EXPECT_EQ(error_of(empty.path()), ErrorCode::io);
  test::write_text(empty / "config.json", gpt_config_json(c));
  EXPECT_EQ(error_of(empty.path(), &message), ErrorCode::io);
  EXPECT_NE(message.find("model.safetensors"), std::string::npos) << message;
}

TEST(GptFiles, ReportUnsupportedLlamaFeatures) {
  TempFolder folder;
  const GptConfig c = small_llama();
  export_gpt(folder.path(), c, Model(c).views(), nullptr);
  const Json good = read_json(folder / "config.json");
  const auto expect = [&](const char* key, const Json& value, ErrorCode code, std::string_view part) {
    Json json = good;
    json[key] = value;
    test::write_text(folder / "config.json", json.dump());
    std::string message;
    EXPECT_EQ(error_of(folder.path(), &message), code) << key << " " << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect("hidden_act", "gelu", ErrorCode::io, "hidden_act is gelu");
  expect("attention_bias", true, ErrorCode::io, "attention_bias is true and mlp_bias is false");
  expect("mlp_bias", true, ErrorCode::io, "mlp_bias is true");
  expect("head_dim", 8, ErrorCode::io, "head_dim is 8");
  expect("rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}}, ErrorCode::io, "llama3");
  expect("rope_scaling", {{"type", "linear"}}, ErrorCode::io, "linear");
  expect("rope_parameters", {{"rope_type", "yarn"}}, ErrorCode::io, "yarn");
  expect("rope_parameters", {{"partial_rotary_factor", 0.5}}, ErrorCode::io, "a part of each head");
  expect("rope_parameters", 3, ErrorCode::io, "rope_parameters");
  expect("rope_theta", 0, ErrorCode::io, "rope_theta");
  expect("rms_norm_eps", "small", ErrorCode::io, "rms_norm_eps");
  expect("num_key_value_heads", 0, ErrorCode::io, "num_key_value_heads");
  expect("num_key_value_heads", 3, ErrorCode::io, "kv_heads 3");
  expect("intermediate_size", 0, ErrorCode::io, "intermediate_size");
  expect("intermediate_size", 87, ErrorCode::io, "mlp.gate_proj.weight");
  expect("num_hidden_layers", 3, ErrorCode::io, "model.layers.2");
  expect("num_hidden_layers", 1, ErrorCode::io, "model.layers.1");
  expect("num_attention_heads", 0, ErrorCode::io, "");
  expect("tie_word_embeddings", false, ErrorCode::io, "lm_head.weight");
  test::write_text(folder / "config.json", good.dump());
  EXPECT_EQ(error_of(folder.path()), ErrorCode::internal);  // no error: it is read
}

TEST(GptFiles, RejectFormsThatCannotExpressTheModel) {
  const auto refusal = [](const GptConfig& c, GptForm form) {
    TempFolder folder;
    try {
      export_gpt(folder.path(), c, Model(c).views(), nullptr, form);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      return std::string(e.what());
    }
    return std::string();
  };
  GptConfig mixed = small_llama();
  mixed.position = GptConfig::Position::learned;
  EXPECT_NE(refusal(mixed, GptForm::llama).find("Llama's form cannot express pos=learned;"), std::string::npos);
  EXPECT_NE(refusal(small_gpt(), GptForm::llama).find("norm=layer, pos=learned, mlp=gelu"), std::string::npos);
  GptConfig grouped = small_llama();
  grouped.kv_heads = 1;
  EXPECT_NE(refusal(grouped, GptForm::gpt2).find("norm=rms, pos=rope, mlp=swiglu, kv_heads=1"), std::string::npos);
  EXPECT_EQ(refusal(grouped, GptForm::llama), "");
  EXPECT_EQ(refusal(mixed, GptForm::own), "");
}

// However a config.json is corrupted, it is rejected with an error, or it describes a model.
TEST(GptFiles, DamagedConfigsAreRejectedOrCorrect) {
  std::mt19937 random(23);
  GptConfig grouped = small_llama();
  grouped.kv_heads = 1;
  const std::string good[] = {gpt_config_json(grouped, GptForm::llama), gpt_config_json(small_gpt(), GptForm::gpt2), gpt_config_json(grouped)};
  int refused = 0, accepted = 0;
  for (int round = 0; round < 600; ++round) try {
      const StoredGptConfig read = parse_gpt_config(test::mutated(good[round % 3], random), "config.json");
      EXPECT_TRUE(not_in_form(read.config, read.form).empty());
      ++accepted;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io) << e.what();
      ++refused;
    }
  EXPECT_GT(refused, 100);
  EXPECT_GT(accepted, 20);
  for (const char* key : {"hidden_size", "rope_parameters"}) {
    const std::string deep = R"({"model_type": "llama", ")" + std::string(key) + "\": " + std::string(200000, '[') + std::string(200000, ']') + "}";
    EXPECT_THROW(parse_gpt_config(deep, "config.json"), Error);
  }
}

TEST(GptFiles, RejectATokenizerWithMoreTokens) {
  const GptConfig c = small_gpt();
  const CharTokenizer tokenizer = letters(40);
  TempFolder folder;
  export_gpt(folder.path(), c, Model(c).views(), &tokenizer);
  EXPECT_EQ(error_of(folder.path()), ErrorCode::io);
}

// These folders of tests/fixtures were written by transformers (tools/model_exchange.py), which also computed the logits in f64.
constexpr const char* kTheirs[] = {"gpt2", "llama", "llama_tied"};

TEST(GptFiles, MatchTheLogitsOfTransformers) {
  for (const char* name : kTheirs) {
    const fs::path folder = fs::path(source_dir()) / "tests/fixtures" / name;
    const GptWeights w = load_gpt_weights(folder);
    const NpyArray tokens = read_npy((folder / "tokens.npy").string()), wanted = read_npy((folder / "logits.npy").string());
    std::vector<Token> text;
    for (size_t i = 0; i < size_t(tokens.shape.numel()); ++i) text.push_back(Token(reinterpret_cast<const int64_t*>(tokens.data.data())[i]));
    const std::span<const float> theirs(reinterpret_cast<const float*>(wanted.data.data()), size_t(wanted.shape.numel()));
    const auto parameters = std::make_shared<GptParameters>(w);
    const double most = largest_difference(test::full_logits(*parameters, text), theirs);
    RecordProperty(name, std::to_string(most * 1e6) + "e-6");
    EXPECT_LT(most, 2e-5) << name;
    GptSampler sampler(parameters, default_backend(), DType::f32);
    for (size_t i = 0; i < text.size(); ++i) {
      sampler.feed(std::span(text).subspan(i, 1));
      EXPECT_LT(largest_difference(sampler.logits(), theirs.subspan(i * 29, 29)), 2e-5) << name << " " << i;
    }
  }
}

// Writing a model read from transformers' files reproduces them: all tensors under their names, bit for bit, and an equivalent config.json. So whatever loads
// one loads the other.
TEST(GptFiles, MatchFilesWrittenByTransformers) {
  for (const char* name : kTheirs) {
    const fs::path theirs = fs::path(source_dir()) / "tests/fixtures" / name;
    const GptWeights w = load_gpt_weights(theirs);
    std::vector<std::vector<float>> values;
    std::vector<std::span<const float>> views;
    for (size_t i = 0; i < w.parameters().size(); ++i) values.push_back(values_of(w, i));
    for (const std::vector<float>& v : values) views.push_back(v);
    TempFolder ours;
    EXPECT_EQ(export_gpt(ours.path(), w.config, views, w.tokenizer.get()), name == std::string_view("gpt2") ? GptForm::gpt2 : GptForm::llama);
    const SafetensorsFile a((theirs / "model.safetensors").string()), b(ours / "model.safetensors");
    EXPECT_EQ(b.metadata().at("format"), "pt");
    EXPECT_EQ(a.tensors().size(), b.tensors().size());
    for (const SafetensorView& t : a.tensors()) {
      const SafetensorView* same = b.find(t.name);
      ASSERT_TRUE(same) << t.name;
      EXPECT_EQ(same->dtype, t.dtype) << t.name;
      EXPECT_EQ(same->shape, t.shape) << t.name;
      EXPECT_TRUE(std::ranges::equal(same->data, t.data)) << t.name;
    }
    const Json c = read_json(theirs / "config.json"), d = read_json(ours / "config.json");
    for (const char* key : {"architectures",
                            "model_type",
                            "vocab_size",
                            "n_positions",
                            "n_embd",
                            "n_layer",
                            "n_head",
                            "activation_function",
                            "layer_norm_epsilon",
                            "hidden_size",
                            "intermediate_size",
                            "num_hidden_layers",
                            "num_attention_heads",
                            "num_key_value_heads",
                            "head_dim",
                            "max_position_embeddings",
                            "rms_norm_eps",
                            "rope_parameters",
                            "hidden_act",
                            "attention_bias",
                            "mlp_bias"})
      EXPECT_EQ(nlohmann::json(c.value(key, Json())), nlohmann::json(c.contains(key) ? d.at(key) : Json())) << name << " " << key;
    EXPECT_EQ(c.value("tie_word_embeddings", true), d["tie_word_embeddings"].get<bool>()) << name;
  }
}

// 16-bit weights: the sampler matches a forward pass over the rounded weights, up to the rounding of keys, values and queries.
TEST(GptFiles, AreSampledWith16BitWeights) {
  for (const auto& [form, config] : test::gpt_forms())
    for (DType type : {DType::bf16, DType::f16}) {
      const Model model(config);
      TempFolder folder;
      export_gpt(folder.path(), config, model.views(), nullptr);
      const auto parameters = std::make_shared<GptParameters>(load_gpt_weights(folder.path()), type);
      std::vector<Token> tokens;
      for (int i = 0; i < 24; ++i) tokens.push_back(Token(i * 7 % 37));
      const std::vector<float> whole = test::full_logits(*parameters, tokens);
      Model rounded = model;
      rounded.spans.clear();
      const std::vector<Parameter> shapes = gpt_parameters(config);
      for (size_t i = 0; i < rounded.values.size(); ++i) {
        for (float& x : rounded.values[i])
          if (shapes[i].shape.rank() > 1) x = type == DType::bf16 ? bf16_to_f32(f32_to_bf16(x)) : f16_to_f32(f32_to_f16(x));
        rounded.spans.push_back(rounded.values[i]);
      }
      EXPECT_LT(largest_difference(whole, test::full_logits(*rounded.in_place(), tokens)), 2e-5) << form << " " << name(type);
      GptSampler sampler(parameters);
      const double unit = type == DType::bf16 ? 0x1p-8 : 0x1p-11;
      for (size_t i = 0; i < tokens.size(); ++i) {
        sampler.feed(std::span(tokens).subspan(i, 1));
        EXPECT_LT(largest_difference(sampler.logits(), std::span(whole).subspan(i * 37, 37)), 8 * unit) << form << " " << name(type) << " " << i;
      }
    }
}

}  // namespace
}  // namespace ridge
