// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/recompute/recompute_search.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "baechi/base/cancel.h"
#include "baechi/plan/fit/fit_search.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/recompute/forward_runs.h"
#include "baechi/plan/recompute/recompute_walk.h"
#include "baechi/plan/recompute/sparing_choices.h"
#include "baechi/plan/search/refine.h"
#include "baechi/simulate/simulator.h"

namespace baechi {
namespace {

// Making a graph and its simulator takes about as long as so many replays.
constexpr std::int64_t kReplaysPerTry = 6;
constexpr int kMostRounds = 12;
constexpr std::size_t kMostSwaps = 400;

void simulated(RecomputePlan& plan, Simulator& simulator, const Cluster& cluster) {
  const StepSummary& step = simulator.run(plan.placed);
  plan.makespan = step.makespan;
  plan.peaks = step.peaks;
  plan.over = Bytes(0);
  for (const DeviceId device : step.peaks.keys())
    plan.over += std::max(step.peaks[device] - cluster[device].capacity, Bytes(0));
}

}  // namespace

RecomputeStart start_of(const Schedule& schedule, const OpGraph& graph) {
  return {placement_of(schedule), sequence_of(schedule, graph)};
}

RecomputeSearch::RecomputeSearch(const CostModel& costs, const SecondRuns& runs,
                                 const PlanRequest& request, std::int64_t work)
    : costs_(costs), runs_(runs), request_(request), work_(work) {}

RecomputePlan RecomputeSearch::tried(const RecomputeStart& start, const Chosen& chosen,
                                     const SecondRuns::Leads& leads) {
  throw_if_cancelled(request_.place.cancel);
  SecondRuns::Placed placed = runs_.in(start.sequence, chosen, leads);
  RecomputePlan plan;
  plan.leads = leads;
  if (again_ == nullptr || again_->again != placed.again) {
    again_ = std::make_unique<Again>(costs_, placed.again);
    work_ -= (kReplaysPerTry - 1) * static_cast<std::int64_t>(again_->graph->num_ops());
  }
  plan.graph = again_->graph;
  plan.placed.device = start.device;
  for (const Recomputation& again : placed.again)
    plan.placed.device.push_back(start.device[again.op]);
  plan.placed.order.emplace(costs_.cluster().num_devices());
  for (const OpId op : placed.sequence) (*plan.placed.order)[plan.placed.device[op]].push_back(op);
  plan.again = std::move(placed.again);
  simulated(plan, again_->simulator, costs_.cluster());
  work_ -= static_cast<std::int64_t>(plan.graph->num_ops());
  return plan;
}

IdVector<OpId, bool> RecomputeSearch::all() const { return SparingChoices(costs_, runs_).all(); }

std::vector<IdVector<OpId, bool>> RecomputeSearch::from_few_to_all(std::size_t count) const {
  std::vector<Chosen> choices;
  for (SparingChoice& choice : SparingChoices(costs_, runs_).from_few_to_all(count))
    choices.push_back(std::move(choice.again));
  return choices;
}

IdVector<OpId, bool> RecomputeSearch::chosen_in(const RecomputePlan& plan) const {
  Chosen chosen(costs_.graph().num_ops());
  for (const Recomputation& again : plan.again) chosen[again.op] = true;
  return chosen;
}

RecomputeStart RecomputeSearch::start_of(const RecomputePlan& plan) const {
  const CostModel costs(*plan.graph, costs_.cluster());
  RecomputeStart start = baechi::start_of(simulate(costs, plan.placed).schedule, *plan.graph);
  start.device = Placement();
  for (const OpId op : costs_.graph().ops()) start.device.push_back(plan.placed.device[op]);
  std::erase_if(start.sequence, [&](OpId op) { return op.index() >= costs_.graph().num_ops(); });
  return start;
}

std::optional<RecomputePlan> RecomputeSearch::fit(const RecomputeStart& start) {
  const OpGraph& graph = costs_.graph();
  const Cluster& cluster = costs_.cluster();
  std::vector<DeviceRuns> devices =
      forward_runs(costs_, runs_, start.sequence, &start.device, cluster.num_devices());
  std::vector<KeepOrRecompute> choices;
  IdVector<DeviceId, Bytes> limit, fitting(cluster.num_devices());
  for (DeviceRuns& device : devices) {
    choices.emplace_back(std::move(device.runs));
    limit.push_back(cluster[DeviceId(choices.size() - 1)].capacity);
  }
  for (const OpId op : graph.ops()) limit[start.device[op]] -= graph[op].permanent;

  std::optional<RecomputePlan> best, nearest;
  std::optional<Chosen> last;
  bool last_was_stuck = false;
  struct Within {  // what was chosen last on a device: only limits that changed are asked again
    std::optional<Bytes> limit;
    std::vector<bool> again;
  };
  std::vector<Within> known(choices.size());
  const auto choose = [&] {
    Chosen chosen(graph.num_ops());
    for (std::size_t d = 0; d < choices.size(); ++d) {
      if (known[d].limit != limit[DeviceId(d)]) {
        std::optional<std::vector<bool>> again = choices[d].within(limit[DeviceId(d)]);
        if (!again.has_value()) again = choices[d].regions_within(choices[d].least());
        known[d] = {limit[DeviceId(d)], *std::move(again)};
      }
      for (std::size_t i = 0; i < known[d].again.size(); ++i)
        chosen[devices[d].ops[i]] = known[d].again[i];
    }
    return chosen;
  };
  for (int round = 0; round < kMostRounds && (work_ > 0 || round == 0); ++round) {
    Chosen chosen = choose();
    // The same second runs again: so much less memory that there are others, if any are left.
    constexpr int kMostSteps = 8;
    for (int step = 0; step < kMostSteps && last == chosen && !best.has_value(); ++step) {
      for (const DeviceId device : cluster.devices())
        if (nearest->peaks[device] > cluster[device].capacity)
          limit[device] -= Bytes(limit[device].count() / 32);
      chosen = choose();
    }
    if (last == chosen) break;
    RecomputePlan plan = tried(start, chosen);
    // Others were chosen, but they are of no use where the step runs so: nothing is left to drop.
    const bool stuck = nearest.has_value() && !best.has_value() && plan.again == nearest->again;
    if (stuck && last_was_stuck) break;
    last_was_stuck = stuck;
    last = std::move(chosen);
    for (const DeviceId device : cluster.devices()) {
      const Bytes capacity = cluster[device].capacity, peak = plan.peaks[device];
      if (plan.fits()) {
        fitting[device] = limit[device];
        limit[device] += Bytes((capacity - peak).count() / 4 * 3);
      } else if (best.has_value()) {
        limit[device] = fitting[device] + Bytes((limit[device] - fitting[device]).count() / 2);
      } else if (peak > capacity) {
        limit[device] -= (peak - capacity) + Bytes((peak - capacity).count() / 8);
      }
    }
    if (plan.fits() && (!best.has_value() || plan.makespan < best->makespan)) best = plan;
    nearest = std::move(plan);
  }
  if (best.has_value() || !nearest.has_value()) return best;
  RecomputePlan plan = squeezed(*std::move(nearest), start);
  return plan.fits() ? std::optional(std::move(plan)) : repaired(std::move(plan));
}

// One second run more or less at a time, as long as that brings the plan nearer to fit: the dynamic
// program knows neither gradients nor what the forward pass itself needs.
RecomputePlan RecomputeSearch::squeezed(RecomputePlan plan, const RecomputeStart& start) {
  constexpr std::size_t kMostTries = 64, kFew = 16;
  std::vector<OpId> largest;
  for (const OpId op : costs_.graph().ops())
    if (runs_.may(op) && plan.peaks[start.device[op]] > costs_.cluster()[start.device[op]].capacity)
      largest.push_back(op);
  std::stable_sort(largest.begin(), largest.end(), [&](OpId a, OpId b) {
    return costs_.graph().output_bytes(a) > costs_.graph().output_bytes(b);
  });
  largest.erase(largest.begin() + static_cast<std::ptrdiff_t>(std::min(kMostTries, largest.size())),
                largest.end());
  const auto offer = [&](std::initializer_list<OpId> changed) {
    Chosen chosen = chosen_in(plan);
    for (const OpId op : changed) chosen[op] = !chosen[op];
    RecomputePlan found = tried(start, chosen);
    if (found.over >= plan.over) return false;
    plan = std::move(found);
    return true;
  };
  const std::int64_t rest = work_ / 8 * 7;  // for others to spend
  const auto goes_on = [&] { return !plan.fits() && work_ > rest; };
  for (bool better = true; better && goes_on();) {
    better = false;
    for (std::size_t i = 0; i < largest.size() && goes_on(); ++i)
      better = offer({largest[i]}) || better;
    // Of two moments that are equally full, one change mends one.
    for (std::size_t i = 0; i < largest.size() && !better && largest.size() <= kFew; ++i)
      for (std::size_t j = i + 1; j < largest.size() && !better && goes_on(); ++j)
        better = offer({largest[i], largest[j]});
  }
  return plan;
}

// Some device has more than it can drop: others take of it.
std::optional<RecomputePlan> RecomputeSearch::repaired(RecomputePlan plan) {
  const CostModel costs(*plan.graph, costs_.cluster());
  const Units units(costs);
  FitSearch search(
      costs, units,
      {.simulated_ops = std::max<std::int64_t>(work_ / 8, 0), .cancel = request_.place.cancel});
  std::optional<PlacedGraph> found = search.repair(plan.placed);
  work_ -= search.work();
  if (!found.has_value()) return std::nullopt;
  plan.placed = *std::move(found);
  measure(plan, costs);
  return plan.fits() ? std::optional(std::move(plan)) : std::nullopt;
}

void RecomputeSearch::measure(RecomputePlan& plan, const CostModel& costs) const {
  Simulator simulator(costs);
  simulated(plan, simulator, costs.cluster());
}

RecomputePlan RecomputeSearch::improved(RecomputePlan plan) {
  const RecomputeStart start = start_of(plan);
  const std::int64_t rest = work_ / 2;  // for others to spend
  Chosen chosen = chosen_in(plan);
  const auto offer_with = [&](const Chosen& other, const SecondRuns::Leads& leads) {
    RecomputePlan found = tried(start, other, leads);
    if (!found.fits() || found.makespan >= plan.makespan) return false;
    plan = std::move(found);
    chosen = chosen_in(plan);
    return true;
  };
  const auto offer = [&](const Chosen& other) {
    return offer_with(other, SecondRuns::Leads(plan.leads));
  };
  // Without what takes longest for its bytes, in ever smaller parts.
  const auto ranked = [&](bool is_chosen) {
    std::vector<std::pair<double, OpId>> ops;
    for (const OpId op : costs_.graph().ops()) {
      if (chosen[op] != is_chosen || !runs_.may(op)) continue;
      const auto time = costs_.compute_time(op, start.device[op]).value_or(Time(0));
      const std::int64_t bytes = costs_.graph().output_bytes(op).count();
      ops.emplace_back(-static_cast<double>(time.count()) /
                           static_cast<double>(std::max<std::int64_t>(bytes, 1)),
                       op);
    }
    std::sort(ops.begin(), ops.end());
    return ops;
  };
  for (std::size_t part = std::max<std::size_t>(plan.again.size() / 2, 1); work_ > rest;
       part /= 2) {
    const auto ops = ranked(true);
    for (std::size_t begin = 0; begin < ops.size() && work_ > rest; begin += part) {
      Chosen fewer = chosen;
      for (std::size_t i = begin; i < std::min(begin + part, ops.size()); ++i)
        fewer[ops[i].second] = false;
      if (fewer != chosen) offer(fewer);
    }
    if (part <= 1) break;
  }
  // One more for one or two less, where there are few.
  bool better = true;
  while (better && work_ > rest) {
    better = false;
    const auto in = ranked(true), out = ranked(false);
    if (in.size() * out.size() > kMostSwaps) break;
    for (std::size_t i = 0; i < in.size() && !better && work_ > rest; ++i)
      for (std::size_t j = 0; j < out.size() && !better && work_ > rest; ++j) {
        Chosen other = chosen;
        other[in[i].second] = false;
        other[out[j].second] = true;
        better = offer(other);
      }
  }
  // Earlier, while a device waits for others.
  for (const DeviceId device : costs_.cluster().devices())
    for (const std::uint32_t lead : {1U, 2U, 4U, 8U, 16U}) {
      if (costs_.cluster().num_devices() == 1 || work_ <= rest) break;
      SecondRuns::Leads leads = plan.leads;
      leads.resize(costs_.graph().num_ops());
      for (const Recomputation& again : plan.again)
        if (start.device[again.op] == device) leads[again.op] = lead;
      if (leads != plan.leads) offer_with(Chosen(chosen), leads);
    }
  return plan;
}

std::optional<RecomputePlan> RecomputeSearch::walked(const RecomputePlan& plan, std::int64_t work,
                                                     std::uint64_t seed) {
  SecondRunsState state{start_of(plan), chosen_in(plan), plan.leads};
  state.leads.resize(costs_.graph().num_ops());
  const std::int64_t rest = std::exchange(work_, work);
  std::optional<RecomputePlan> found = walk_with_second_runs(
      costs_, runs_, std::move(state),
      {.seed = seed,
       .goes_on = [&] { return work_ > 0; },
       .tried = [&](const SecondRunsState& at) { return tried(at.start, at.chosen, at.leads); }});
  work_ = rest;
  return found;
}

RecomputePlan RecomputeSearch::refined(RecomputePlan plan, std::int64_t work) {
  const CostModel costs(*plan.graph, costs_.cluster());
  const Units units(costs);
  Refined found = refine(costs, units, plan.placed,
                         {.work = work,
                          .seed = request_.place.seed,
                          .threads = request_.threads,
                          .cancel = request_.place.cancel});
  if (found.makespan >= plan.makespan) return plan;
  plan.placed = std::move(found.placed);
  measure(plan, costs);
  return plan;
}

}  // namespace baechi
