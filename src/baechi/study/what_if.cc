// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/what_if.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <variant>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/number_too_large.h"
#include "baechi/cost/device_presets.h"
#include "baechi/graph/recosted.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/steps/residing_steps.h"
#include "baechi/plan/steps/step_plan.h"
#include "baechi/plan/steps/step_request.h"
#include "baechi/schedule/step_order.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/study/cluster_edits.h"
#include "baechi/study/unless_cancelled.h"

namespace baechi {
namespace {

constexpr Factor kHalf{kFullSpeed.count() / 2}, kTwice{kFullSpeed.count() * 2};

bool alike(const Device& a, const Device& b) {
  return a.kind == b.kind && a.capacity == b.capacity && a.speed == b.speed;
}

class Standard {
 public:
  Standard(const GraphSizes& sizes, const ClusterSpec& cluster, const StepRequest& request)
      : sizes_(sizes), graph_(sizes.first()), cluster_(cluster), request_(request) {}

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
    const std::vector<std::uint32_t> numbers = checked_numbers(sizes_, request_);
    const std::optional<std::int64_t> now = samples_of_step(sizes_, request_, numbers.back());
    if (!now.has_value()) return;
    const bool any = request_.micro_batches.has_value() && request_.micro_batches->empty();
    const auto divide_half = [&](std::uint32_t number) { return *now % (2 * number) == 0; };
    if (*now % 2 == 0 && (any || std::ranges::all_of(numbers, divide_half)))
      add("half the batch", cluster_, *now / 2);
    if (*now <= std::numeric_limits<std::int64_t>::max() / 2)
      add("twice the batch", cluster_, *now * 2);
  }

  const GraphSizes& sizes_;
  const OpGraph& graph_;
  const ClusterSpec& cluster_;
  const StepRequest& request_;
  std::vector<Scenario> scenarios_;
};

// The plan's placement and order on another cluster; nothing when that lacks a device it uses, or
// when an operator cannot run on the device of that name. `step` is of as many micro-batches.
std::optional<PlacedGraph> moved(const Plan& plan, const Unrolled* step, const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  BAECHI_ASSERT(plan.schedule.slots.size() == graph.num_ops(), "a plan of another graph moves");
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
  if (step != nullptr) placed.order = with_sums_behind(*step, *placed.order);
  return placed;
}

// A mini-batch of the scenario's own may be outside of what there are costs for.
void plan_anew(const GraphSizes& sizes, const Cluster& cluster, const StepRequest& request,
               bool own_batch, ScenarioRun& run) try {
  PlanResult result = plan_sizes(sizes, cluster, request);
  if (auto* plan = std::get_if<Plan>(&result)) {
    run.plan = std::move(*plan);
    return;
  }
  throw_if_cancelled(request.search.place.cancel);
  run.outcome.proved = std::get<Unplaceable>(result).proved;
  run.outcome.reason = std::get<Unplaceable>(result).reason;
} catch (const NumberTooLarge& error) {
  run.outcome.reason = error.what();
} catch (const InputError& error) {
  if (!own_batch) throw;
  run.outcome.reason = error.what();
}

// Keeps a plan of another scenario instead if it fits and is shorter, also after Ctrl-C. One that overflows
// is no offer.
void offer(const Plan& present, const std::string& name, const Unrolled* step,
           const CostModel& costs, const StepRequest& request, std::optional<Plan>& plan) try {
  std::optional<PlacedGraph> moves = moved(present, step, costs);
  if (!moves.has_value()) return;
  const ExecutionOrder order = request.search.place.order;
  const PlacedGraph placed =
      as_executed(*std::move(moves), order, costs.graph(), costs.cluster().num_devices());
  const Trace trace = simulate(costs, placed);
  if (find_overflow(trace, costs.cluster()).has_value() ||
      (plan.has_value() && plan->makespan() <= trace.schedule.makespan))
    return;
  plan = plan_of(costs, placed, name, request.search.bounds, order);
  plan->micro_batches = present.micro_batches;
} catch (const NumberTooLarge&) {
  return;
}

void take_plan(const Plan& plan, ScenarioOutcome& outcome) {
  outcome.micro_batches = plan.micro_batches;
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

// The other plan's step in the scenario, and that as an offer. One with second runs, fetches or replicas
// is a plan of another graph, and no offer.
void offer(const GraphSizes& sizes, const Cluster& cluster, const StepRequest& request,
           const Plan& present, const std::string& name, std::optional<Plan>& plan) {
  if (!present.recomputed.empty() || !present.residency.empty() || present.replicas.any()) return;
  if (!asks_for_steps(sizes, request))
    return offer(present, name, nullptr, CostModel(sizes.first(), cluster), request, plan);
  std::optional<Unrolled> step;
  try {  // numbers of micro-batches differ: the present one need not divide this mini-batch
    StepRequest same = request;
    same.micro_batches = {present.micro_batches};
    checked_numbers(sizes, same);
    step = step_of(sizes, request, present.micro_batches);
  } catch (const InputError&) {
    return;
  }
  offer(present, name, present.micro_batches > 1 ? &*step : nullptr,
        CostModel(step->graph, cluster), request, plan);
}

// What the scenario's mini-batch makes of the graph, or of the request.
struct Batch {
  std::optional<OpGraph> scaled;
  StepRequest request;
};

Batch with_batch(const GraphSizes& sizes, StepRequest request,
                 const std::optional<std::int64_t>& batch_size) {
  Batch batch{std::nullopt, std::move(request)};
  const bool steps = asks_for_steps(sizes, batch.request);
  if (batch_size.has_value() && steps) batch.request.mini_batch = batch_size;
  if (batch_size.has_value() && !steps && batch_size != sizes.first().batch_size())
    batch.scaled = with_batch_size(sizes.first(), *batch_size);
  return batch;
}

// Whether the scenario has all that the other one has, and nothing of it is slower or smaller.
bool has_all_of(const Scenario& scenario, const Scenario& other) {
  if (scenario.batch_size != other.batch_size ||
      scenario.cluster.communication != other.cluster.communication ||
      scenario.cluster.sends != other.cluster.sends)
    return false;
  const Cluster more(scenario.cluster), less(other.cluster);
  IdVector<DeviceId, std::optional<DeviceId>> there;
  for (const DeviceId id : less.devices()) {
    there.push_back(more.find(less[id].name));
    if (!there[id].has_value()) return false;
    const Device &a = more[*there[id]], &b = less[id];
    if (a.kind != b.kind || a.capacity < b.capacity || a.speed < b.speed) return false;
  }
  for (const DeviceId from : less.devices())
    for (const DeviceId to : less.devices())
      for (const Bytes size : {Bytes(0), mebibytes(1)})
        if (from != to && more.link(*there[from], *there[to]).transfer_time(size) >
                              less.link(from, to).transfer_time(size))
          return false;
  return true;
}

// More of anything is no worse: plans of scenarios that have less are offered to those that have
// more, where planning anew found something longer.
class Dominance {
 public:
  Dominance(const GraphSizes& sizes, const std::vector<Scenario>& scenarios,
            const StepRequest& request)
      : sizes_(sizes), scenarios_(scenarios), request_(request) {}

  void settle(std::vector<ScenarioRun>& runs) const {
    // A plan that is handed on may be offered further: as often as there are scenarios at the most.
    bool changed = true;
    for (std::size_t round = 0; changed && round < runs.size(); ++round) {
      changed = false;
      for (std::size_t i = 0; i < runs.size(); ++i)
        for (std::size_t j = 0; j < runs.size(); ++j)
          if (i != j && is_longer(runs[i], runs[j])) changed = hand_on(i, j, runs) || changed;
    }
  }

 private:
  static bool is_longer(const ScenarioRun& run, const ScenarioRun& other) {
    return other.plan.has_value() &&
           (!run.plan.has_value() || run.plan->makespan() > other.plan->makespan());
  }

  // The plan of scenario j to scenario i.
  bool hand_on(std::size_t i, std::size_t j, std::vector<ScenarioRun>& runs) const {
    const Scenario& scenario = scenarios_[i];
    try {
      if (!has_all_of(scenario, scenarios_[j])) return false;
      StepRequest request = request_;
      request.search.suggest = false;
      const Batch batch = with_batch(sizes_, std::move(request), scenario.batch_size);
      const GraphSizes sizes = batch.scaled.has_value() ? GraphSizes(*batch.scaled) : sizes_;
      const std::optional<Time> before = runs[i].outcome.makespan;
      offer(sizes, Cluster(scenario.cluster), batch.request, *runs[j].plan,
            name_of(runs[j].outcome), runs[i].plan);
      if (!runs[i].plan.has_value()) return false;
      take_plan(*runs[i].plan, runs[i].outcome);
      return runs[i].outcome.makespan != before;
    } catch (const InputError&) {
      return false;  // a scenario that cannot be
    }
  }

  static std::string name_of(const ScenarioOutcome& outcome) {
    return outcome.method.starts_with(kPlanOf) || outcome.method == kPresentPlan
               ? outcome.method
               : std::string(kPlanOf) + outcome.name;
  }

  const GraphSizes& sizes_;
  const std::vector<Scenario>& scenarios_;
  const StepRequest& request_;
};

// What a host would bring to the cluster as it is, where nothing fits.
void tell_of_host(const GraphSizes& sizes, const Scenario& scenario, const StepRequest& request,
                  ScenarioRun& run) {
  const std::vector<std::uint32_t> numbers = checked_numbers(sizes, request);
  if (run.plan.has_value() || numbers.size() > 1) return;
  Unplaceable answer;
  try {
    baechi::tell_of_host(micro_batch_of(sizes, request, numbers.front()), numbers.front(),
                         Cluster(scenario.cluster), request.search, answer);
  } catch (const InputError&) {  // a scenario that cannot be
    return;
  }
  run.outcome.reason += answer.in_words();
}

}  // namespace

std::vector<Scenario> standard_scenarios(const GraphSizes& sizes, const ClusterSpec& cluster,
                                         const StepRequest& request) {
  return Standard(sizes, cluster, request).take();
}

ScenarioRun run_scenario(const GraphSizes& given, const Scenario& scenario, StepRequest asked,
                         const Plan* present) {
  throw_if_cancelled(asked.search.place.cancel);
  ScenarioRun run;
  ScenarioOutcome& outcome = run.outcome;
  outcome.name = scenario.name;
  outcome.devices = scenario.cluster.devices.size();
  outcome.batch_size = scenario.batch_size;
  asked.search.suggest = false;
  const std::uint32_t most = checked_numbers(given, asked).back();
  if (!outcome.batch_size.has_value()) outcome.batch_size = samples_of_step(given, asked, most);
  std::optional<Batch> batch;
  std::optional<Cluster> cluster;
  try {
    batch = with_batch(given, std::move(asked), scenario.batch_size);
    checked_numbers(given, batch->request);
    cluster.emplace(scenario.cluster);
    const CostModel possible(given.first(), *cluster);
  } catch (const InputError& error) {
    outcome.proved = lacks_pinned_device(given.first(), scenario.cluster);
    outcome.reason = error.what();
    return run;
  }
  const GraphSizes sizes = batch->scaled.has_value() ? GraphSizes(*batch->scaled) : given;
  plan_anew(sizes, *cluster, batch->request, scenario.batch_size.has_value(), run);
  if (present != nullptr)
    offer(sizes, *cluster, batch->request, *present, std::string(kPresentPlan), run.plan);
  if (run.plan.has_value()) take_plan(*run.plan, outcome);
  return run;
}

std::vector<ScenarioOutcome> run_scenarios(const GraphSizes& sizes,
                                           const std::vector<Scenario>& scenarios,
                                           const StepRequest& request,
                                           const std::function<void(const Scenario&)>& told) {
  std::vector<ScenarioRun> runs;
  for (const Scenario& scenario : scenarios) {
    if (told) told(scenario);
    const Plan* present = runs.empty() || !runs[0].plan.has_value() ? nullptr : &*runs[0].plan;
    std::optional<ScenarioRun> run = unless_cancelled(
        !runs.empty(), [&] { return run_scenario(sizes, scenario, request, present); });
    if (!run.has_value()) break;
    runs.push_back(*std::move(run));
    if (runs.size() == 1) tell_of_host(sizes, scenario, request, runs.front());
  }
  if (request.search.place.cancel == nullptr || !request.search.place.cancel->requested())
    Dominance(sizes, scenarios, request).settle(runs);
  std::vector<ScenarioOutcome> outcomes;
  for (ScenarioRun& run : runs) outcomes.push_back(std::move(run.outcome));
  return outcomes;
}

}  // namespace baechi
