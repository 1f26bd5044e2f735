// Documentation generated from the key table.
#pragma once
#include <string>

namespace ridge::config {

std::string keys_markdown();  // docs/configuration.md
std::string keys_json();      // one document: an array of keys

}  // namespace ridge::config
