// Text out of tokens as they come: a character whose bytes are spread over several tokens is held back until it is whole.
#pragma once
#include <memory>
#include <string>

#include "data/tokenizer.h"

namespace ridge {

class TokenText {
 public:
  explicit TokenText(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}

  std::string add(Token token);  // what can be shown now; bytes that are no UTF-8 are passed on as they are
  std::string rest();            // what was held back

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string held_;
};

}  // namespace ridge
