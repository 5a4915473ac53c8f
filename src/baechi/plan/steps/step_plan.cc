// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/step_plan.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/base/short_text.h"
#include "baechi/graph/interpolated.h"
#include "baechi/graph/recosted.h"
#include "baechi/place/pipeline/pipeline.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/planner.h"
#include "baechi/plan/recompute/recompute.h"
#include "baechi/plan/recompute/recompute_plan.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/request/recompute_request.h"
#include "baechi/plan/steps/in_runs.h"
#include "baechi/plan/steps/recompute_steps.h"
#include "baechi/plan/steps/sizes.h"
#include "baechi/plan/steps/step_methods.h"
#include "baechi/schedule/step_order.h"
#include "baechi/simulate/settle.h"
#include "baechi/verify/check_variables.h"

namespace baechi {
namespace {

constexpr std::int64_t kMostOfAuto = 64;

// Steps of more operators are searched as a whole only if nothing else fits: from a few thousand on
// stages and placements of one micro-batch were shorter wherever it was tried, in a tenth of the
// time.
constexpr std::size_t kMostSearched = 4'000;

// "4 does", or the two next to `number` that do: "2 and 4 do".
std::string divisors_around(std::int64_t batch, std::int64_t number) {
  std::int64_t below = std::min(number, batch);
  while (batch % below != 0) --below;
  if (number > batch) return std::to_string(below) + " does";
  std::int64_t above = number;
  while (batch % above != 0) ++above;
  return std::to_string(below) + " and " + std::to_string(above) + " do";
}

// The numbers that the request asks to choose from, smallest first.
std::vector<std::uint32_t> numbers_asked(std::span<const OpGraph> sizes,
                                         const PlanRequest& request) {
  std::vector<std::uint32_t> numbers =
      request.micro_batches.value_or(std::vector<std::uint32_t>{1});
  if (!request.mini_batch.has_value()) {
    if (numbers.size() != 1)
      throw OptionError("mini_batch",
                        "missing; several numbers of micro-batches are compared by the step of one "
                        "mini-batch: give the number of its samples");
    if (sizes.size() > 1)
      throw OptionError("mini_batch", "graphs at several batch sizes need a mini-batch to divide");
    return numbers;
  }
  const std::int64_t batch = *request.mini_batch;
  for (const std::uint32_t number : numbers)
    if (batch % number != 0)
      throw OptionError("micro_batches",
                        std::to_string(number) + " does not divide the mini-batch of " +
                            std::to_string(batch) + " samples; " + divisors_around(batch, number));
  if (!numbers.empty()) {
    std::ranges::sort(numbers);
    return numbers;
  }
  if (sizes.size() == 1)
    throw OptionError("micro_batches",
                      "auto compares micro-batches of several sizes, and there are costs for one "
                      "only: give the graph at two or more batch sizes (sizes), or the numbers to "
                      "compare, such as 1,2,4");
  check_sizes_of_one(sizes);
  std::int64_t least = *sizes.front().batch_size(), most = least;
  for (const OpGraph& graph : sizes) {
    least = std::min(least, *graph.batch_size());
    most = std::max(most, *graph.batch_size());
  }
  for (std::int64_t number = 1; number <= std::min(batch, kMostOfAuto); ++number)
    if (batch % number == 0 && batch / number >= least && batch / number <= most)
      numbers.push_back(static_cast<std::uint32_t>(number));
  if (numbers.empty())
    throw OptionError("mini_batch", "no micro-batch of " + std::to_string(batch) +
                                        " samples is within the batch sizes that there are costs "
                                        "for, " +
                                        std::to_string(least) + " to " + std::to_string(most));
  return numbers;
}

OpGraph at_size(const GraphSizes& sizes, std::int64_t samples) {
  if (sizes.all().size() > 1) return at_batch_size(sizes.all(), samples);
  const OpGraph& graph = sizes.first();
  return graph.batch_size() == samples ? recosted(graph, {}) : with_batch_size(graph, samples);
}

std::string scaled_from(std::int64_t size, const std::string& samples) {
  return "costs were scaled from a batch of " + std::to_string(size) + " to " + samples +
         " samples as if all of them grew in proportion: give the graph at two batch sizes to know "
         "better";
}

template <class T>
void append(std::vector<T>& to, std::vector<T> more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

// Replays in the order that a file tells; nothing where that does not fit.
std::optional<Trace> settled(const StepProblem& problem, const PlacedGraph& placed) {
  std::optional<Trace> trace = simulate_settled(problem.costs, problem.step, placed);
  if (trace.has_value() && find_overflow(*trace, problem.costs.cluster()).has_value())
    trace.reset();
  return trace;
}

// The first order in longer runs that is no longer, and fits; the trace of it, else `trace`.
Trace in_runs(const StepProblem& problem, const PlacedGraph& placed, Trace trace) {
  for (DeviceOrder& order : orders_in_runs(problem.step, placed)) {
    throw_if_cancelled(problem.request.place.cancel);
    std::optional<Trace> other = settled(problem, {placed.device, std::move(order)});
    if (other.has_value() && other->schedule.makespan <= trace.schedule.makespan)
      return *std::move(other);
  }
  return trace;
}

// In the order that a file tells, which may be another step where operators take no time: that one
// counts, in the row of the method, too. Without one that fits there is no placement any more.
void settle(const StepProblem& problem, StepAnswer& answer) {
  if (!answer.placed.has_value()) return;
  const Cluster& cluster = problem.costs.cluster();
  std::optional<Trace> trace = settled(problem, *answer.placed);
  const auto row = std::ranges::find(answer.methods, answer.method, &MethodOutcome::method);
  BAECHI_ASSERT(row != answer.methods.end(), "the method of a placement is in the table");
  if (!trace.has_value()) {
    answer.placed.reset();
    row->makespan.reset();
    row->peaks.clear();
    row->devices_used = 0;
    row->reason = "its plan fits in no order that a file can tell";
    return;
  }
  trace = in_runs(problem, *answer.placed, *std::move(trace));
  answer.placed->order = with_sums_behind(
      problem.step, order_of(trace->schedule, problem.step.graph, cluster.num_devices()));
  answer.makespan = trace->schedule.makespan;
  row->makespan = answer.makespan;
  row->peaks.clear();
  for (const DeviceTrace& device : trace->devices) row->peaks.push_back(device.peak);
}

Plan plan_of_answer(const CostModel& costs, const Unrolled& step, StepAnswer& answer,
                    std::vector<NamedBound> bounds, bool want_bounds) {
  Plan plan = plan_of(costs, *answer.placed, answer.method, want_bounds && bounds.empty());
  const std::vector<std::string> faults = check_carried(step, costs.cluster(), plan.schedule);
  BAECHI_ASSERT(faults.empty(), ("a plan broke a rule: " + faults.front()).c_str());
  if (plan.bounds.empty()) plan.bounds = std::move(bounds);
  plan.micro_batches = step.micro_batches;
  plan.fallbacks = std::move(answer.fallbacks);
  return plan;
}

PlanResult plan_step(const OpGraph& graph, const Unrolled& step, const Cluster& cluster,
                     const PlanRequest& request) {
  const CostModel micro_batch(graph, cluster), costs(step.graph, cluster);
  const StepProblem problem{micro_batch, step, costs, request};
  std::optional<StepAnswer> best;
  std::optional<Unplaceable> unplaceable;
  std::vector<MethodOutcome> methods;
  std::vector<OptimizerPass> passes;
  std::vector<NamedBound> bounds;
  std::vector<std::string> notes;
  const bool large = step.graph.num_ops() > kMostSearched && request.method == "auto";
  for (const bool last_resort : {false, true}) {
    if (unplaceable.has_value() && unplaceable->proved) break;
    for (const StepMethod& method : step_methods()) {
      if (!method.asked(request.method) || (large && method.whole_step) != last_resort) continue;
      if (last_resort && best.has_value()) break;
      StepAnswer answer = method.run(problem);
      settle(problem, answer);
      append(methods, answer.methods);
      append(passes, answer.passes);
      append(notes, answer.notes);
      if (bounds.empty()) bounds = answer.bounds;
      if (answer.unplaceable.has_value() && (last_resort || !unplaceable.has_value()))
        unplaceable = std::move(answer.unplaceable);
      if (answer.placed.has_value() && (!best.has_value() || answer.makespan < best->makespan))
        best = std::move(answer);
      if (unplaceable.has_value() && unplaceable->proved) break;
    }
  }
  if (!best.has_value()) {
    if (!unplaceable.has_value()) {
      unplaceable.emplace();
      unplaceable->reason = "what fits does so in no order that a file can tell";
    }
    unplaceable->methods = std::move(methods);
    return *std::move(unplaceable);
  }
  Plan plan = plan_of_answer(costs, step, *best, std::move(bounds), request.bounds);
  plan.methods = std::move(methods);
  plan.passes = std::move(passes);
  plan.notes = std::move(notes);
  return plan;
}

// Where operators may run a second time, the step has a graph of its own.
StepPlan plan_again(OpGraph graph, const Cluster& cluster, const PlanRequest& request,
                    PlanTimes* times) {
  Recomputed made = plan_recomputing(graph, cluster, request, times);
  if (!made.graph.has_value())
    return {std::nullopt, as_step(std::move(graph)), std::move(made.result)};
  return {std::move(graph), as_step(*std::move(made.graph)), std::move(made.result)};
}

// Of one micro-batch there is no pipeline: beside those of several stands the best plan there is.
StepPlan plan_number(OpGraph graph, std::uint32_t number, const Cluster& cluster,
                     const PlanRequest& asked, PlanTimes* times) {
  PlanRequest request = asked;
  if (number > 1 || request.recompute != Recompute::kNone) request.watch = nullptr;
  if (number == 1) {
    if (places_in_stages(request.method)) request.method = "auto";
    if (request.recompute != Recompute::kNone)
      return plan_again(std::move(graph), cluster, request, times);
    StepPlan plan{std::nullopt, as_step(std::move(graph)), Plan{}};
    plan.result = make_plan(CostModel(plan.step.graph, cluster), request, times);
    auto* answer = std::get_if<Unplaceable>(&plan.result);
    request.watch = nullptr;
    if (answer != nullptr && request.suggest && why_no_recompute(request).empty())
      answer->step_with_recomputation = step_with_recomputation(plan.step.graph, cluster, request);
    return plan;
  }
  if (request.recompute != Recompute::kNone)
    return plan_recomputing_steps(std::move(graph), number, cluster, request, plan_step);
  Unrolled step = unroll(graph, number);
  StepPlan plan{std::move(graph), std::move(step), Plan{}};
  plan.result = plan_step(*plan.micro_batch, plan.step, cluster, request);
  auto* answer = std::get_if<Unplaceable>(&plan.result);
  if (answer != nullptr && request.suggest && why_no_recompute(request).empty())
    answer->step_with_recomputation =
        step_with_recomputation(*plan.micro_batch, number, cluster, request, plan_step);
  return plan;
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

std::vector<std::uint32_t> checked_numbers(const GraphSizes& sizes, const PlanRequest& request) {
  check_ranges(request);
  std::vector<std::uint32_t> numbers = numbers_asked(sizes.all(), request);
  if (numbers.back() > 1 && request.robust.has_value())
    throw OptionError("robust", "plans of several micro-batches are compared by their steps alone");
  if (numbers.back() > 1 && request.place.order != ExecutionOrder::kPlanned)
    throw OptionError("order", "a step of micro-batches runs in its planned order");
  check_recompute(request);
  if (request.improvements && (numbers.back() > 1 || request.recompute != Recompute::kNone))
    throw OptionError("improvements",
                      "they are kept of plans of one micro-batch without second runs: leave out "
                      "improvements, or micro-batches and recompute");
  if (places_in_stages(request.method) && numbers == std::vector<std::uint32_t>{1})
    throw OptionError("method",
                      in_quotes(request.method) +
                          " places steps of several micro-batches: say how many there are");
  return numbers;
}

bool asks_for_steps(const GraphSizes& sizes, const PlanRequest& request) {
  return request.micro_batches.has_value() || request.mini_batch.has_value() ||
         sizes.all().size() > 1 || places_in_stages(request.method);
}

PlanResult plan_sizes(const GraphSizes& sizes, const Cluster& cluster, const PlanRequest& request) {
  if (!asks_for_steps(sizes, request)) return make_plan(CostModel(sizes.first(), cluster), request);
  std::vector<OpGraph> copies;
  for (const OpGraph& graph : sizes.all()) copies.push_back(recosted(graph, {}));
  return make_step_plan(std::move(copies), cluster, request).result;
}

OpGraph micro_batch_of(const GraphSizes& sizes, const PlanRequest& request,
                       std::uint32_t micro_batches) {
  return request.mini_batch.has_value() ? at_size(sizes, *request.mini_batch / micro_batches)
                                        : recosted(sizes.first(), {});
}

Unrolled step_of(const GraphSizes& sizes, const PlanRequest& request, std::uint32_t micro_batches) {
  OpGraph graph = micro_batch_of(sizes, request, micro_batches);
  return micro_batches > 1 ? unroll(graph, micro_batches) : as_step(std::move(graph));
}

std::optional<std::int64_t> samples_of_step(const GraphSizes& sizes, const PlanRequest& request,
                                            std::uint32_t micro_batches) {
  const std::optional<std::int64_t> size = sizes.first().batch_size();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (request.mini_batch.has_value()) return request.mini_batch;
  if (!size.has_value() || *size > kMost / micro_batches) return std::nullopt;
  return *size * micro_batches;
}

std::string scaling_words(const GraphSizes& sizes, const PlanRequest& request) {
  if (sizes.all().size() > 1 || !request.mini_batch.has_value()) return "";
  const std::optional<std::int64_t> size = sizes.first().batch_size();
  std::string samples;
  for (const std::uint32_t number : checked_numbers(sizes, request))
    if (*request.mini_batch / number != size)
      samples += (samples.empty() ? "" : ", ") + std::to_string(*request.mini_batch / number);
  return samples.empty() || !size.has_value() ? "" : scaled_from(*size, samples);
}

StepPlan make_step_plan(std::vector<OpGraph> sizes, const Cluster& cluster,
                        const PlanRequest& request, PlanTimes* times) {
  BAECHI_ASSERT(!sizes.empty(), "there is a graph");
  const std::vector<std::uint32_t> numbers = checked_numbers(sizes, request);
  const bool marks = sizes.front().marks_steps();
  const std::optional<std::int64_t> size = sizes.front().batch_size();
  if (!request.mini_batch.has_value()) {
    StepPlan plan = plan_number(std::move(sizes.front()), numbers.front(), cluster, request, times);
    Plan* made = std::get_if<Plan>(&plan.result);
    if (made != nullptr && numbers.front() > 1 && !marks)
      made->notes.push_back("no operator is marked as running once per step: " +
                            std::to_string(plan.step.rank.size() - plan.step.per_micro_batch) +
                            " are taken to be variables or updates");
    return plan;
  }
  std::optional<StepPlan> best;
  std::vector<std::string> others;
  std::uint32_t chosen = 0;
  bool proved = true;  // that none of the numbers fits
  for (const std::uint32_t number : numbers) {
    const std::int64_t samples = *request.mini_batch / number;
    OpGraph graph = at_size(sizes, samples);
    StepPlan plan = plan_number(std::move(graph), number, cluster, request, times);
    others.push_back(told(number, plan.result));
    const auto* answer = std::get_if<Unplaceable>(&plan.result);
    proved = proved && answer != nullptr && answer->proved;
    if (!better(plan.result, best)) continue;
    chosen = number;
    best = std::move(plan);
  }
  if (auto* answer = std::get_if<Unplaceable>(&best->result)) answer->proved = proved;
  if (Plan* plan = std::get_if<Plan>(&best->result)) {
    const std::int64_t samples = *request.mini_batch / chosen;
    if (sizes.size() == 1 && size != samples)
      plan->notes.push_back(scaled_from(*size, std::to_string(samples)));
    for (std::string& other : others)
      if (numbers.size() > 1) plan->notes.push_back(std::move(other));
  }
  return *std::move(best);
}

}  // namespace baechi
