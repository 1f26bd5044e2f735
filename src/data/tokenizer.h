// Text to tokens and back. Every tokenizer is stored as a Hugging Face tokenizer.json, which names its type.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ridge {

class SpecialTokens;
using Token = int32_t;

// Separates documents; never part of one.
constexpr std::string_view kEndOfText = "<|endoftext|>";

// Immutable, so it can be shared by threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string_view name() const = 0;  // "char", "byte" or "bpe"
  virtual int64_t vocab_size() const = 0;     // tokens are 0 .. vocab_size() - 1
  virtual std::optional<Token> end_of_text() const = 0;
  virtual const SpecialTokens& special() const;  // none by default

  // Appends the tokens of a text. Names of special tokens in the text become those tokens.
  virtual void encode_to(std::vector<Token>& out, std::string_view text) const = 0;
  // The bytes of a token, possibly only part of a character. ErrorCode::value: no such token.
  virtual std::string_view bytes_of(Token token) const = 0;
  virtual std::string json() const = 0;  // the text of tokenizer.json

  std::vector<Token> encode(std::string_view text) const;
  std::string decode(std::span<const Token> tokens) const;
};

// ErrorCode::io says what is wrong with the file, ErrorCode::unsupported which requested feature Ridge lacks.
std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json, const std::string& name = "tokenizer.json");
// GPT-2's two files: ids by spelling, and one merge per line.
std::unique_ptr<Tokenizer> parse_vocab_and_merges(std::string_view vocab_json, std::string_view merges, const std::string& name = "vocab.json",
                                                  const std::string& merges_name = "merges.txt");

// `path`: a tokenizer.json; a vocab.json or merges.txt with the other one in the same folder; or a folder with either form.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);
bool has_tokenizer(const std::filesystem::path& folder);
void save_tokenizer(const Tokenizer& tokenizer, const std::string& path);  // complete or absent: written to a temporary file, then renamed

}  // namespace ridge
