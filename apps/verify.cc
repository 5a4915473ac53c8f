// SPDX-License-Identifier: Apache-2.0
// baechi verify: the independent check of a plan against its graph, rule by rule.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/command.h"
#include "apps/console.h"
#include "baechi/io/json_writer.h"
#include "baechi/io/plan_file.h"
#include "baechi/verify/check_schedule.h"

namespace baechi::cli {
namespace {

struct Options {
  std::string graph, plan;
};

// What a plan says about itself, beside its schedule, must be true as well.
void check_claims(const OpGraph& graph, const Cluster& cluster, const Plan& plan,
                  std::vector<std::string>& violations) {
  if (!violations.empty()) return;  // peaks of a wrong schedule mean nothing
  const IdVector<DeviceId, Bytes> peaks = checked_peaks(graph, cluster, plan.schedule);
  for (const DeviceId device : peaks.keys())
    if (plan.devices.contains(device) && plan.devices[device].peak != peaks[device])
      violations.push_back("device '" + cluster[device].name + "' peaks at " +
                           std::to_string(peaks[device].count()) + " bytes, not at the " +
                           std::to_string(plan.devices[device].peak.count()) + " the plan claims");
  for (const NamedBound& bound : plan.bounds)
    if (bound.value > plan.makespan())
      violations.push_back("the " + bound.name + " bound is above the step time");
}

ExitCode verify(const Options& options, const RunContext& context) {
  const OpGraph graph = load_graph(options.graph, context);
  const Plan plan = read_plan(options.plan, graph);
  const Cluster cluster(plan.cluster);
  std::vector<std::string> violations = check_schedule(graph, cluster, plan.schedule);
  check_claims(graph, cluster, plan, violations);
  if (context.json) {
    std::string text;
    JsonWriter json(text);
    json.begin_object();
    json.field("right", violations.empty());
    json.key("violations");
    json.begin_array();
    for (const std::string& violation : violations) json.value(violation);
    json.end_array();
    json.end_object();
    json.finish();
    print_result(text);
  } else if (violations.empty()) {
    print_result(options.plan + ": every rule holds\n");
  }
  for (const std::string& violation : violations)
    print_words("baechi: " + options.plan + ": " + violation);
  return violations.empty() ? ExitCode::kOk : ExitCode::kBadInput;
}

Run declare(CLI::App& app) {
  auto options = std::make_shared<Options>();
  add_graph_argument(app, options->graph);
  app.add_option("plan", options->plan, "The plan file")->required();
  return [options](const RunContext& context) { return verify(*options, context); };
}

}  // namespace

extern const Command kVerifyCommand{
    .name = "verify",
    .summary = "Check a plan against its graph, rule by rule, with code of its own",
    .examples =
        "baechi verify model.json plan.json\n"
        "baechi verify model.json plan.json --json",
    .declare = declare,
};

}  // namespace baechi::cli
