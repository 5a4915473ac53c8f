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
#include "baechi/base/short_text.h"
#include "baechi/cost/cost_model.h"
#include "baechi/cost/device_presets.h"
#include "baechi/graph/recomputation.h"
#include "baechi/graph/residency.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/recompute/recompute_search.h"
#include "baechi/plan/recompute/second_runs.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/residency/residency_bounds.h"
#include "baechi/plan/residency/residency_search.h"
#include "baechi/plan/steps/residing_starts.h"
#include "baechi/verify/check_plan.h"
#include "baechi/verify/check_variables.h"

namespace baechi {
namespace {

constexpr const char* kMethod = "residency";
constexpr std::size_t kChoices = 4;  // of second runs, beside none

void check(const OpGraph& graph, const Cluster& cluster, const PlanRequest& request) {
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
  if (request.place.expert != nullptr) refuse("an expert's placement has no fetches");
  if (request.robust.has_value())
    refuse("plans with fetches are compared by their steps alone: leave out robust");
  if (cluster.host_time().has_value())
    refuse("it is not planned with a host time yet: leave that out");
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

// For these second runs: the step, and what is best kept away in it.
struct Variant {
  std::vector<Recomputation> again;
  std::unique_ptr<Unrolled> step;  // before anything is away
  std::unique_ptr<CostModel> costs;
  std::vector<ResidencyStart> starts;
  std::optional<FoundResidency> found;

  ResidencyProblem problem() const { return {*step, *costs}; }
};

class Planning {
 public:
  Planning(const OpGraph& graph, std::uint32_t micro_batches, const Cluster& cluster,
           const PlanRequest& request)
      : graph_(graph),
        micro_batches_(micro_batches),
        cluster_(cluster),
        request_(request),
        costs_(graph, cluster),
        runs_(graph) {
    request_.residency = AwayChoice::kNone;
    request_.recompute = Recompute::kNone;
    request_.bounds = false;
    request_.suggest = false;
    request_.watch = nullptr;
  }

  std::vector<NamedBound> bounds() const {
    const Unrolled step = unroll(graph_, micro_batches_);
    return residency_bounds({step, CostModel(step.graph, cluster_)});
  }

  // All tries without second runs, so that those make nothing longer; a few with each choice of them, and all
  // with the best of these.
  std::optional<Variant> best(Recompute recompute, ResidencyEffort asked) {
    sequences_ = sequences_of_one(costs_, micro_batches_, request_);
    const std::vector<IdVector<OpId, bool>> choices = choices_of(recompute);
    std::optional<Variant> best = found_for(choices.front(), asked), again;
    if (choices.size() == 1) return best;
    for (std::size_t i = 1; i < choices.size(); ++i) {
      std::optional<Variant> variant = found_for(choices[i], ResidencyEffort::kFew);
      if (variant.has_value() && (!again.has_value() || variant->found->better_than(*again->found)))
        again = std::move(variant);
    }
    if (!again.has_value()) return best;
    auto found = find_residency(again->problem(), again->starts, asked, cancel());
    if (found.has_value() && found->better_than(*again->found)) again->found = std::move(found);
    return best.has_value() && !again->found->better_than(*best->found) ? std::move(best)
                                                                        : std::move(again);
  }

 private:
  std::optional<Variant> found_for(const IdVector<OpId, bool>& chosen, ResidencyEffort effort) {
    Variant variant = variant_of(chosen);
    variant.found = find_residency(variant.problem(), variant.starts, effort, cancel());
    if (!variant.found.has_value()) return std::nullopt;
    return variant;
  }

  const CancelFlag* cancel() const { return request_.place.cancel; }

  std::vector<IdVector<OpId, bool>> choices_of(Recompute recompute) const {
    const IdVector<OpId, bool> none(graph_.num_ops());
    if (recompute == Recompute::kNone || !runs_.any()) return {none};
    const RecomputeSearch search(costs_, runs_, request_, 0);
    if (recompute == Recompute::kAll) return {search.all()};
    std::vector<IdVector<OpId, bool>> choices = search.from_few_to_all(kChoices);
    choices.insert(choices.begin(), none);
    return choices;
  }

  Variant variant_of(const IdVector<OpId, bool>& chosen) const {
    Variant variant;
    std::vector<SequenceOfOne> ones;
    for (const SequenceOfOne& sequence : sequences_) {
      SecondRuns::Placed placed = runs_.in(sequence.sequence, chosen);
      if (!ones.empty() && placed.again != variant.again) continue;  // those of the first
      variant.again = std::move(placed.again);
      ones.push_back({sequence.device, std::move(placed.sequence)});
      for (const Recomputation& again : variant.again)
        ones.back().device.push_back(sequence.device[again.op]);
    }
    variant.step =
        std::make_unique<Unrolled>(unroll(recomputing(graph_, variant.again), micro_batches_));
    variant.costs = std::make_unique<CostModel>(variant.step->graph, cluster_);
    for (const SequenceOfOne& one : ones)
      for (const InGroups& grouping : groupings())
        variant.starts.push_back(start_in_groups(variant.problem(), one, grouping));
    return variant;
  }

  std::vector<InGroups> groupings() const {
    if (micro_batches_ == 1) return {{}};
    Bytes least = cluster_[DeviceId(0)].capacity;
    for (const DeviceId device : cluster_.devices())
      least = std::min(least, cluster_[device].capacity);
    std::vector<InGroups> all;
    for (const std::uint32_t parts : {1U, 2U, micro_batches_})
      if (micro_batches_ % parts == 0 && (parts < micro_batches_ || all.size() < 2 * parts))
        for (const std::int64_t part : {32, 8})
          all.push_back({micro_batches_ / parts, Bytes(least.count() / part)});
    return all;
  }

  const OpGraph& graph_;
  const std::uint32_t micro_batches_;
  const Cluster& cluster_;
  PlanRequest request_;
  const CostModel costs_;
  const SecondRuns runs_;
  std::vector<SequenceOfOne> sequences_;
};

StepPlan told(const OpGraph& graph, const Cluster& cluster, Variant& variant) {
  StepPlan made{std::nullopt, with_fetches(*variant.step, variant.found->residency), Plan{}};
  const CostModel costs(made.step.graph, cluster);
  Plan plan = plan_of(costs, variant.found->placed, kMethod, false);
  plan.micro_batches = made.step.micro_batches;
  plan.recomputed = std::move(variant.again);
  plan.residency = std::move(variant.found->residency);
  const std::vector<std::string> faults = check_step(graph, made.step.graph, plan);
  BAECHI_ASSERT(faults.empty(), ("fetches broke a rule: " + faults.front()).c_str());
  const std::vector<std::string> unordered = check_carried(made.step, cluster, plan.schedule);
  BAECHI_ASSERT(unordered.empty(), ("a plan broke a rule: " + unordered.front()).c_str());
  plan.notes.push_back(in_words(costs.graph(), plan, cluster));
  made.result = std::move(plan);
  return made;
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
  if (graph.num_ops() * micro_batches > kMostToTell || asked.residency != AwayChoice::kNone) return;
  const bool waits = std::ranges::any_of(
      graph.ops(), [&](OpId op) { return graph[op].variable || graph[op].backward; });
  if (!waits) return;  // nothing that a host could keep for long
  PlanRequest request = asked;
  request.budget *= kToTell;
  request.recompute = Recompute::kNone;
  const std::optional<Cluster> more = with_host(cluster);
  if (!more.has_value()) return;
  try {
    check(graph, *more, request);
    Planning planning(graph, micro_batches, *more, request);
    const std::optional<Variant> best = planning.best(Recompute::kNone, ResidencyEffort::kFew);
    if (!best.has_value() || !best->found->fits) return;
    answer.step_with_host = best->found->makespan;
    answer.host_needs = best->found->store_needs;
  } catch (const InputError&) {  // what is asked for has no fetches
    return;
  }
}

void check_residency_request(const OpGraph& graph, const Cluster& cluster,
                             const PlanRequest& request) {
  check(graph, cluster, request);
}

StepPlan plan_residing(OpGraph graph, std::uint32_t micro_batches, const Cluster& cluster,
                       const PlanRequest& request, StepPlan without, PlanTimes* times) {
  Plan* other = std::get_if<Plan>(&without.result);
  const auto begin = std::chrono::steady_clock::now();
  const bool all = request.residency == AwayChoice::kAll;
  Planning planning(graph, micro_batches, cluster, request);
  std::optional<Variant> best =
      planning.best(request.recompute, all ? ResidencyEffort::kAll : ResidencyEffort::kMany);
  const bool fits = best.has_value() && best->found->fits;
  const bool better =
      fits && (other == nullptr || all || best->found->makespan < other->makespan());
  const std::vector<NamedBound> bounds =
      request.bounds ? planning.bounds() : std::vector<NamedBound>{};
  if (!better && other != nullptr && !all) {
    other->bounds = bounds;
    return without;
  }
  if (!better) {
    Unplaceable answer;
    if (other == nullptr) answer = std::get<Unplaceable>(std::move(without.result));
    answer.proved = false;
    if (best.has_value())
      answer.reason = "with all that may be away on the host, a device still lacks " +
                      short_text(best->found->over) + " (" + short_text(best->found->step_needs) +
                      " in all)";
    answer.short_by = best.has_value() ? best->found->over : answer.short_by;
    answer.op.reset();
    without.result = std::move(answer);
    return without;
  }
  StepPlan made = told(graph, cluster, *best);
  made.micro_batch = std::move(graph);
  Plan& plan = std::get<Plan>(made.result);
  plan.bounds = bounds;
  plan.methods = other != nullptr ? other->methods : std::get<Unplaceable>(without.result).methods;
  plan.methods.push_back(outcome_of(plan));
  if (other != nullptr) plan.passes = other->passes;
  if (times != nullptr)
    times->methods.push_back({kMethod, std::chrono::duration_cast<std::chrono::nanoseconds>(
                                           std::chrono::steady_clock::now() - begin)
                                           .count()});
  return made;
}

}  // namespace baechi
