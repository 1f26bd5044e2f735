// The summary at the end of a GPT run.
#include <fmt/core.h>

#include "base/text.h"
#include "tasks/gpt/run.h"
#include "tasks/gpt/task.h"
#include "train/checkpoint.h"

namespace ridge {
namespace {

bool has_checkpoint(const std::filesystem::path& folder) { return !CheckpointStore(folder / "checkpoints").steps().empty(); }

}  // namespace

void GptRun::add_to_summary(RunSummary& s) const {
  const Outcome& outcome = s.outcome;
  s.what = fmt::format("GPT of {} on {}", parameters_text(parameter_count()), data.name);
  if (outcome.best_val_loss) s.nats_per_character = nats_per_character(*this, *outcome.best_val_loss).value_or(0);
  s.possible = data.possible;
  s.sampled_tokens_s = sampled_seconds > 0 ? double(sampled_tokens) / sampled_seconds : 0;
  if (s.folder.empty()) return;
  const std::string folder = shell_word(s.folder.string());
  const bool diverged = outcome.end == Outcome::End::diverged;
  if (!diverged) s.files.push_back({"model/", "the last weights, in Hugging Face's GPT-2 form if possible"});
  if (trainer.keep_checkpoints) s.files.push_back({"checkpoints/", "to resume from, and the best weights"});
  s.files.insert(s.files.end(), {{"metrics.jsonl", "every step"}, {"train_loss.svg", "and val_loss.svg: losses as pictures"}, {"summary.json", "this"}});
  if (diverged) {
    s.next.push_back({fmt::format("ridge train gpt --config {} --no-resume --out {} lr={:g} min_lr=auto", shell_word((s.folder / "config.yaml").string()),
                                  shell_word(s.folder.string() + "_slower"), trainer.schedule.lr / 3),
                      "the same with a third of the learning rate"});
    return;
  }
  const char* endless = outcome.end == Outcome::End::target ? " target_loss=none" : "";
  const bool stories = data.name == "builtin";
  if (data.tokenizer) s.next.push_back({fmt::format("ridge sample {}{}", folder, stories ? " --prompt \"The\"" : ""), "more text"});
  if (!trainer.keep_checkpoints)
    s.next.push_back({fmt::format("ridge train gpt init_from={}{}", folder, stories ? "" : " data=…"), "a new run from these weights"});
  else if (outcome.state_lost_since && !has_checkpoint(s.folder))
    s.next.push_back({"ridge train gpt … --out DIR", "the same on a disk with more space: no checkpoint could be written"});
  else if (outcome.state_lost_since)
    s.next.push_back({fmt::format("ridge train gpt --resume {}", folder), fmt::format("resumes from step {}", *outcome.state_lost_since)});
  else if (outcome.steps < trainer.schedule.steps)
    s.next.push_back({fmt::format("ridge train gpt --resume {}{}", folder, endless), "resumes"});
  else
    s.next.push_back({fmt::format("ridge train gpt --resume {} steps={}{}", folder, 2 * outcome.steps, endless), "trains twice as long"});
  if (stories) s.next.push_back({"ridge train gpt data=my.txt", "a model of your own text"});
}

}  // namespace ridge
