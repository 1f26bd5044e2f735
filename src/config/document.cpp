#include "config/document.h"

#include <algorithm>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "config/key.h"
#include "config/words.h"

namespace ridge::config {
namespace {

constexpr std::string_view kIntroduction = R"(# Configuration

To see every setting with its value and where it came from, and to check a file (`ridge config keys --md` writes this page):

```
$ ridge config show lr=3e-4
…
Training
  steps                  3000     preset tiny
  batch                  16       preset tiny
  accumulation           auto     default
  lr                     0.0003   command line  overrode 0.002 (preset tiny)
…
$ ridge config check train.yaml
train.yaml: 2 keys, all valid
```

## Where a value comes from

A key can be set in several places. Later ones win:

1. the built-in default, or the preset's value for the model's sizes and training settings
2. the choices that tuning stored for this machine
3. `config_gpu.ini` in the run folder, in its parent folder or in the working folder
4. `train.yaml` in the same places
5. `--config FILE`: `.ini`, `.yaml`, `.yml` or `.json` (read as YAML); may be repeated
6. the environment: `RIDGE_` and the key in capitals, such as `RIDGE_LR=1e-3`
7. the command line: `key=value`, `--key=value`, `--key value`; for booleans also `--key` and `--no-key`

Options may come before the command: `ridge --out run_x train gpt`.

`precision` can be set per device: `precision.cuda=bf16 precision.cpu=fp32`, or in YAML `precision: {cuda: bf16, cpu: fp32}`. Within one source the
device's own setting wins; a `precision` from a stronger source replaces the device settings of weaker ones.

## Errors

- An unknown key, a wrong type or a value out of range is an error that names the file, the line and the closest valid name.
- A key that is set twice in one file is an error. On the command line the last value wins, but two names for the same key
  (`lr=1e-3 learning_rate=2e-3`) are an error.
- A key that has no effect on the chosen device is reported by `ridge config show`, `ridge plan` and `ridge train`.
- A well-known name that Ridge has no equivalent for (`cudnn_benchmark`, `memory_format`, `epochs` …) is an error on the command line and a note in a
  file; both say why.

## How values are written

| kind | examples |
|---|---|
| number | `64`, `8k` (8000), `8Ki` (8192), `1e6`, `1_000` |
| size | `512MiB`, `2GB`, `2g` (2 GiB) |
| boolean | `true`, `yes`, `on`, `1`; `false`, `no`, `off`, `0` |
| key | hyphens and underscores are equivalent |

Values in an INI file may be quoted. A file may group keys in the sections `gpu`, `memory_management`, `precision`, `threads`, `backend`, `dataset`,
`training`, `model`, `paths` and `logging`. It does not matter which of these a key is in, but any other section name is an error. Other programs' names are
accepted: `training.batch_size` is `batch`, `dataset.path` is `data`, `allow_tf32` is `matmul_precision`, `device: mps` is `metal`.
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
      out += fmt::format("\n## {}\n\n| key | value | default | meaning | aliases | tasks | used by |\n|---|---|---|---|---|---|---|\n", group = key.group);
    out += fmt::format("| `{}` | {} | {} | {} | {} | {} | {} |\n", key.name, escaped(expected(key)), code(key.initial), escaped(key.help), aliases_of(key),
                       names_of_tasks(key.tasks), key.used_by.empty() ? "–" : key.used_by);
  }
  out += "\n## Environment\n\nVariables other than `RIDGE_` and a key's name:\n\n| variable | meaning |\n|---|---|\n";
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
