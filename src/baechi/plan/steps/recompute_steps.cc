// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/recompute_steps.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/short_text.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/cost/cost_model.h"
#include "baechi/graph/recomputation.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/recompute/ample_memory.h"
#include "baechi/plan/recompute/recompute.h"
#include "baechi/plan/recompute/recompute_search.h"
#include "baechi/plan/recompute/second_runs.h"
#include "baechi/plan/request/recompute_request.h"
#include "baechi/plan/steps/sizes.h"
#include "baechi/plan/steps/step_search.h"
#include "baechi/verify/check_recomputation.h"

namespace baechi {
namespace {

using Chosen = IdVector<OpId, bool>;

constexpr std::size_t kMostSets = 8;  // from few second runs to whole regions
constexpr double kForATry = 0.2;      // parts of the budget
constexpr double kLonger = 1.005;     // a step that much longer than with ample memory

struct Made {
  Unrolled step;
  PlanResult result;

  const Plan* plan() const { return std::get_if<Plan>(&result); }
};

// How much longer devices compute for it, for people.
std::string cost_of_second_runs(const Unrolled& step, const OpGraph& graph, const Plan& plan) {
  Time again, all;
  for (const OpId op : plan.schedule.slots.keys()) {
    const Time taken = plan.schedule.slots[op].end - plan.schedule.slots[op].start;
    all += taken;
    if (step.original[op].index() >= graph.num_ops()) again += taken;
  }
  return std::to_string(plan.recomputed.size()) +
         " operators run a second time in every micro-batch: " + short_text(again) +
         " more of computing beside " + short_text(all - again);
}

class Choices {
 public:
  Choices(const OpGraph& graph, std::uint32_t micro_batches, const Cluster& cluster,
          const PlanRequest& request)
      : graph_(graph),
        micro_batches_(micro_batches),
        costs_(graph, cluster),
        request_(request),
        runs_(graph),
        search_(costs_, runs_, request_, 0) {}

  bool any() const { return runs_.any() && why_not().empty(); }
  // Second runs name their forward operators, and where none did, that would tell updates apart.
  std::string why_not() const {
    const bool told = graph_.marks_steps() || std::ranges::any_of(graph_.ops(), [&](OpId op) {
                        return graph_[op].forward.has_value();
                      });
    if (!runs_.any()) return nothing_to_repeat(graph_);
    return told ? ""
                : "nothing is recomputed: neither does a gradient of the graph name its "
                  "forward operator, nor is an operator marked as running once per step";
  }
  std::vector<Chosen> from_few_to_all() const { return search_.from_few_to_all(kMostSets); }
  Chosen all() const { return search_.all(); }

  Made without() const {
    Made made{unroll(graph_, micro_batches_), Plan{}};
    made.result = plan_step(graph_, made.step, costs_.cluster(), watched(1));
    return made;
  }
  // What a step takes where memory costs nothing.
  std::optional<Time> with_ample_memory(const Unrolled& step) const {
    const Cluster ample = roomier(CostModel(step.graph, costs_.cluster()), std::nullopt);
    // Nobody is told: no such step is to be had.
    const PlanResult result =
        plan_step(graph_, step, ample, request_.within(request_.budget.part(kForATry)));
    const Plan* plan = std::get_if<Plan>(&result);
    return plan != nullptr ? std::optional(plan->makespan()) : std::nullopt;
  }
  // With these second runs, for so much of the budget. Whether something fits is asked in short of large
  // steps, unless it is asked with all of it.
  Made with(const Chosen& chosen, double part) const {
    const auto order = graph_.topological_order();
    std::vector<Recomputation> again = runs_.in({order.begin(), order.end()}, chosen).again;
    const OpGraph one = recomputing(graph_, again);
    const std::vector<std::string> faults = check_recomputation(graph_, one, again);
    BAECHI_ASSERT(faults.empty(), ("second runs broke a rule: " + faults.front()).c_str());
    Made made{unroll(one, micro_batches_), Plan{}};
    PlanRequest request = watched(part);
    if (part < 1 && is_large(made.step)) request.budget_to_fit = request_.budget;
    made.result = plan_step(one, made.step, costs_.cluster(), request);
    if (Plan* plan = std::get_if<Plan>(&made.result)) {
      plan->recomputed = std::move(again);
      if (!plan->recomputed.empty())
        plan->notes.push_back(cost_of_second_runs(made.step, graph_, *plan));
    }
    return made;
  }
  // Valid with any second runs: they shorten nothing, and no memory is asked for.
  std::vector<NamedBound> bounds() const {
    if (!request_.bounds) return {};
    const Unrolled step = unroll(graph_, micro_batches_);
    const Cluster ample = roomier(CostModel(step.graph, costs_.cluster()), std::nullopt);
    return lower_bounds(CostModel(step.graph, ample));  // also of a search that was stopped
  }
  // By arithmetic, with or without second runs.
  bool cannot_fit() const {
    const Unrolled step = unroll(graph_, micro_batches_);
    const CostModel costs(step.graph, costs_.cluster());
    return prove_cannot_fit(costs, Units(costs)).has_value();
  }

 private:
  PlanRequest watched(double part) const {
    PlanRequest request = request_.within(request_.budget.part(part));
    request.watch = request_.watch;
    return request;
  }

  const OpGraph& graph_;
  const std::uint32_t micro_batches_;
  const CostModel costs_;
  const PlanRequest request_;
  const SecondRuns runs_;
  const RecomputeSearch search_;
};

// The choice with the shortest step of those that were tried: the fewest second runs with which
// something fits are looked for by halving, since more of them seldom need more memory.
// `offer` is given each plan.
template <class Offer>
std::optional<std::size_t> best_of(const Choices& choices, const std::vector<Chosen>& all,
                                   const Offer& offer) {
  std::optional<std::pair<Time, std::size_t>> best;
  const auto fits = [&](std::size_t at) {
    Made made = choices.with(all[at], kForATry);
    if (made.plan() == nullptr) return false;
    const std::pair found{made.plan()->makespan(), at};
    if (!best.has_value() || found < *best) best = found;
    offer(std::move(made));
    return true;
  };
  if (!fits(all.size() - 1)) return std::nullopt;
  std::size_t low = 0, high = all.size() - 1;
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (fits(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return best->second;
}

// The shortest with some second runs, if one is shorter than `without`. When asked to stop, of those
// that were planned until then.
std::optional<Made> shortest(const Choices& choices, const Made& without, bool& stopped) {
  std::optional<Made> made;
  const auto offer = [&](Made other) {
    if (other.plan() == nullptr || other.plan()->recomputed.empty()) return;
    const Plan* before = made.has_value() ? made->plan() : without.plan();
    if (before == nullptr || other.plan()->makespan() < before->makespan()) made = std::move(other);
  };
  try {
    const std::vector<Chosen> all = choices.from_few_to_all();
    std::optional<Time> shortest_try, of_all;  // the first try is of all
    const auto offer_try = [&](Made tried) {
      const Time step = tried.plan()->makespan();
      if (!of_all.has_value()) of_all = step;
      shortest_try = std::min(shortest_try.value_or(step), step);
      offer(std::move(tried));
    };
    const std::optional<std::size_t> best = best_of(choices, all, offer_try);
    // More of the budget hardly makes a step shorter by a third.
    const auto is_near = [&](Time tried) {
      const Plan* other = made.has_value() ? made->plan() : without.plan();
      return other == nullptr || tried.count() / 3 * 2 <= other->makespan().count();
    };
    if (best.has_value() && is_near(*shortest_try)) offer(choices.with(all[*best], 1));
    if (best != all.size() - 1 && (best.has_value() ? is_near(*of_all) : without.plan() == nullptr))
      offer(choices.with(all.back(), 1));
  } catch (const Cancelled&) {  // anytime: the plan that there is stays
    if (!made.has_value() && without.plan() == nullptr) throw;
    stopped = true;
  }
  return made;
}

constexpr const char* kStoppedChoices =
    "you stopped before all second runs were looked at: another run may find a shorter step";

Made chosen_by_auto(const Choices& choices, Made without, bool first_that_fits) {
  bool stopped = false;
  if (first_that_fits) {
    if (without.plan() != nullptr || choices.cannot_fit()) return without;
    Made all = choices.with(choices.all(), 1);
    return all.plan() != nullptr ? std::move(all) : std::move(without);
  }
  if (const Plan* plan = without.plan()) {
    std::optional<Time> ample;
    try {
      ample = choices.with_ample_memory(without.step);
    } catch (const Cancelled&) {
      stopped = true;
    }
    if (!stopped && (!ample.has_value() || static_cast<double>(plan->makespan().count()) <=
                                               static_cast<double>(ample->count()) * kLonger))
      return without;
  } else if (choices.cannot_fit()) {
    return without;
  }
  std::optional<Made> found;
  if (!stopped) found = shortest(choices, without, stopped);
  Made& made = found.has_value() ? *found : without;
  if (Plan* plan = std::get_if<Plan>(&made.result); plan != nullptr && stopped)
    plan->notes.emplace_back(kStoppedChoices);
  return std::move(made);
}

}  // namespace

StepPlan plan_recomputing_steps(OpGraph graph, std::uint32_t micro_batches, const Cluster& cluster,
                                Recompute recompute, const PlanRequest& request) {
  std::optional<Made> made;
  {
    const Choices choices(graph, micro_batches, cluster, request);
    const bool all = recompute == Recompute::kAll;
    if (!choices.any())
      made = choices.without();
    else if (all)
      made = choices.with(choices.all(), 1);
    else
      made = chosen_by_auto(choices, choices.without(), request.budget.none());
    if (Plan* found = std::get_if<Plan>(&made->result)) {
      found->bounds = choices.bounds();
      if (!choices.any()) found->notes.push_back(choices.why_not());
    } else if (choices.any()) {
      of_any_second_runs(std::get<Unplaceable>(made->result), choices.cannot_fit(), all);
    }
  }
  return {std::move(graph), std::move(made->step), std::move(made->result)};
}

std::optional<Time> step_with_recomputation(const OpGraph& graph, std::uint32_t micro_batches,
                                            const Cluster& cluster, const PlanRequest& request) {
  const Choices choices(graph, micro_batches, cluster, request);
  if (!choices.any()) return std::nullopt;
  const Made made = choices.with(choices.all(), kForATry);
  return made.plan() != nullptr ? std::optional(made.plan()->makespan()) : std::nullopt;
}

}  // namespace baechi
