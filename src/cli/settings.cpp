#include "cli/settings.h"

#include <memory>

namespace ridge::cli {

std::function<config::Sources()> add_settings(CLI::App& app, unsigned task) {
  auto files = std::make_shared<std::vector<std::string>>();
  app.add_option("--config", *files, "a configuration file (.ini, .yaml, .json); may be repeated, the last one wins")->expected(1)->take_all();
  app.allow_extras();
  app.footer("Settings are written as key=value, --key=value or --key value; ridge config keys lists them.");
  return [files, task, &app] {
    config::Sources sources;
    sources.task = task;
    sources.files.assign(files->begin(), files->end());
    sources.environment = config::process_environment();
    sources.words = app.remaining();
    return sources;
  };
}

}  // namespace ridge::cli
