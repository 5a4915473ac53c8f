// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/step_plan.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/short_text.h"
#include "baechi/graph/recosted.h"
#include "baechi/place/pipeline/pipeline.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/planner.h"
#include "baechi/plan/recompute/recompute.h"
#include "baechi/plan/recompute/recompute_plan.h"
#include "baechi/plan/recompute/second_runs.h"
#include "baechi/plan/request/budget.h"
#include "baechi/plan/request/paper.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/request/recompute_request.h"
#include "baechi/plan/steps/recompute_steps.h"
#include "baechi/plan/steps/replica_request.h"
#include "baechi/plan/steps/replica_steps.h"
#include "baechi/plan/steps/residing_steps.h"
#include "baechi/plan/steps/step_advice.h"
#include "baechi/plan/steps/step_methods.h"
#include "baechi/plan/steps/step_request.h"
#include "baechi/plan/steps/step_search.h"

namespace baechi {
namespace {

// Where operators may run a second time, the step has a graph of its own.
StepPlan plan_again(OpGraph graph, const Cluster& cluster, Recompute recompute,
                    const PlanRequest& request, PlanTimes* times) {
  Recomputed made = plan_recomputing(graph, cluster, recompute, request, times);
  if (!made.graph.has_value())
    return {std::nullopt, as_step(std::move(graph)), std::move(made.result)};
  return {std::move(graph), as_step(*std::move(made.graph)), std::move(made.result)};
}

// Of the graph as it is.
PlanResult plan_as_it_is(const OpGraph& graph, const Cluster& cluster, PlanRequest request,
                         PlanTimes* times) {
  PlanResult result = make_plan(CostModel(graph, cluster), request, times);
  auto* answer = std::get_if<Unplaceable>(&result);
  request.watch = nullptr;
  if (answer != nullptr && request.suggest && why_no_recompute(request).empty())
    answer->step_with_recomputation = step_with_recomputation(graph, cluster, request);
  if (answer != nullptr && request.suggest) tell_of_host(graph, 1, cluster, request, *answer);
  return result;
}

// Of one micro-batch there is no pipeline: beside those of several stands the best plan there is.
StepPlan plan_one(OpGraph graph, const Cluster& cluster, const StepRequest& asked,
                  PlanTimes* times) {
  PlanRequest request = asked.search;
  if (places_in_stages(request.method)) request.method = "auto";
  if (asked.second_runs() != Recompute::kNone)
    return plan_again(std::move(graph), cluster, asked.second_runs(), request, times);
  StepPlan plan{std::nullopt, as_step(std::move(graph)), Plan{}};
  plan.result = plan_as_it_is(plan.step.graph, cluster, request, times);
  return plan;
}

StepPlan plan_number(OpGraph graph, std::uint32_t number, const Cluster& cluster,
                     const StepRequest& request, PlanTimes* times) {
  if (request.replicas.has_value()) {
    const auto plan = [&](OpGraph one, std::uint32_t m, const Cluster& other,
                          const StepRequest& without) {
      return plan_number(std::move(one), m, other, without, m == number ? times : nullptr);
    };
    return plan_replicas(std::move(graph), number, cluster, request, plan);
  }
  if (request.residency != AwayChoice::kNone) {
    StepRequest plain = request;
    plain.residency = AwayChoice::kNone;
    plain.search.suggest = false;
    StepPlan without = plan_number(recosted(graph, {}), number, cluster, plain, times);
    return plan_residing(std::move(graph), number, cluster, request, std::move(without), times);
  }
  if (number == 1) return plan_one(std::move(graph), cluster, request, times);
  if (request.second_runs() != Recompute::kNone)
    return plan_recomputing_steps(std::move(graph), number, cluster, request.second_runs(),
                                  request.search);
  Unrolled step = unroll(graph, number);
  StepPlan plan{std::move(graph), std::move(step), Plan{}};
  plan.result = plan_step(*plan.micro_batch, plan.step, cluster, request.search);
  return plan;
}

// What would do where a step of several micro-batches fits nowhere: the same request asked of other
// clusters, and of plans with second runs.
void advise(const GraphSizes& sizes, std::span<const std::uint32_t> numbers, const Cluster& cluster,
            const StepRequest& asked, Unplaceable& answer) {
  const Budget budget = asked.search.budget;
  StepRequest of_one = asked;  // replica
  of_one.replicas.reset();
  of_one.search = asked.search.within(budget);
  of_one.search.budget_to_fit = budget.part(Share::kProbe);
  std::vector<Unrolled> steps;
  for (const std::uint32_t number : numbers) steps.push_back(step_of(sizes, asked, number));
  const auto peak_on = [&](const Cluster& other, Budget part) {
    std::optional<Bytes> least;
    for (const std::uint32_t number : numbers) {
      StepRequest request = of_one;
      request.search.budget = part;
      const StepPlan plan =
          plan_number(micro_batch_of(sizes, asked, number), number, other, request, nullptr);
      const Plan* made = std::get_if<Plan>(&plan.result);
      if (made == nullptr) continue;
      Bytes highest(1);
      for (const PlanDevice& device : made->devices) highest = std::max(highest, device.peak);
      if (!least.has_value() || highest < *least) least = highest;
    }
    return least;
  };
  try {
    const double share = answer.proved ? Share::kAdviceAtOnce : Share::kAdvice;
    const StepAdvice advice = advice_on(steps, cluster, peak_on,
                                        {.budget = budget.part(share * Share::kOtherClusters),
                                         .cancel = asked.search.place.cancel});
    answer.advice_cut_short = advice.cut_short;
    answer.smallest_capacity = advice.smallest_capacity;
    answer.more_devices = advice.more_devices;
    if (asked.second_runs() == Recompute::kNone && numbers.size() == 1 &&
        why_no_recompute(asked.search).empty())
      answer.step_with_recomputation = step_with_recomputation(
          micro_batch_of(sizes, asked, numbers.front()), numbers.front(), cluster, of_one.search);
    if (numbers.size() == 1)
      tell_of_host(micro_batch_of(sizes, asked, numbers.front()), numbers.front(), cluster,
                   of_one.search, answer);
  } catch (const Cancelled&) {  // what is known so far is said
    return;
  }
}

// Whether what would stay on a device may be away or made again, whichever is best.
bool keeps_or_repeats(const OpGraph& graph, const StepRequest& asked) {
  return asked.residency == AwayChoice::kAuto && !asked.recompute.has_value() &&
         why_no_recompute(asked.search).empty() && SecondRuns(graph).any();
}

std::string words(std::uint32_t number) {
  return std::to_string(number) + (number == 1 ? " micro-batch" : " micro-batches");
}

// "1 micro-batch takes 40 ms; 8 micro-batches do not fit: ...".
std::string told(std::uint32_t number, const PlanResult& result) {
  const std::string verb = number == 1 ? " takes " : " take ";
  if (const Plan* plan = std::get_if<Plan>(&result))
    return words(number) + verb + short_text(plan->makespan());
  return words(number) + (number == 1 ? " does" : " do") +
         " not fit: " + std::get<Unplaceable>(result).reason;
}

bool better(const PlanResult& result, const std::optional<StepPlan>& best) {
  if (!best.has_value()) return true;
  const Plan *mine = std::get_if<Plan>(&result), *other = std::get_if<Plan>(&best->result);
  if (mine == nullptr) return other == nullptr;  // the smallest micro-batches are nearest to fit
  return other == nullptr || mine->makespan() < other->makespan();
}

}  // namespace

PlanResult plan_sizes(const GraphSizes& sizes, const Cluster& cluster, const StepRequest& request) {
  std::vector<OpGraph> copies;
  for (const OpGraph& graph : sizes.all()) copies.push_back(recosted(graph, {}));
  return make_step_plan(std::move(copies), cluster, request).result;
}

namespace {

// Of what several searches say, what is better than all before.
void tell_of_better(PlanRequest& request) {
  if (!request.watch) return;
  auto best = std::make_shared<std::optional<Time>>();
  request.watch = [watch = request.watch, best = std::move(best)](const SearchNews& news) {
    if (!news.step.has_value() || (best->has_value() && **best <= *news.step)) return;
    *best = news.step;
    watch({.step = news.step, .method = news.method});
  };
}

// The plans of all numbers, one after the other, until they are through or somebody stops them:
// then the plan that there is stays.
struct OfNumbers {
  std::optional<StepPlan> best;
  std::uint32_t chosen = 0;
  std::vector<std::string> told;  // what became of each
  bool proved = true;             // that none of them fits
};

template <class GraphOf>
OfNumbers plan_numbers(const GraphOf& graph_of, std::span<const std::uint32_t> numbers,
                       const Cluster& cluster, const StepRequest& request, PlanTimes* times) {
  OfNumbers of;
  for (const std::uint32_t number : numbers) {
    try {
      StepPlan plan = plan_number(graph_of(number), number, cluster, request, times);
      of.told.push_back(told(number, plan.result));
      const auto* answer = std::get_if<Unplaceable>(&plan.result);
      of.proved = of.proved && answer != nullptr && answer->proved;
      if (!better(plan.result, of.best)) continue;
      of.chosen = number;
      of.best = std::move(plan);
    } catch (const Cancelled&) {
      if (!of.best.has_value() || std::holds_alternative<Unplaceable>(of.best->result)) throw;
      of.told.push_back("you stopped before " + words(number) + " were planned");
      break;
    }
  }
  return of;
}

}  // namespace

StepPlan make_step_plan(std::vector<OpGraph> sizes, const Cluster& cluster,
                        const StepRequest& given, PlanTimes* times) {
  BAECHI_ASSERT(!sizes.empty(), "there is a graph");
  StepRequest asked = given.search.paper ? as_the_paper(given) : given;
  if (keeps_or_repeats(sizes.front(), asked)) asked.recompute = Recompute::kAuto;
  const std::vector<std::uint32_t> numbers = checked_numbers(sizes, asked);
  if (asked.residency != AwayChoice::kNone) check_residency(sizes.front(), cluster, asked);
  if (asked.known != nullptr && std::ranges::count(numbers, asked.known->micro_batches) == 0)
    throw OptionError("expert", "it is a plan of " + words(asked.known->micro_batches) +
                                    ", for which no plan is asked");
  if (asked.replicas.has_value()) check_replicas(sizes.front(), cluster, numbers, *asked.replicas);
  const bool marks = sizes.front().marks_steps(), divided = asked.mini_batch.has_value();
  const std::optional<std::int64_t> size = sizes.front().batch_size();
  if (numbers.back() > 1 || asked.second_runs() != Recompute::kNone) tell_of_better(asked.search);
  const auto graph_of = [&](std::uint32_t number) {
    return divided ? micro_batch_of(sizes, asked, number) : std::move(sizes.front());
  };
  OfNumbers of = plan_numbers(graph_of, numbers, cluster, asked, times);
  StepPlan& best = *of.best;
  if (auto* answer = std::get_if<Unplaceable>(&best.result)) {
    answer->proved = of.proved;
    const bool of_one = !asked.replicas.has_value() || asked.replicas->empty() ||
                        std::ranges::count(*asked.replicas, 1U) > 0;
    if (asked.search.suggest && numbers.back() > 1 && asked.residency == AwayChoice::kNone &&
        of_one)
      advise(divided ? GraphSizes(sizes) : GraphSizes(best.graph_of_one()), numbers, cluster, asked,
             *answer);
    return *std::move(of.best);
  }
  Plan& plan = std::get<Plan>(best.result);
  if (!divided && numbers.front() > 1 && !marks)
    plan.notes.push_back("no operator is marked as running once per step: " +
                         std::to_string(plan.replicas.ops_of_one(best.step.rank.size()) -
                                        best.step.per_micro_batch / plan.replicas.count) +
                         " are taken to be variables or updates");
  if (divided && sizes.size() == 1 && size != *asked.mini_batch / of.chosen)
    plan.notes.push_back(scaled_from(*size, std::to_string(*asked.mini_batch / of.chosen)));
  if (numbers.size() > 1) plan.notes.insert(plan.notes.end(), of.told.begin(), of.told.end());
  return *std::move(of.best);
}

}  // namespace baechi
