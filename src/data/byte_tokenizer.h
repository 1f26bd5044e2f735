// One token per byte, plus one for the end of a text. Works on any file and needs no training.
#pragma once
#include "data/special_tokens.h"
#include "data/tokenizer.h"

namespace ridge {

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer();

  std::string_view name() const override { return "byte"; }
  int64_t vocab_size() const override { return 257; }
  std::optional<Token> end_of_text() const override { return 256; }
  const SpecialTokens& special() const override { return special_; }
  void encode_to(std::vector<Token>& out, std::string_view text) const override;
  std::string_view bytes_of(Token token) const override;
  std::string json() const override;

 private:
  SpecialTokens special_;
  std::string bytes_;
};

}  // namespace ridge
