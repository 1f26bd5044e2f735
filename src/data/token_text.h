// Turns tokens into text as they arrive: a character spread over several tokens is held back until it is complete.
#pragma once
#include <memory>
#include <string>

#include "data/tokenizer.h"

namespace ridge {

class TokenText {
 public:
  explicit TokenText(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}

  std::string add(Token token);  // what can be shown now; bytes that are not UTF-8 are passed through
  std::string rest();            // what was held back

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string held_;
};

}  // namespace ridge
