#include "step/step_plan.h"

#include <charconv>

#include "backend/backend.h"
#include "base/error.h"
#include "step/train_step.h"

namespace ridge {

std::map<std::string, std::string> StepChoices::words() const {
  std::map<std::string, std::string> all = {{"batch", std::to_string(batch)},
                                            {"micro", std::to_string(micro)},
                                            {"evaluation", std::to_string(evaluation)},
                                            {"recompute", std::string(name(recompute))},
                                            {"precision", std::string(name(precision))},
                                            {"isa", isa}};
  if (!passes.empty()) all["passes"] = passes;
  return all;
}

StepChoices StepChoices::from_words(const std::map<std::string, std::string>& words) {
  auto word = [&](const char* key) -> const std::string& {
    const auto it = words.find(key);
    if (it == words.end()) fail(ErrorCode::io, "[step] the stored choices lack \"{}\"; they are from another version", key);
    return it->second;
  };
  auto unknown = [](const char* key, const std::string& value) { fail(ErrorCode::io, "[step] the stored choice {}={} is not known", key, value); };
  auto number = [&](const char* key) {
    const std::string& text = word(key);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0) unknown(key, text);
    return value;
  };
  StepChoices c;
  c.batch = number("batch"), c.micro = number("micro"), c.evaluation = number("evaluation");
  c.isa = word("isa");
  if (words.contains("passes")) c.passes = word("passes");
  const std::string &level = word("recompute"), &precision = word("precision");
  const std::optional<Recompute> recompute = parse_recompute(level);
  if (!recompute) unknown("recompute", level);
  c.recompute = *recompute;
  bool found = false;
  for (Precision p : {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16})
    if (name(p) == precision) c.precision = p, found = true;
  if (!found) unknown("precision", precision);
  return c;
}

bool same_device(const Backend& backend, const std::map<std::string, std::string>& choices) {
  const auto isa = choices.find("isa");
  return isa != choices.end() && isa->second == backend.info().what;
}

void reuse_choices(StepOptions& options, const std::map<std::string, std::string>& choices) {
  const StepChoices c = StepChoices::from_words(choices);
  options.micro = c.micro, options.evaluation_micro = c.evaluation, options.recompute = c.recompute, options.precision = c.precision;
  options.passes = c.passes;
}

}  // namespace ridge
