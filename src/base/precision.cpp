#include "base/precision.h"

#include <array>
#include <string>

#include "base/error.h"
#include "base/nearest.h"
#include "base/text.h"

namespace ridge {

std::string_view name(Precision precision) {
  constexpr std::string_view kNames[] = {"fp32", "tf32", "bf16", "fp16"};
  return kNames[int(precision)];
}

std::optional<Precision> parse_precision(std::string_view text) {
  struct Word {
    std::string_view text;
    Precision precision;
  };
  constexpr Word kWords[] = {{"fp32", Precision::fp32}, {"float32", Precision::fp32}, {"f32", Precision::fp32},
                             {"tf32", Precision::tf32}, {"bf16", Precision::bf16},    {"bfloat16", Precision::bf16},
                             {"fp16", Precision::fp16}, {"float16", Precision::fp16}, {"f16", Precision::fp16}};
  const std::string word = lower_case(text);
  if (word == "auto") return {};
  for (const Word& w : kWords)
    if (word == w.text) return w.precision;
  constexpr std::array<std::string_view, 8> kNames = {"auto", "fp32", "float32", "tf32", "bf16", "bfloat16", "fp16", "float16"};
  const std::string hint = close_hint(word, kNames);
  fail(ErrorCode::usage, "[precision] unknown precision '{}'; {}{}valid: auto, fp32 (float32), tf32, bf16 (bfloat16), fp16 (float16)", text, hint,
       hint.empty() ? "" : " ");
}

}  // namespace ridge
