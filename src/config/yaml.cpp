// Reads YAML files into entries, with yaml-cpp. Aliases are followed, but their expansion is bounded.
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <sstream>

#include <fmt/core.h>

#include "config/source_file.h"
#include "config/words.h"

namespace ridge::config {
namespace {

constexpr size_t kMaxNodes = 10'000;
constexpr int kDeepest = 4;
constexpr size_t kMaxProblems = 100;

class Reader {
 public:
  explicit Reader(FileContent& content) : content_(content) {}

  void map(const YAML::Node& node, const std::string& section, int depth) {
    for (const auto& pair : node) {
      if (full()) return;
      const int line = pair.first.Mark().line + 1;
      if (!pair.first.IsScalar()) {
        problem(line, "a key must be a plain word");
        continue;
      }
      const std::string& name = pair.first.Scalar();
      const YAML::Node& value = pair.second;
      if (name == "<<")
        problem(line, "merge keys (<<) are not supported; write the keys out");
      else if (!value.IsMap())
        entry(value, section, name, line);
      else if (depth == kDeepest)
        problem(line, fmt::format("{} is nested more than {} deep", shown(name), kDeepest));
      else
        inner(value, section.empty() ? name : section + "." + name, line, depth + 1);
    }
  }

 private:
  void inner(const YAML::Node& node, const std::string& section, int line, int depth) {
    content_.sections.push_back({section, line});
    map(node, section, depth);
  }

  void entry(const YAML::Node& value, const std::string& section, const std::string& name, int line) {
    Entry e{section, name, {}, value.IsSequence(), value.IsNull(), line};
    if (value.IsScalar()) e.values.push_back(value.Scalar());
    if (value.IsSequence())
      for (const auto& item : value) {
        if (full()) return;
        if (!item.IsScalar()) return problem(item.Mark().line + 1, fmt::format("{} contains something that is not a plain value", shown(name)));
        e.values.push_back(item.Scalar());
      }
    content_.entries.push_back(std::move(e));
  }

  // Counts visited nodes; true once the limit is reached.
  bool full() {
    if (++nodes_ == kMaxNodes) content_.problems.push_back({0, fmt::format("expands to more than {} values", kMaxNodes)});
    return nodes_ >= kMaxNodes;
  }

  void problem(int line, std::string what) {
    if (content_.problems.size() < kMaxProblems) content_.problems.push_back({line, std::move(what)});
  }

  FileContent& content_;
  size_t nodes_ = 0;
};

// Receives a document's events and records only the line where it begins.
class Listener : public YAML::EventHandler {
 public:
  int line = 0;

 private:
  using Mark = YAML::Mark;
  using Style = YAML::EmitterStyle::value;
  void OnDocumentStart(const Mark& mark) override { line = mark.line + 1; }
  void OnDocumentEnd() override {}
  void OnNull(const Mark&, YAML::anchor_t) override {}
  void OnAlias(const Mark&, YAML::anchor_t) override {}
  void OnScalar(const Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const Mark&, const std::string&, YAML::anchor_t, Style) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const Mark&, const std::string&, YAML::anchor_t, Style) override {}
  void OnMapEnd() override {}
};

// The line where a second document begins; 0: none. YAML::LoadAll would also work, but for some malformed texts it returns documents endlessly.
int second_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Listener first, second;
  return parser.HandleNextDocument(first) && parser.HandleNextDocument(second) ? second.line : 0;
}

}  // namespace

FileContent parse_yaml(std::string_view text) {
  FileContent content;
  try {
    if (const int line = second_document(std::string(text)); line > 0) {
      content.problems.push_back({line, "a second document begins; a configuration file has one"});
    } else if (const YAML::Node document = YAML::Load(std::string(text)); document.IsMap()) {
      Reader(content).map(document, {}, 1);
    } else if (!document.IsNull()) {
      content.problems.push_back({1, "is not a list of settings; write key: value"});
    }
  } catch (const YAML::DeepRecursion& error) {
    content.problems.push_back({error.mark.line + 1, "is nested too deeply"});
  } catch (const YAML::Exception& error) {
    content.problems.push_back({error.mark.line + 1, error.msg});
  } catch (const std::exception& error) {  // yaml-cpp lets some standard library exceptions escape
    content.problems.push_back({0, fmt::format("cannot be parsed: {}", error.what())});
  }
  return content;
}

}  // namespace ridge::config
