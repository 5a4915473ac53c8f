// SPDX-License-Identifier: Apache-2.0
// baechi verify: the independent check of a plan against its graph, rule by rule.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/command_line.h"
#include "apps/console.h"
#include "baechi/io/json_writer.h"
#include "baechi/io/plan_file.h"
#include "baechi/verify/check_schedule.h"

namespace baechi::cli {
namespace {

struct Options {
  GraphArgument graph;
  std::string plan;
};

// What a device did, from the schedule and the graph alone.
struct DeviceWork {
  Time busy;
  Bytes sent, received;
};

IdVector<DeviceId, DeviceWork> device_work(const OpGraph& graph, const Cluster& cluster,
                                           const Schedule& schedule) {
  IdVector<DeviceId, DeviceWork> work(cluster.num_devices());
  for (const OpSlot& slot : schedule.slots) work[slot.device].busy += slot.end - slot.start;
  for (const Transfer& transfer : schedule.transfers) {
    work[transfer.from].sent += graph.size(transfer.tensor);
    work[transfer.to].received += graph.size(transfer.tensor);
  }
  return work;
}

void check_device_claims(const OpGraph& graph, const Cluster& cluster, const Plan& plan,
                         std::vector<std::string>& violations) {
  const auto compare = [&](DeviceId device, const char* what, const char* unit,
                           std::int64_t true_value, std::int64_t claimed) {
    if (claimed != true_value)
      violations.push_back("device '" + cluster[device].name + "' " + what + " " +
                           std::to_string(true_value) + " " + unit + ", not the " +
                           std::to_string(claimed) + " the plan claims");
  };
  const IdVector<DeviceId, DeviceWork> work = device_work(graph, cluster, plan.schedule);
  for (const DeviceId device : work.keys()) {
    if (!plan.devices.contains(device)) continue;
    const PlanDevice& claim = plan.devices[device];
    compare(device, "is busy for", "ns", work[device].busy.count(), claim.busy.count());
    compare(device, "sends", "bytes", work[device].sent.count(), claim.sent.count());
    compare(device, "receives", "bytes", work[device].received.count(), claim.received.count());
  }
}

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
  check_device_claims(graph, cluster, plan, violations);
  for (const MethodOutcome& row : plan.methods)
    if (row.method == plan.method && row.makespan.has_value() && *row.makespan != plan.makespan())
      violations.push_back("the row of method '" + row.method + "' claims a step of " +
                           std::to_string(row.makespan->count()) + " ns, the schedule takes " +
                           std::to_string(plan.makespan().count()));
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

Run declare(OptionSet& set) {
  auto options = std::make_shared<Options>();
  add_graph_argument(set, options->graph);
  set.add("plan", options->plan, "The plan file").required().check(check_path);
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
