// ridge plan: what a training would hold, take and decide, without allocating or training anything.
#include <fmt/core.h>

#include "base/error.h"
#include "base/nearest.h"
#include "base/terminal.h"
#include "cli/command.h"
#include "cli/settings.h"
#include "runtime/default_team.h"
#include "train/gpt_report.h"
#include "train/run_state.h"

namespace ridge::cli {
namespace {

const Command plan_command("plan", "what a training would hold, take and decide; nothing is allocated", [](Line line) {
  auto task = std::make_shared<std::string>("gpt");
  auto json = std::make_shared<bool>(false);
  line.word("task", *task, "gpt");
  line.flag("--json", *json, "one JSON document on stdout");
  auto sources = add_settings(line, config::kGpt);
  return [=] {
    check_task(*task);
    config::Sources said = sources();
    config::Resolved settings = config::resolve(said);
    GptRunOptions options;
    options.resume = settings.get<bool>("resume");
    if (options.resume) {
      settings = resolve_resumed(said), options.folder = settings.get<std::string>("out");
      if (!newest_state(options.folder))
        fail(ErrorCode::usage, "[plan] {} has no checkpoint to go on from; plan without --resume, or name one of the runs that ridge runs lists",
             options.folder.string());
    } else {
      note_unused(settings, "plan");
    }
    request_default_threads(thread_request(settings));
    const auto data = settings.get<std::vector<std::string>>("data");
    options.data = data.empty() ? "builtin" : data.front();
    options.seed = uint64_t(settings.get<int64_t>("seed"));
    options.measure = settings.get<bool>("optimize_perf");
    options.probe = true;
    const GptRun run = settle_gpt_run(settings, options);
    fmt::print("{}", *json ? plan_json(run) : plan_text(run, {terminal_width(), use_colour()}));
    return kOk;
  };
});

}  // namespace
}  // namespace ridge::cli
