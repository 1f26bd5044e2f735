// Laws of the key table, and the documents generated from it.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "config/document.h"
#include "config/presets.h"
#include "config/samples.h"
#include "support/patterns.h"
#include "support/source_dir.h"

namespace ridge::config {
namespace {

std::string content_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

TEST(KeyTable, EveryNameIsUsedOnce) {
  for (const TaskName& task : task_names()) {  // in each task
    std::set<std::string> names;
    for (const Key& key : keys()) {
      if (!(key.tasks & task.task)) continue;
      EXPECT_TRUE(names.insert(std::string(key.name)).second) << key.name;
      for (std::string_view alias : split(key.aliases, ' ')) EXPECT_TRUE(names.insert(std::string(alias)).second) << alias;
    }
  }
  for (const Key& key : keys()) EXPECT_EQ(key.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_."), key.name.npos) << key.name;
}

TEST(KeyTable, EveryRowIsComplete) {
  std::set<std::string_view> groups;
  std::string_view group;
  for (const Key& key : keys()) {
    EXPECT_TRUE(parse_value(key, key.initial).value) << key.name << " " << parse_value(key, key.initial).problem;
    EXPECT_FALSE(key.help.empty()) << key.name;
    EXPECT_FALSE(key.help.ends_with('.')) << key.name;
    EXPECT_FALSE(expected(key).empty()) << key.name;
    EXPECT_TRUE(key.tasks != 0) << key.name;
    EXPECT_LE(key.low, key.high) << key.name;
    EXPECT_TRUE(key.type != Type::choice || split(key.words, '|').size() >= 2) << key.name;
    for (std::string_view pair : split(key.synonyms, ' ')) {
      const Parsed parsed = parse_value(key, pair.substr(0, pair.find('=')));
      EXPECT_TRUE(parsed.value && parsed.value->is(pair.substr(pair.find('=') + 1))) << key.name << " " << pair;
    }
    EXPECT_TRUE(key.group == group || groups.insert(key.group).second) << "group " << key.group << " is split";
    group = key.group;
  }
}

TEST(KeyTable, EveryAliasAndHyphenFindsItsKey) {
  for (const Key& key : keys()) {
    std::string hyphens(key.name);
    std::replace(hyphens.begin(), hyphens.end(), '_', '-');
    EXPECT_EQ(find_key(hyphens, key.tasks), &key) << key.name;
    for (std::string_view alias : split(key.aliases, ' ')) EXPECT_EQ(find_key(alias, key.tasks), &key) << alias;
  }
  EXPECT_EQ(find_key("no_such_key"), nullptr);
  EXPECT_EQ(find_key(""), nullptr);
  EXPECT_EQ(unknown_key("bacth"), "unknown key 'bacth'; did you mean 'batch'?");
  EXPECT_EQ(unknown_key("Learning-Rate"), "unknown key 'Learning-Rate'; did you mean 'learning_rate'?");
  EXPECT_EQ(unknown_key("zzzzzzzzzzzzzz"), "unknown key 'zzzzzzzzzzzzzz'; ridge config keys lists all");
  const std::string options[] = {"prompt", "json"};
  EXPECT_EQ(unknown_key("promt", options), "unknown key 'promt'; did you mean '--prompt'?");
  EXPECT_EQ(unknown_key("promt"), "unknown key 'promt'; ridge config keys lists all") << "preset is another word";
}

TEST(KeyTable, EveryPresetSetsValidKeys) {
  for (const char* name : {"gpt", "cfc"}) {
    const unsigned task = task_bit(name);
    for (std::string_view preset : split(find_key("preset", task)->words, '|')) {
      EXPECT_FALSE(preset_settings(preset).empty()) << preset;
      for (std::string_view word : split(preset_settings(preset), ' ')) {
        const Key* key = find_key(word.substr(0, word.find('=')), task);
        ASSERT_TRUE(key) << word;
        EXPECT_TRUE(parse_value(*key, word.substr(word.find('=') + 1)).value) << word;
        EXPECT_TRUE(key->tasks & task) << word;
      }
    }
  }
}

// What scripts may rely on.
TEST(KeyTable, HasTheKeysOfTraining) {
  constexpr std::string_view kNames =
      "preset data steps batch block layers heads kv_heads width dropout bias norm pos mlp lr min_lr warmup schedule weight_decay beta1 beta2 clip "
      "accumulation seed seeds precision device threads memory memory_fraction checkpoint_interval eval_interval sample_interval max_minutes "
      "target_loss init_from tokenizer tensorboard prefetch_factor enable_pinned_memory pin_memory_ratio empty_cache_frequency";
  for (const std::string_view name : split(kNames, ' ')) {
    const Key* key = find_key(name);
    ASSERT_TRUE(key) << name;
    EXPECT_EQ(key->name, name) << "its own name, not another's";
  }
}

TEST(KeyTable, KnowsEveryVariableThatTheSourceReads) {
  std::set<std::string> known;
  for (const Key& key : keys()) known.insert(variable_of(key));
  for (const Switch& s : switches()) {
    EXPECT_TRUE(known.insert(std::string(s.name)).second) << s.name << " is a key";
    EXPECT_FALSE(s.help.empty());
  }
  const test::Pattern variable("\"(RIDGE_[A-Z0-9_]*[A-Z0-9])\"");
  for (const char* folder : {"src", "tests"})
    for (const auto& entry : std::filesystem::recursive_directory_iterator(std::filesystem::path(source_dir()) / folder)) {
      if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h") continue;
      if (entry.path().parent_path().filename() == "config") continue;  // these tests use made-up names
      const std::string text = content_of(entry.path());
      for (const std::string& found : variable.all_in(text))
        EXPECT_TRUE(known.contains(found)) << found << " in " << entry.path() << " is neither a key nor a switch of src/config/keys.cpp";
    }
}

TEST(Documents, AreUpToDate) {
  const std::string path = source_dir() + "/docs/configuration.md";
  EXPECT_TRUE(content_of(path) == keys_markdown()) << "write it again: ridge config keys --md > docs/configuration.md";
}

TEST(Documents, NameEveryKeyAndVariable) {
  const std::string manual = keys_markdown();
  for (const Key& key : keys()) EXPECT_NE(manual.find(fmt::format("| `{}` |", key.name)), std::string::npos) << key.name;
  for (const Switch& s : switches()) EXPECT_NE(manual.find(fmt::format("`{}`", s.name)), std::string::npos) << s.name;
}

TEST(Documents, JsonContainsTheTable) {
  const auto all = nlohmann::json::parse(keys_json());
  ASSERT_EQ(all.size(), keys().size());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]["key"], keys()[i].name);
    EXPECT_EQ(all[i]["default"], keys()[i].initial);
  }
}

}  // namespace
}  // namespace ridge::config
