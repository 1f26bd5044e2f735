#include "config/document.h"

#include <algorithm>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "config/key.h"
#include "config/words.h"

namespace ridge::config {
namespace {

constexpr std::string_view kIntroduction = R"(# Configuration

Written by `ridge config keys --md`.

A key can be set in several places. The later ones of this list win:

1. the built-in default, and for the sizes of a model the preset,
2. the profile that tuning stored for this machine,
3. `config_gpu.ini`, looked for in the run folder, next to it, and in the working folder,
4. `train.yaml`, looked for in the same places,
5. `--config FILE`: `.ini`, `.yaml`, `.yml` or `.json` (JSON is YAML); may be given several times,
6. the environment: `RIDGE_` and the key in capitals, as `RIDGE_LR=1e-3`,
7. the command line: `key=value`, `--key=value`, `--key value`; for truth values also `--key` and `--no-key`. Options may stand before the command: `ridge --out run_x train gpt`.

`ridge config show` prints every value with its source and what it overrode, `ridge config check FILE` all problems of a file. An unknown key, a wrong type and a value out of
range are errors that name the file, the line and, if one is close, the name that was probably meant. A key that is set twice in one file is an error. On the command line the last
of several settings of one name wins, and two names of one key (`lr=1e-3 learning_rate=2e-3`) are an error. A key that has no effect on the chosen device says so in `ridge config
show`, `ridge plan` and `ridge train`.

`precision` can be set for single devices: `precision.cuda=bf16 precision.cpu=fp32`, in YAML also `precision: {cuda: bf16, cpu: fp32}`. Within one source the device's own setting wins;
a `precision` from a stronger source replaces the device settings of weaker ones.

Numbers may be written as `64`, `8k` (8000), `8Ki` (8192), `1e6` or `1_000`; sizes as `512MiB`, `2GB` or `2g` (2 GiB); truth values as `true`, `yes`, `on`, `1` and their opposites. Hyphens and underscores in keys
are the same. Values in an INI file may be quoted. A file may group keys in sections: `gpu`, `memory_management`, `precision`, `threads`, `backend`, `dataset`, `training`,
`model`, `paths` and `logging`. Which of them a key stands in does not matter, but another name is an error. Names that other programs use are accepted: `training.batch_size` is `batch`,
`dataset.path` is `data`, `allow_tf32` is `matmul_precision`, `device: mps` is `metal`. A well-known name without a counterpart (`cudnn_benchmark`, `memory_format`, `epochs` …) is an
error on the command line and a note in a file; both say why.
)";

std::string code(std::string_view text) { return text.empty() ? "" : fmt::format("`{}`", text); }

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) out += c == '|' ? "\\|" : std::string(1, c);
  return out;
}

std::string aliases_of(const Key& key) {
  std::vector<std::string> names;
  for (std::string_view alias : split(key.aliases, ' ')) names.push_back(code(alias));
  return join(names, " ");
}

}  // namespace

std::string keys_markdown() {
  std::string out(kIntroduction);
  std::string_view group;
  for (const Key& key : keys()) {
    if (key.group != group)
      out += fmt::format("\n## {}\n\n| key | value | default | meaning | also called | read by | used today by |\n|---|---|---|---|---|---|---|\n",
                         group = key.group);
    out += fmt::format("| `{}` | {} | {} | {} | {} | {} | {} |\n", key.name, escaped(expected(key)), code(key.initial), escaped(key.help), aliases_of(key),
                       names_of_tasks(key.tasks), key.used_by.empty() ? "–" : key.used_by);
  }
  out += "\n## Environment\n\nBesides `RIDGE_` and a key's name:\n\n| variable | meaning |\n|---|---|\n";
  for (const Key& key : keys())
    if (!key.foreign_variable.empty()) out += fmt::format("| `{}` | `{}`, unless `{}` is set |\n", key.foreign_variable, key.name, variable_of(key));
  for (const Switch& s : switches()) out += fmt::format("| `{}` | {} |\n", s.name, escaped(s.help));
  return out;
}

std::string keys_json() {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Key& key : keys()) {
    nlohmann::ordered_json row{{"key", key.name},        {"group", key.group},       {"type", name(key.type)},
                               {"default", key.initial}, {"expects", expected(key)}, {"help", key.help}};
    if (key.type == Type::integer || key.type == Type::real || key.type == Type::bytes) row.update({{"low", key.low}, {"high", key.high}});
    row["words"] = split(key.words, '|');
    row["aliases"] = split(key.aliases, ' ');
    row["variables"] = nlohmann::json::array({variable_of(key)});
    if (!key.foreign_variable.empty()) row["variables"].push_back(key.foreign_variable);
    row["read_by"] = names_of_tasks(key.tasks);
    row["used_by"] = key.used_by;
    all.push_back(std::move(row));
  }
  return all.dump(2);
}

}  // namespace ridge::config
