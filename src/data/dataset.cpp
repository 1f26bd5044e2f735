#include "data/dataset.h"

#include "base/error.h"
#include "data/builtin.h"
#include "data/byte_tokenizer.h"
#include "data/find_source.h"
#include "data/text_tokens.h"
#include "data/token_cache.h"
#include "data/token_files.h"
#include "data/token_store.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

std::string name_of(const std::string& source) {
  std::error_code ignored;
  fs::path path = fs::absolute(source, ignored).lexically_normal();  // . and .. have names too
  if (!path.has_filename()) path = path.parent_path();
  return path.has_filename() ? path.filename().string() : source;
}

// Tokens that already exist; empty: the source is a text.
std::optional<Dataset> open_tokens(const std::string& source, const DatasetOptions& options) {
  std::error_code error;
  if (fs::is_directory(source, error)) {
    if (stored_key(source)) return open_store(source);
    if (has_nanogpt_files(source)) return open_nanogpt_files(source, options);
    if (const std::vector<std::string> shards = find_llmc_shards(source); !shards.empty()) return open_llmc_shards(shards, options);
    return {};
  }
  if (fs::exists(source, error)) {
    const fs::path path = source;
    if (path.filename() == "train.bin") return open_nanogpt_files(path.parent_path(), options);
    if (path.extension() == ".bin") return open_llmc_shards({source}, options);
    return {};
  }
  if (const std::vector<std::string> shards = find_llmc_shards(source); !shards.empty()) return open_llmc_shards(shards, options);
  return {};
}

void check_tokenizer(const Dataset& data, const DatasetOptions& options) {
  if (!data.tokenizer) return;
  const std::shared_ptr<const Tokenizer> asked = ready_tokenizer(options);
  if (asked ? asked->json() != data.tokenizer->json() : options.tokenizer != "auto" && options.tokenizer != data.tokenizer->name())
    fail(ErrorCode::io, "[data] {}: its {} tokenizer with {} tokens differs from the requested one, {}; use data with the same vocabulary, or the text itself",
         data.name, data.tokenizer->name(), data.vocab, asked ? fmt::format("{} with {}", asked->name(), asked->vocab_size()) : options.tokenizer);
}

void check_length(const Dataset& data, const DatasetOptions& options) {
  if (options.block <= 0) return;
  training_windows(data, 1, options.block, 0);  // throws with what is missing
  validation_windows(data, 1, options.block);
}

// A vocabulary learnt from this text would give tokens other than the model's; bytes are the same everywhere.
void refuse_learning(const DatasetOptions& options) {
  if (!options.model.empty() && options.tokenizer != "byte" && !ready_tokenizer(options))
    fail(ErrorCode::io, "[data] {} has no tokenizer.json: copy the model's there, or name it with tokenizer=FILE", options.model);
}

void check_given(const DatasetOptions& options) {
  if (options.model.empty() || !options.given || options.tokenizer == "auto" || options.tokenizer == options.given->name()) return;
  DatasetOptions asked = options;
  asked.given = nullptr;
  const std::shared_ptr<const Tokenizer> file = ready_tokenizer(asked);
  if (!file || file->json() != options.given->json())
    fail(ErrorCode::usage, "[data] {} has its own tokenizer, {} with {} tokens, which is not tokenizer={}; leave tokenizer out", options.model,
         options.given->name(), options.given->vocab_size(), options.tokenizer);
}

TokenRecipe recipe_of(const std::string& source, const DatasetOptions& options) {
  refuse_learning(options);
  return source == "builtin" ? builtin_recipe(options) : text_recipe(source, options);
}

std::string place_of(const std::string& source) {
  if (source.empty()) fail(ErrorCode::usage, "[data] no source; name a text file, a folder, or builtin");
  return source == "builtin" ? source : find_source(source, "check the name, or train on data=builtin");
}

Dataset finished(Dataset data, const std::string& source, const DatasetOptions& options) {
  data.name = name_of(source);
  check_length(data, options);
  return data;
}

}  // namespace

std::shared_ptr<const Tokenizer> model_tokenizer(const DatasetOptions& options) {
  check_given(options);
  refuse_learning(options);
  if (std::shared_ptr<const Tokenizer> ready = ready_tokenizer(options)) return ready;
  return std::make_shared<ByteTokenizer>();
}

Dataset open_dataset(const std::string& named, const DatasetOptions& options) {
  check_given(options);
  const std::string source = place_of(named);
  if (source != "builtin")
    if (std::optional<Dataset> tokens = open_tokens(source, options)) {
      tokens->name = name_of(source);
      check_tokenizer(*tokens, options);
      return finished(*std::move(tokens), source, options);
    }
  return finished(open_cached(recipe_of(source, options), options), source, options);
}

Dataset prepare_dataset(const std::string& named, const fs::path& out, const DatasetOptions& options) {
  const std::string source = place_of(named);
  if (source != "builtin" && open_tokens(source, options)) fail(ErrorCode::usage, "[data] {}: these are already tokens; train with data={}", source, source);
  return finished(make_in(out, recipe_of(source, options)), source, options);
}

}  // namespace ridge
