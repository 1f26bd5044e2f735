#include "data/tokenizer_file.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "config/words.h"
#include "data/byte_alphabet.h"
#include "data/byte_tokenizer.h"
#include "data/char_tokenizer.h"

namespace ridge {
namespace {

using config::shown;
using nlohmann::json;

// The parts of the file that describe how text is split and joined; {} are the added tokens and the model.
constexpr std::string_view kByteLevel = R"({{
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [{}],
  "normalizer": null,
  "pre_tokenizer": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}},
  "post_processor": null,
  "decoder": {{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}},
  "model": {{
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": false,
    "vocab": {{{}}},
    "merges": [{}]
  }}
}}
)";
constexpr std::string_view kCharactersName = R"({{
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [],
  "normalizer": null,
  "pre_tokenizer": {{"type": "Split", "pattern": {{"Regex": "[\\s\\S]"}}, "behavior": "Isolated", "invert": false}},
  "post_processor": null,
  "decoder": {{"type": "Fuse"}},
  "model": {{
    "type": "WordLevel",
    "vocab": {{{}}},
    "unk_token": "<unk>"
  }}
}}
)";

std::string lines(const std::vector<std::string>& items) { return items.empty() ? "" : fmt::format("\n      {}\n    ", config::join(items, ",\n      ")); }

std::string quoted(const std::string& utf8) { return json(utf8).dump(); }

std::string vocabulary_lines(const std::vector<std::string>& spellings) {
  std::vector<std::string> items;
  for (const std::string& spelling : spellings) items.push_back(fmt::format("{}: {}", quoted(spelling), items.size()));
  return lines(items);
}

// Special tokens are spelled literally, all others in the byte alphabet.
std::vector<std::string> spellings_of(const BpeVocabulary& vocabulary) {
  std::vector<std::string> out;
  for (const std::string& bytes : vocabulary.tokens) out.push_back(spell_bytes(bytes));
  for (const SpecialToken& special : vocabulary.special) out[size_t(special.token)] = special.text;
  return out;
}

// A merges.txt: its name, and the line of each of its rules.
struct MergesFile {
  const std::string& name;
  std::vector<size_t> lines;
};

// Reads one file; every error names it.
class TokenizerReader {
 public:
  TokenizerReader(json document, const std::string& name, const MergesFile* file) : document_(std::move(document)), name_(name), file_(file) {}

  std::unique_ptr<Tokenizer> read() const {
    if (!document_.is_object() || !document_.contains("model") || !document_["model"].is_object()) malformed("no \"model\"; is this a tokenizer.json?");
    const std::string type = type_of(model());
    if (type == "WordLevel") return read_characters();
    // Older files do not name the type.
    if (type != "BPE" && !(type.empty() && model().contains("merges"))) unsupported("model type", type);
    return read_bpe();
  }

 private:
  [[noreturn]] void malformed(const std::string& what) const { fail(ErrorCode::io, "[tokenizer] {}: {}", name_, what); }
  [[noreturn]] void unsupported(std::string_view what, std::string_view value) const {
    fail(ErrorCode::io, "[tokenizer] {}: {} {}; Ridge reads byte-level BPE with GPT-2's rule, and vocabularies of characters", name_, what, shown(value));
  }

  // Never prints nested values: a malicious file can be nested deeper than the stack.
  static std::string brief(const json& value) { return value.is_structured() ? fmt::format("{} {}", value.type_name(), type_of(value)) : value.dump(); }

  const json& model() const { return document_["model"]; }

  static const json& member(const json& object, const char* key) {
    static const json none;
    const auto found = object.is_object() ? object.find(key) : object.end();
    return found == object.end() ? none : *found;
  }

  static std::string type_of(const json& part) {
    const json& type = member(part, "type");
    return type.is_string() ? type.get<std::string>() : "";
  }

  // Absent, null, false, zero and empty text all mean that a feature is not used.
  static bool is_set(const json& value) { return !(value.is_null() || value == false || value == 0 || value == ""); }

  void refuse_set(const json& object, std::initializer_list<const char*> keys) const {
    for (const char* key : keys)
      if (const json& value = member(object, key); is_set(value)) unsupported(key, brief(value));
  }

  // The texts of a vocabulary by id; ids must be 0 .. n - 1.
  std::vector<std::string> read_vocabulary(const std::vector<SpecialToken>& added) const {
    const json& vocabulary = member(model(), "vocab");
    if (!vocabulary.is_object()) malformed("model.vocab is not an object");
    std::unordered_map<std::string, int64_t> ids;
    for (const auto& [text, id] : vocabulary.items()) ids.emplace(text, id_of(id));
    for (const SpecialToken& token : added)
      if (const auto [place, is_new] = ids.emplace(token.text, token.token); !is_new && place->second != token.token)
        malformed(fmt::format("the added token {} has the ids {} and {}", shown(token.text), place->second, token.token));
    std::vector<const std::string*> by_id(ids.size(), nullptr);
    for (const auto& [text, id] : ids) {
      if (size_t(id) >= by_id.size()) malformed(fmt::format("{} has the id {} in a vocabulary of {}; ids must be without gaps", shown(text), id, by_id.size()));
      if (by_id[size_t(id)]) malformed(fmt::format("the id {} is given twice", id));
      by_id[size_t(id)] = &text;
    }
    std::vector<std::string> out;
    for (const std::string* text : by_id) out.push_back(*text);
    return out;
  }

  Token id_of(const json& id) const {
    if (!id.is_number_integer() || id < 0 || id > 0x7fffffff) malformed(fmt::format("{} is not a token's id", shown(brief(id))));
    return id.get<Token>();
  }

  std::vector<SpecialToken> read_added() const {
    std::vector<SpecialToken> out;
    const json& added = member(document_, "added_tokens");
    if (!added.is_null() && !added.is_array()) malformed("added_tokens is not an array");
    for (const json& token : added) {
      refuse_set(token, {"single_word", "lstrip", "rstrip"});
      const json& content = member(token, "content");
      if (!content.is_string() || content == "") malformed("an added token has no content");
      out.push_back({id_of(member(token, "id")), content.get<std::string>()});
    }
    return out;
  }

  std::unique_ptr<Tokenizer> read_characters() const {
    if (type_of(member(document_, "pre_tokenizer")) != "Split") unsupported("model type", "WordLevel");
    if (!read_added().empty()) unsupported("added_tokens", "in a vocabulary of characters");
    refuse_set(document_, {"normalizer"});
    return std::make_unique<CharTokenizer>(read_vocabulary({}));
  }

  std::unique_ptr<Tokenizer> read_bpe() const {
    const json& words = member(document_, "pre_tokenizer");
    if (type_of(words) != "ByteLevel") unsupported("pre_tokenizer", brief(words));
    refuse_set(words, {"add_prefix_space"});
    if (const json& rule = member(words, "use_regex"); rule == false) unsupported("use_regex", "false");
    if (const json& decoder = member(document_, "decoder"); !decoder.is_null() && type_of(decoder) != "ByteLevel") unsupported("decoder", brief(decoder));
    refuse_set(document_, {"normalizer"});
    refuse_set(model(), {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges"});

    BpeVocabulary out;
    out.special = read_added();
    const std::vector<std::string> spellings = read_vocabulary(out.special);
    // Text that is not in the byte alphabet can only be the name of a token.
    for (const std::string& spelling : spellings) out.tokens.push_back(read_spelling(spelling).value_or(spelling));
    for (const SpecialToken& special : out.special) out.tokens[size_t(special.token)] = special.text;
    out.rules = read_merges(spellings);
    if (out == byte_vocabulary()) return std::make_unique<ByteTokenizer>();
    return std::make_unique<BpeTokenizer>(std::move(out));
  }

  std::vector<BpeRule> read_merges(const std::vector<std::string>& spellings) const {
    const json& merges = member(model(), "merges");
    if (!merges.is_array()) malformed("model.merges is not an array");
    std::unordered_map<std::string_view, Token> ids;
    for (const std::string& spelling : spellings) ids.emplace(spelling, Token(ids.size()));
    std::vector<BpeRule> out;
    const auto id = [&](const std::string& text) {
      const auto found = ids.find(text);
      if (found == ids.end()) malformed_merge(out.size(), fmt::format("a merge names {}, which is not in the vocabulary", shown(text)));
      return found->second;
    };
    std::unordered_map<std::string, size_t> seen;  // for a file with lines
    for (const json& merge : merges) {
      const auto [left, right] = halves(merge, out.size());
      if (file_)
        if (const auto [first, is_new] = seen.emplace(fmt::format("{} {}", left, right), out.size()); !is_new)
          malformed_merge(out.size(), fmt::format("the same merge as in line {}", file_->lines[first->second]));
      out.push_back({id(left), id(right), id(left + right)});
    }
    return out;
  }

  [[noreturn]] void malformed_merge(size_t index, const std::string& what) const {
    if (file_) fail(ErrorCode::io, "[tokenizer] {}:{}: {}", file_->name, file_->lines[index], what);
    malformed(what);
  }

  // "left right" or ["left", "right"].
  std::pair<std::string, std::string> halves(const json& merge, size_t index) const {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
      return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    if (merge.is_string()) {
      const std::string text = merge.get<std::string>();
      const size_t blank = text.find(' ');
      if (blank != std::string::npos && text.find(' ', blank + 1) == std::string::npos) return {text.substr(0, blank), text.substr(blank + 1)};
    }
    malformed_merge(index, fmt::format("{} is not a merge of two tokens", shown(merge.is_string() ? merge.get<std::string>() : brief(merge))));
  }

  const json document_;
  const std::string& name_;
  const MergesFile* file_;  // if the merges are not in the document itself
};

}  // namespace

std::string bpe_json(const BpeVocabulary& vocabulary) {
  const std::vector<std::string> spellings = spellings_of(vocabulary);
  std::vector<std::string> added, merges;
  for (const SpecialToken& special : vocabulary.special)
    added.push_back(fmt::format(R"({{"id": {}, "content": {}, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}})",
                                special.token, quoted(special.text)));
  for (const BpeRule& rule : vocabulary.rules) merges.push_back(quoted(fmt::format("{} {}", spellings[size_t(rule.left)], spellings[size_t(rule.right)])));
  return fmt::format(kByteLevel, lines(added), vocabulary_lines(spellings), lines(merges));
}

std::string characters_json(const std::vector<std::string>& characters) { return fmt::format(kCharactersName, vocabulary_lines(characters)); }

namespace {

// Runs a parser of untrusted text. If a tokenizer rejects the vocabulary, the file is at fault.
template <class Parse>
std::unique_ptr<Tokenizer> parse_file(std::string_view text, const std::string& name, const Parse& parse, const MergesFile* file = nullptr) {
  try {
    return TokenizerReader(parse(json::parse(text)), name, file).read();
  } catch (const json::parse_error& e) {
    fail(ErrorCode::io, "[tokenizer] {}: not JSON, or truncated: error at byte {} of {}", name, e.byte, text.size());
  } catch (const json::exception& e) {
    fail(ErrorCode::io, "[tokenizer] {}: {}", name, shown(e.what()));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::value) throw;
    fail(ErrorCode::io, "{} ({})", e.what(), name);
  }
}

}  // namespace

std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view text, const std::string& name) {
  return parse_file(text, name, [](json document) { return document; });
}

std::unique_ptr<Tokenizer> parse_vocab_and_merges(std::string_view vocab_json, std::string_view merges, const std::string& name,
                                                  const std::string& merges_name) {
  MergesFile file{merges_name, {}};
  auto document = [&](json vocab) {
    json rules = json::array(), added = json::array();
    size_t number = 0;
    for (size_t begin = 0, end = 0; begin < merges.size(); begin = end + 1) {
      ++number;
      end = std::min(merges.find('\n', begin), merges.size());
      std::string_view line = merges.substr(begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.empty() || (begin == 0 && line.starts_with("#version"))) continue;
      rules.push_back(std::string(line)), file.lines.push_back(number);
    }
    // GPT-2's only token that is not spelled in bytes.
    if (const std::string end(kEndOfText); vocab.is_object() && vocab.contains(end) && vocab[end].is_number())
      added.push_back({{"id", vocab[end]}, {"content", end}});
    return json{{"added_tokens", added},
                {"pre_tokenizer", {{"type", "ByteLevel"}}},
                {"model", {{"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", std::move(rules)}}}};
  };
  return parse_file(vocab_json, name, document, &file);
}

}  // namespace ridge
