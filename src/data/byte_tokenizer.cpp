#include "data/byte_tokenizer.h"

#include "base/error.h"
#include "data/bpe.h"
#include "data/tokenizer_file.h"

namespace ridge {

ByteTokenizer::ByteTokenizer() : special_({{256, std::string(kEndOfText)}}) {
  for (int byte = 0; byte < 256; ++byte) bytes_ += char(byte);
}

void ByteTokenizer::encode_to(std::vector<Token>& out, std::string_view text) const {
  while (!text.empty()) {
    const SpecialToken* special = nullptr;
    for (char byte : special_.take_ordinary(text, special)) out.push_back(uint8_t(byte));
    if (special) out.push_back(special->token);
  }
}

std::string_view ByteTokenizer::bytes_of(Token token) const {
  if (token == 256) return kEndOfText;
  if (token < 0 || token > 256) fail(ErrorCode::value, "[tokenizer] token {} is not in 0 .. 256", token);
  return std::string_view(bytes_).substr(size_t(token), 1);
}

std::string ByteTokenizer::json() const { return bpe_json(byte_vocabulary()); }

}  // namespace ridge
