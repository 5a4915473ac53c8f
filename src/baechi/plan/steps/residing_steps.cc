// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/residing_steps.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/base/short_text.h"
#include "baechi/cost/cost_model.h"
#include "baechi/cost/device_presets.h"
#include "baechi/graph/recosted.h"
#include "baechi/graph/residency.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/request/recompute_request.h"
#include "baechi/plan/residency/residency_bounds.h"
#include "baechi/plan/residency/residency_replay.h"
#include "baechi/plan/steps/residing_search.h"
#include "baechi/plan/steps/starts_in_turns.h"
#include "baechi/schedule/step_order.h"
#include "baechi/verify/check_plan.h"
#include "baechi/verify/check_variables.h"

namespace baechi {
namespace {

constexpr const char* kMethod = "residency";

void check(const OpGraph& graph, const Cluster& cluster, const PlanRequest& request,
           const Plan* known = nullptr) {
  const auto refuse = [](const std::string& why) { throw OptionError("residency", why); };
  std::size_t hosts = 0;
  for (const DeviceId device : cluster.devices())
    if (cluster[device].kind == kStoreKind) ++hosts;
  if (hosts == 0)
    refuse(
        "the cluster has no memory to keep anything: add a host, such as +1xhost:256GiB or --host "
        "256GiB");
  if (hosts > 1)
    refuse("the cluster has " + std::to_string(hosts) + " hosts; one is planned with: merge them");
  if (hosts == cluster.num_devices()) refuse("the cluster has a host and no other device");
  if (graph.memory_mode() == MemoryMode::kRetain)
    refuse(
        "the graph's memory mode is retain, which keeps all outputs on their devices: use "
        "dataflow");
  if (request.place.order != ExecutionOrder::kPlanned)
    refuse("fetches are part of the planned order: ask for that");
  const auto same = [](const Device& a, const Device& b) { return a.name == b.name; };
  if (known != nullptr && !std::ranges::equal(known->cluster.devices, cluster.spec().devices, same))
    throw OptionError("expert", "it is a plan for other devices than those of the cluster");
  if (request.place.expert != nullptr) refuse("an expert's placement has no fetches");
  if (cluster.sends_block() || cluster.message_time().has_value())
    refuse("it is not planned with blocking sends yet, nor what messages take: leave those out");
}

std::string in_words(const OpGraph& graph, const Plan& plan, const Cluster& cluster) {
  Bytes stored, put, fetched;
  for (const OpId op : plan.residency.on_store)
    if (graph[op].variable) stored += graph[op].permanent;
  const DeviceId store = *cluster.find(plan.residency.store);
  Time putting, fetching;
  for (const Transfer& transfer : plan.schedule.transfers) {
    const bool to = transfer.to == store, from = transfer.from == store;
    if (to) put += graph.size(transfer.tensor);
    if (from) fetched += graph.size(transfer.tensor);
    if (to) putting += transfer.end - transfer.start;
    if (from) fetching += transfer.end - transfer.start;
  }
  const auto part = [&](Time busy) {
    const std::int64_t step = std::max<std::int64_t>(1, plan.makespan().count());
    return std::to_string(static_cast<std::int64_t>(100 * static_cast<double>(busy.count()) /
                                                    static_cast<double>(step))) +
           "% of it";
  };
  return plan.residency.store + " keeps " + short_text(stored) + " of variables; per step " +
         short_text(put) + " are put there (" + part(putting) + ") and " + short_text(fetched) +
         " fetched (" + part(fetching) + ")";
}

// Parts of the budget where a plan without the store may fit: for several devices that takes longer.
constexpr double kBesideOthers = 0.4, kBesideSeveral = 0.2;

constexpr double kSimulatedForTurns = 2e5;  // operators per second of the budget

// With the copies of every micro-batch wherever they end first. Nothing if one of them may not run there.
std::optional<ResidingVariant> best_apart(const OpGraph& graph, std::uint32_t micro_batches,
                                          const Cluster& cluster, const PlanRequest& request,
                                          std::vector<Recomputation> again,
                                          ResidencyEffort effort) {
  const OpGraph one = recomputing(graph, again);
  const Replicas copies = sharing(one, micro_batches);
  const OpGraph all = replicated(one, copies);
  const CostModel costs(all, cluster);
  const std::optional<SequenceOfOne> start = in_turns(
      one, copies, costs, static_cast<std::int64_t>(kSimulatedForTurns * request.budget.seconds));
  if (!start.has_value()) return std::nullopt;
  std::optional<ResidingVariant> best =
      best_residing(all, 1, cluster, request, Recompute::kNone, effort, nullptr, start);
  if (best.has_value()) {
    best->again = std::move(again);
    best->copies = copies;
  }
  return best;
}

StepPlan told(const OpGraph& graph, const Cluster& cluster, ResidingVariant& variant,
              const char* method = kMethod) {
  StepPlan made{std::nullopt, with_fetches(*variant.step, variant.found.residency), Plan{}};
  const CostModel costs(made.step.graph, cluster);
  Plan plan = plan_of(costs, variant.found.placed, method, false);
  plan.micro_batches = made.step.micro_batches;
  plan.recomputed = std::move(variant.again);
  plan.replicas = variant.copies;
  plan.residency = std::move(variant.found.residency);
  const std::vector<std::string> faults = check_step(graph, made.step.graph, plan);
  BAECHI_ASSERT(faults.empty(), ("fetches broke a rule: " + faults.front()).c_str());
  const std::vector<std::string> unordered = check_carried(made.step, cluster, plan.schedule);
  BAECHI_ASSERT(unordered.empty(), ("a plan broke a rule: " + unordered.front()).c_str());
  if (!plan.residency.empty()) plan.notes.push_back(in_words(costs.graph(), plan, cluster));
  if (plan.replicas.any())
    plan.notes.push_back("each of the " + std::to_string(plan.replicas.count) +
                         " micro-batches has stages of its own, on any device");
  made.result = std::move(plan);
  return made;
}

// On this cluster, if it fits and has second runs only where they may be.
std::optional<StepPlan> replayed(const OpGraph& graph, std::uint32_t micro_batches,
                                 const Cluster& cluster, Recompute recompute, const Plan& known) {
  const Recompute other = known.recomputed.empty() ? Recompute::kAll : Recompute::kNone;
  if (known.micro_batches != micro_batches || recompute == other) return std::nullopt;
  ResidingVariant variant{
      known.recomputed,
      std::make_unique<Unrolled>(unroll(recomputing(graph, known.recomputed), micro_batches)),
      {}};
  variant.found.residency = known.residency;
  const Unrolled whole = with_fetches(*variant.step, known.residency);
  variant.found.placed = {placement_of(known.schedule),
                          order_of(known.schedule, whole.graph, cluster.num_devices())};
  const CostModel whole_costs(whole.graph, cluster);
  for (const OpId op : whole.graph.ops())
    if (!whole_costs.may_run(op, variant.found.placed.device[op])) return std::nullopt;
  const CostModel costs(variant.step->graph, cluster);
  if (!settle({*variant.step, costs}, variant.found)) return std::nullopt;
  return told(graph, cluster, variant, "expert");
}

std::vector<NamedBound> bounds_of(const OpGraph& graph, std::uint32_t micro_batches,
                                  const Cluster& cluster, bool copies_apart) {
  const Unrolled step = unroll(graph, micro_batches);
  return residency_bounds({step, CostModel(step.graph, cluster)}, copies_apart);
}

std::string what_lacks(const Cluster& cluster, const ReplayedResidency& found) {
  const std::string needs = short_text(found.peaks[found.fullest]), lacks = short_text(found.over);
  const std::string name = "'" + cluster[found.fullest].name + "'";
  if (found.fullest == store_of(cluster))
    return "host " + name + " lacks " + lacks + " for what would be away: give it " + needs +
           ", or the devices more memory";
  return "with all that may be away on the host, device " + name + " still lacks " + lacks +
         ": it would need " + needs;
}

const std::vector<MethodOutcome>& methods_of(const PlanResult& result) {
  const Plan* plan = std::get_if<Plan>(&result);
  return plan != nullptr ? plan->methods : std::get<Unplaceable>(result).methods;
}

// Says so if no update has a time on the host, which then keeps no weights and no optimizer state.
std::string where_updates_run(const OpGraph& graph, const Cluster& cluster) {
  const CostModel costs(graph, cluster);
  bool any = false;
  for (const OpId op : graph.ops()) {
    if (!is_update(graph, op)) continue;
    if (costs.may_run(op, store_of(cluster))) return "";
    any = true;
  }
  if (!any) return "";
  return "; no update has a time for kind " + in_quotes(kStoreKind) +
         ", so weights and optimizer state stay on devices (baechi generate --device "
         "gpu=a100,host=cpu)";
}

constexpr double kToTell = 0.1;              // part of the budget
constexpr std::size_t kMostToTell = 20'000;  // operators
constexpr Bytes kAmpleHost(std::int64_t{1} << 50);

// The cluster with a host beside it, if it has none; nothing where a device's memory is the host's.
std::optional<Cluster> with_host(const Cluster& cluster) {
  ClusterSpec spec = cluster.spec();
  if (std::ranges::any_of(spec.devices, [](const Device& d) { return d.kind == kStoreKind; }))
    return cluster;
  Device host = spec.devices.front();
  host.name = host.kind = std::string(kStoreKind);
  host.capacity = kAmpleHost;
  host.speed = kFullSpeed;
  spec.communication = CommunicationMode::kDuplex;
  for (const Device& device : cluster.spec().devices) {
    const std::optional<LinkPreset> link = store_link_of(device.kind);
    if (!link.has_value()) return std::nullopt;
    LinkRule rule;
    rule.scope = LinkScope::kKinds;
    rule.from = device.kind;
    rule.to = host.kind;
    rule.latency = link->latency;
    rule.bandwidth = link->bandwidth;
    const bool there = std::ranges::any_of(spec.links, [&](const LinkRule& other) {
      return other.scope == rule.scope && other.from == rule.from && other.to == rule.to;
    });
    if (!there) spec.links.push_back(std::move(rule));
  }
  spec.devices.push_back(std::move(host));
  return Cluster(std::move(spec));
}

}  // namespace

void tell_of_host(const OpGraph& graph, std::uint32_t micro_batches, const Cluster& cluster,
                  const PlanRequest& asked, Unplaceable& answer) {
  if (graph.num_ops() * micro_batches > kMostToTell) return;
  const bool waits = std::ranges::any_of(
      graph.ops(), [&](OpId op) { return graph[op].variable || graph[op].backward; });
  if (!waits) return;  // nothing that a host could keep for long
  const PlanRequest request = asked.within(asked.budget.part(kToTell));
  const Recompute again = why_no_recompute(asked).empty() ? Recompute::kAuto : Recompute::kNone;
  const std::optional<Cluster> more = with_host(cluster);
  if (!more.has_value()) return;
  try {
    check(graph, *more, request);
    std::optional<ResidingVariant> best =
        best_residing(graph, micro_batches, *more, request, again, ResidencyEffort::kFew);
    if (best.has_value() && !best->found.fits)
      best = best_residing(graph, micro_batches, *more, request, again, ResidencyEffort::kAll);
    if (!best.has_value() || !best->found.fits) return;
    answer.step_with_host = best->found.makespan;
    answer.host_needs = best->found.peaks[store_of(*more)];
  } catch (const InputError&) {  // what is asked for has no fetches
    return;
  }
}

void check_residency(const OpGraph& graph, const Cluster& cluster, const StepRequest& request) {
  check(graph, cluster, request.search, request.known);
}

StepPlan plan_residing(OpGraph graph, std::uint32_t micro_batches, const Cluster& cluster,
                       const StepRequest& request, StepPlan without, PlanTimes* times) {
  Plan* other = std::get_if<Plan>(&without.result);
  const bool proved = other == nullptr && std::get<Unplaceable>(without.result).proved;
  if (request.known != nullptr) {
    std::optional<StepPlan> known =
        replayed(graph, micro_batches, cluster, request.second_runs(), *request.known);
    Plan* plan = known.has_value() ? &std::get<Plan>(known->result) : nullptr;
    if (plan != nullptr && (other == nullptr || plan->makespan() < other->makespan())) {
      plan->methods = methods_of(without.result);
      plan->methods.push_back(outcome_of(*plan));
      known->micro_batch = recosted(graph, {});
      without = *std::move(known);
      other = &std::get<Plan>(without.result);
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  const bool all = request.residency == AwayChoice::kAll;
  const double share = proved ? 1 : cluster.num_devices() > 2 ? kBesideSeveral : kBesideOthers;
  std::optional<ResidingVariant> best = best_residing(
      graph, micro_batches, cluster, request.search.within(request.search.budget.part(share)),
      request.second_runs(), all ? ResidencyEffort::kAll : ResidencyEffort::kMany, request.known);
  if (request.copies_apart && micro_batches > 1 && cluster.num_devices() > 2) {
    std::optional<ResidingVariant> apart = best_apart(
        graph, micro_batches, cluster, request.search.within(request.search.budget.part(share)),
        best.has_value() ? best->again : std::vector<Recomputation>{},
        all ? ResidencyEffort::kAll : ResidencyEffort::kMany);
    if (apart.has_value() && (!best.has_value() || apart->found.rating() < best->found.rating()))
      best = std::move(apart);
  }
  const bool fits = best.has_value() && best->found.fits;
  const bool better = fits && (other == nullptr || all || best->found.makespan < other->makespan());
  const std::vector<NamedBound> bounds =
      request.search.bounds ? bounds_of(graph, micro_batches, cluster, request.copies_apart)
                            : std::vector<NamedBound>{};
  if (!better && other != nullptr && !all) {
    other->bounds = bounds;
    return without;
  }
  if (!better) {
    Unplaceable answer;
    if (other == nullptr) answer = std::get<Unplaceable>(std::move(without.result));
    answer.proved = false;
    if (best.has_value()) answer.reason = what_lacks(cluster, best->found);
    answer.reason += where_updates_run(graph, cluster);
    answer.short_by = best.has_value() ? best->found.over : answer.short_by;
    answer.op.reset();
    without.result = std::move(answer);
    return without;
  }
  StepPlan made = told(graph, cluster, *best);
  made.micro_batch = std::move(graph);
  Plan& plan = std::get<Plan>(made.result);
  plan.bounds = bounds;
  plan.methods = methods_of(without.result);
  plan.methods.push_back(outcome_of(plan));
  if (other != nullptr) plan.passes = other->passes;
  if (times != nullptr)
    times->methods.push_back({kMethod, std::chrono::duration_cast<std::chrono::nanoseconds>(
                                           std::chrono::steady_clock::now() - begin)
                                           .count()});
  return made;
}

}  // namespace baechi
