// SPDX-License-Identifier: Apache-2.0
// baechi what-if: what one more GPU, half the memory or a faster link would bring.
#include "baechi/study/what_if.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "apps/planning.h"
#include "apps/progress.h"
#include "baechi/base/error.h"
#include "baechi/base/short_text.h"
#include "baechi/io/text/quantity_text.h"
#include "baechi/report/text/study_text.h"
#include "baechi/study/cluster_edits.h"

namespace baechi::cli {
namespace {

struct WhatIfArguments {
  SizesArgument sizes;
  ClusterArgument cluster;
  StepRequest request;
  bool only_these = false, each_device = false;
  std::vector<std::string> clusters, memory, devices, links, speeds, batches;
};

Scenario memory_scenario(const ClusterSpec& cluster, const std::string& text) {
  const std::string name = "memory " + text;
  if (!text.ends_with('x'))
    return {name,
            in_option("--try-memory", [&] { return with_memory(cluster, parse_bytes(text)); })};
  const Factor factor = parse_factor("--try-memory", text.substr(0, text.size() - 1));
  return {name, in_option("--try-memory", [&] { return with_memory(cluster, factor); })};
}

Scenario link_scenario(const ClusterSpec& cluster, const std::string& text) {
  return {"link " + text, in_option("--try-link", [&] {
            ClusterSpec linked = cluster;
            linked.links = {parse_link(text)};
            return linked;
          })};
}

// What the options ask for, in the order of --help.
std::vector<Scenario> chosen(const WhatIfArguments& options, const ClusterSpec& cluster) {
  std::vector<Scenario> scenarios;
  for (const std::string& text : options.clusters)
    scenarios.push_back(
        {"cluster " + text, read_cluster({.cluster = text,
                                          .link = options.cluster.link,
                                          .communication = options.cluster.communication,
                                          .host_time = options.cluster.host_time,
                                          .sends = options.cluster.sends})});
  for (const std::string& text : options.devices)
    scenarios.push_back(
        {text + " devices",
         with_devices(cluster, parse_whole_number("--try-devices", text, 1, kMostTriedDevices))});
  for (const std::string& text : options.memory)
    scenarios.push_back(memory_scenario(cluster, text));
  for (const std::string& text : options.links) scenarios.push_back(link_scenario(cluster, text));
  for (const std::string& text : options.speeds) {
    const Factor factor = parse_factor("--try-speed", text);
    scenarios.push_back({"speed " + text + "x",
                         in_option("--try-speed", [&] { return with_speed(cluster, factor); })});
  }
  constexpr auto kMostBatch = static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
  for (const std::string& text : options.batches)
    scenarios.push_back(
        {"batch " + text, cluster,
         static_cast<std::int64_t>(parse_whole_number("--try-batch", text, 1, kMostBatch))});
  return scenarios;
}

ExitCode each_device(const std::vector<OpGraph>& sizes, const ClusterSpec& cluster,
                     const StepRequest& request, const RunContext& context) {
  std::optional<Progress> progress;
  const DevicesWorth worth = devices_worth(sizes, cluster, request, [&](const std::string& name) {
    progress.reset();
    progress.emplace("what if: " + name);
  });
  progress.reset();
  context.json ? print_result(device_worth_json(worth)) : print_text(device_worth_text(worth));
  return unless_stopped(worth.step.has_value() ? ExitCode::kOk : ExitCode::kDoesNotFit, context,
                        "other plans with fewer devices were not looked for");
}

ExitCode what_if(const WhatIfArguments& options, const RunContext& context) {
  const std::vector<OpGraph> sizes = load_sizes(options.sizes, context);
  const ClusterSpec cluster = read_cluster(options.cluster);
  if (!options.batches.empty() && !sizes.front().batch_size().has_value())
    throw InputError("--try-batch", "the graph has no batch_size: its costs cannot be scaled");
  const StepRequest request = request_of(options.request, context);
  print_scaling(sizes, request);
  const bool asks_more = options.only_these || !chosen(options, cluster).empty();
  if (options.each_device && asks_more)
    throw InputError("--devices", "asks a question of its own: leave out --only-these and --try");
  if (options.each_device) return each_device(sizes, cluster, request, context);
  std::vector<Scenario> scenarios = standard_scenarios(sizes, cluster, request);
  if (options.only_these) scenarios.resize(1, scenarios.front());
  for (Scenario& scenario : chosen(options, cluster)) scenarios.push_back(std::move(scenario));

  std::optional<Progress> progress;
  std::size_t number = 0;
  const std::vector<ScenarioOutcome> outcomes =
      run_scenarios(sizes, scenarios, request, [&](const Scenario& scenario) {
        progress.reset();
        progress.emplace("what if: " + scenario.name + ", " + std::to_string(++number) + " of " +
                         std::to_string(scenarios.size()));
      });
  progress.reset();
  context.json ? print_result(what_if_json(outcomes)) : print_text(what_if_text(outcomes));
  return unless_stopped(ExitCode::kOk, context,
                        count_text(outcomes.size()) + " of " + count_text(scenarios.size()) +
                            " scenarios, the last with the best plan so far");
}

Run declare_what_if(OptionSet& set) {
  auto options = std::make_shared<WhatIfArguments>();
  add_graph_argument(set, options->sizes.graph);
  add_sizes_option(set, options->sizes);
  add_cluster_options(set, options->cluster, /*required=*/true);
  set.add_flag("--only-these", options->only_these,
               "Show only the cluster as it is and the scenarios of the --try options");
  set.add_flag(
      "--devices", options->each_device,
      "Show instead what each device is worth: the step without it, and which devices are enough");
  const auto add = [&](const char* name, std::vector<std::string>& texts, const char* type,
                       const char* help) {
    set.add(name, texts, help).type_name(type).repeatable();
  };
  add("--try-cluster", options->clusters, "CLUSTER",
      "Try another cluster; this and all --try options may be given several times");
  add("--try-devices", options->devices, "N",
      "Try N devices: the first ones, and copies of the last if there are not enough");
  add("--try-memory", options->memory, "AMOUNT",
      "Try this much memory on every device: 12GiB, or 1.5x of what it has");
  add("--try-link", options->links, "LINK",
      "Try this link between any two devices, such as 5us,50GB/s");
  add("--try-speed", options->speeds, "X", "Try devices X times as fast");
  add("--try-batch", options->batches, "N",
      "Try another mini-batch size, if the graph says for which size its costs are");
  options->request.search.budget = kBudgetOfMany;
  add_planning_options(set, options->request, kStudiesTake);
  return [options](const RunContext& context) { return what_if(*options, context); };
}

}  // namespace

extern const Command kWhatIfCommand{
    .name = "what-if",
    .summary = "Show what another device, more memory, a faster link or another batch would bring",
    .examples =
        "baechi what-if model.json --cluster 4x8GiB\n"
        "baechi what-if model.json --cluster 4x8GiB --method m-sct --json\n"
        "baechi what-if micro_batch.json --cluster 4x8GiB --micro-batches 8\n"
        "baechi what-if model.json --cluster 1x24GiB+1x8GiB@0.5 --devices\n"
        "baechi what-if model.json --cluster 2x8GiB --only-these --try-devices 3 --try-devices 4\n"
        "baechi what-if model.json --cluster 2x8GiB --try-cluster 1x24GiB --try-link 5us,50GB/s",
    .declare = declare_what_if,
};

}  // namespace baechi::cli
