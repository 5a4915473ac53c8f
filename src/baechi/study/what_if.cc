// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/what_if.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <variant>

#include "baechi/base/error.h"
#include "baechi/base/number_too_large.h"
#include "baechi/cost/device_presets.h"
#include "baechi/graph/recosted.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/study/cluster_edits.h"

namespace baechi {
namespace {

constexpr Factor kHalf{kFullSpeed.count() / 2}, kTwice{kFullSpeed.count() * 2};

bool alike(const Device& a, const Device& b) {
  return a.kind == b.kind && a.capacity == b.capacity && a.speed == b.speed;
}

class Standard {
 public:
  Standard(const OpGraph& graph, const ClusterSpec& cluster) : graph_(graph), cluster_(cluster) {}

  std::vector<Scenario> take() && {
    add("as it is", cluster_);
    add_devices();
    add("half the memory", with_memory(cluster_, kHalf));
    if_it_can_be([&] { add("twice the memory", with_memory(cluster_, kTwice)); });
    add_links();
    if_it_can_be([&] { add("devices twice as fast", with_speed(cluster_, kTwice)); });
    add_kinds();
    add_batches();
    return std::move(scenarios_);
  }

 private:
  void add(std::string name, ClusterSpec cluster, std::optional<std::int64_t> batch_size = {}) {
    scenarios_.push_back({std::move(name), std::move(cluster), batch_size});
  }

  template <class Action>
  static void if_it_can_be(const Action& action) {
    try {
      action();
    } catch (const InputError&) {
      return;  // more than 63 bits hold: memory that stands for "no limit" has no double
    }
  }

  // A kind's name is enough where all its devices are alike.
  std::string sort_name(const Device& device) const {
    const bool only = std::all_of(
        cluster_.devices.begin(), cluster_.devices.end(),
        [&](const Device& other) { return other.kind != device.kind || alike(other, device); });
    return only ? device.kind : device.kind + " like " + device.name;
  }

  void add_devices() {
    for (const bool more : {true, false}) {
      if (!more && cluster_.devices.size() == 1) break;
      for (std::size_t i = 0; i < cluster_.devices.size(); ++i) {
        const auto is_alike = [&](const Device& other) {
          return alike(other, cluster_.devices[i]);
        };
        const auto first = std::find_if(cluster_.devices.begin(), cluster_.devices.end(), is_alike);
        if (first != cluster_.devices.begin() + static_cast<std::ptrdiff_t>(i)) continue;
        std::size_t last = i;
        for (std::size_t j = i; j < cluster_.devices.size(); ++j)
          if (is_alike(cluster_.devices[j])) last = j;
        const std::string sort = sort_name(cluster_.devices[i]);
        if (more)
          add("one more " + sort, with_device_like(cluster_, last));
        else
          add("one " + sort + " fewer", without_device(cluster_, last));
      }
    }
  }

  // Faster than every link that it would replace, for a tensor of a mebibyte.
  bool gains_by(const ClusterSpec& changed) const {
    const Cluster now(cluster_), then(changed);
    bool some = false;
    for (const DeviceId from : now.devices())
      for (const DeviceId to : now.devices()) {
        if (from == to) continue;
        const Time before = now.link(from, to).transfer_time(mebibytes(1));
        const Time after = then.link(from, to).transfer_time(mebibytes(1));
        if (after > before) return false;
        some = some || after < before;
      }
    return some;
  }

  void add_links() {
    const DevicePreset &pcie = device_preset("rtx4090"), &nvlink = device_preset("a100");
    const auto add_link = [&](const char* name, const LinkPreset& preset) {
      ClusterSpec changed = with_link(cluster_, preset.latency, preset.bandwidth);
      if (cluster_.devices.size() > 1 && gains_by(changed)) add(name, std::move(changed));
    };
    add_link("PCIe 4.0 between GPUs", pcie.host_link);
    if (nvlink.peer_link.has_value()) add_link("NVLink between GPUs (A100)", *nvlink.peer_link);
  }

  // A preset's memory comes with its kind.
  void add_kinds() {
    for (const KindId id : graph_.kinds()) {
      const std::string kind(graph_.kind_name(id));
      if (kind == kAnyKind || std::any_of(cluster_.devices.begin(), cluster_.devices.end(),
                                          [&](const Device& d) { return d.kind == kind; }))
        continue;
      ClusterSpec changed = cluster_;
      for (Device& device : changed.devices) {
        device.kind = kind;
        device.speed = kFullSpeed;
        for (const DevicePreset& preset : all_device_presets())
          if (preset.name == kind) device.capacity = preset.capacity;
      }
      add("devices of kind " + kind, std::move(changed));
    }
  }

  void add_batches() {
    if (!graph_.batch_size().has_value()) return;
    const std::int64_t now = *graph_.batch_size();
    if (now % 2 == 0) add("half the batch", cluster_, now / 2);
    if (now <= std::numeric_limits<std::int64_t>::max() / 2)
      add("twice the batch", cluster_, now * 2);
  }

  const OpGraph& graph_;
  const ClusterSpec& cluster_;
  std::vector<Scenario> scenarios_;
};

// The plan's placement and order on another cluster; nothing when that lacks a device it uses, or
// when an operator cannot run on the device of that name.
std::optional<PlacedGraph> moved(const Plan& plan, const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  IdVector<DeviceId, std::optional<DeviceId>> there;
  for (const Device& device : plan.cluster.devices)
    there.push_back(costs.cluster().find(device.name));
  PlacedGraph placed{Placement(graph.num_ops(), DeviceId(0)),
                     DeviceOrder(costs.cluster().num_devices())};
  for (const OpId op : graph.ops()) {
    const std::optional<DeviceId> device = there[plan.schedule.slots[op].device];
    if (!device.has_value() || !costs.may_run(op, *device)) return std::nullopt;
    placed.device[op] = *device;
  }
  const DeviceOrder order = order_of(plan.schedule, graph, there.size());
  for (const DeviceId device : order.keys())
    if (!order[device].empty()) (*placed.order)[*there[device]] = order[device];
  return placed;
}

void plan_anew(const CostModel& costs, const PlanRequest& request, ScenarioRun& run) try {
  PlanResult result = make_plan(costs, request);
  throw_if_cancelled(request.place.cancel);
  if (auto* plan = std::get_if<Plan>(&result)) {
    run.plan = std::move(*plan);
    return;
  }
  run.outcome.proved = std::get<Unplaceable>(result).proved;
  run.outcome.reason = std::get<Unplaceable>(result).reason;
} catch (const NumberTooLarge& error) {
  run.outcome.reason = error.what();
}

// Keeps the present plan instead if it fits and is shorter. One that overflows is no offer.
void offer_present(const CostModel& costs, PlacedGraph placed, const PlanRequest& request,
                   std::optional<Plan>& plan) try {
  const ExecutionOrder order = request.place.order;
  placed = as_executed(std::move(placed), order, costs.graph(), costs.cluster().num_devices());
  const Trace trace = simulate(costs, placed, {.cancel = request.place.cancel});
  if (find_overflow(trace, costs.cluster()).has_value() ||
      (plan.has_value() && plan->makespan() <= trace.schedule.makespan))
    return;
  plan = plan_of(costs, placed, std::string(kPresentPlan), request.bounds, order);
} catch (const NumberTooLarge&) {
  return;
}

void take_plan(const Plan& plan, ScenarioOutcome& outcome) {
  outcome.makespan = plan.makespan();
  outcome.gap = plan.gap();
  outcome.method = plan.method;
  outcome.fallbacks = plan.fallbacks;
  IdVector<DeviceId, bool> used(plan.devices.size());
  for (const OpSlot& slot : plan.schedule.slots) used[slot.device] = true;
  outcome.devices_used = static_cast<std::size_t>(std::count(used.begin(), used.end(), true));
  for (const PlanDevice& device : plan.devices)
    outcome.highest_peak = std::max(outcome.highest_peak, device.peak);
}

}  // namespace

std::vector<Scenario> standard_scenarios(const OpGraph& graph, const ClusterSpec& cluster) {
  return Standard(graph, cluster).take();
}

ScenarioRun run_scenario(const OpGraph& graph, const Scenario& scenario, PlanRequest request,
                         const Plan* present) {
  throw_if_cancelled(request.place.cancel);
  ScenarioRun run;
  ScenarioOutcome& outcome = run.outcome;
  outcome.name = scenario.name;
  outcome.devices = scenario.cluster.devices.size();
  outcome.batch_size = scenario.batch_size.has_value() ? scenario.batch_size : graph.batch_size();
  request.suggest = false;
  std::optional<OpGraph> scaled;
  std::optional<Cluster> cluster;
  std::optional<CostModel> costs;
  try {
    if (scenario.batch_size.has_value() && scenario.batch_size != graph.batch_size())
      scaled = with_batch_size(graph, *scenario.batch_size);
    cluster.emplace(scenario.cluster);
    costs.emplace(scaled.has_value() ? *scaled : graph, *cluster);
  } catch (const InputError& error) {
    outcome.proved = lacks_pinned_device(graph, scenario.cluster);
    outcome.reason = error.what();
    return run;
  }
  plan_anew(*costs, request, run);
  if (present != nullptr)
    if (std::optional<PlacedGraph> placed = moved(*present, *costs))
      offer_present(*costs, *std::move(placed), request, run.plan);
  if (run.plan.has_value()) take_plan(*run.plan, outcome);
  return run;
}

std::vector<ScenarioOutcome> run_scenarios(const OpGraph& graph,
                                           const std::vector<Scenario>& scenarios,
                                           const PlanRequest& request,
                                           const std::function<void(const Scenario&)>& told) {
  std::vector<ScenarioOutcome> outcomes;
  std::optional<Plan> present;
  for (const Scenario& scenario : scenarios) {
    if (told) told(scenario);
    ScenarioRun run =
        run_scenario(graph, scenario, request, present.has_value() ? &*present : nullptr);
    if (outcomes.empty()) present = std::move(run.plan);
    outcomes.push_back(std::move(run.outcome));
  }
  return outcomes;
}

}  // namespace baechi
