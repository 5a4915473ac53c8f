// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/step_plan.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/short_text.h"
#include "baechi/graph/interpolated.h"
#include "baechi/graph/recosted.h"
#include "baechi/place/pipeline/pipeline.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/planner.h"
#include "baechi/plan/recompute/recompute.h"
#include "baechi/plan/recompute/recompute_plan.h"
#include "baechi/plan/request/paper.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/request/recompute_request.h"
#include "baechi/plan/steps/recompute_steps.h"
#include "baechi/plan/steps/residing_steps.h"
#include "baechi/plan/steps/sizes.h"
#include "baechi/plan/steps/step_advice.h"
#include "baechi/plan/steps/step_methods.h"
#include "baechi/plan/steps/step_search.h"

namespace baechi {
namespace {

constexpr std::int64_t kMostOfAuto = 64;

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
  constexpr const char* kSeveralSizes =
      "give the graph at two or more batch sizes (sizes), or the numbers to compare, such as 1,2,4";
  if (numbers.empty() && !request.mini_batch.has_value())
    throw OptionError("mini_batch",
                      "missing; auto divides a mini-batch: give the number of its samples" +
                          (sizes.size() > 1 ? std::string()
                                            : ". It also compares costs at several sizes, and "
                                              "there are those of one: " +
                                                  std::string(kSeveralSizes)));
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
                      "only: " +
                          std::string(kSeveralSizes));
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

// Where operators may run a second time, the step has a graph of its own.
StepPlan plan_again(OpGraph graph, const Cluster& cluster, const PlanRequest& request,
                    PlanTimes* times) {
  Recomputed made = plan_recomputing(graph, cluster, request, times);
  if (!made.graph.has_value())
    return {std::nullopt, as_step(std::move(graph)), std::move(made.result)};
  return {std::move(graph), as_step(*std::move(made.graph)), std::move(made.result)};
}

// Of one micro-batch there is no pipeline: beside those of several stands the best plan there is.
StepPlan plan_one(OpGraph graph, const Cluster& cluster, const PlanRequest& asked,
                  PlanTimes* times) {
  PlanRequest request = asked;
  request.micro_batches.reset();
  request.mini_batch.reset();
  if (places_in_stages(request.method)) request.method = "auto";
  if (request.recompute != Recompute::kNone)
    return plan_again(std::move(graph), cluster, request, times);
  StepPlan plan{std::nullopt, as_step(std::move(graph)), Plan{}};
  plan.result = make_plan(CostModel(plan.step.graph, cluster), request, times);
  auto* answer = std::get_if<Unplaceable>(&plan.result);
  request.watch = nullptr;
  if (answer != nullptr && request.suggest && why_no_recompute(request).empty())
    answer->step_with_recomputation = step_with_recomputation(plan.step.graph, cluster, request);
  if (answer != nullptr && request.suggest)
    tell_of_host(plan.step.graph, 1, cluster, request, *answer);
  return plan;
}

StepPlan plan_number(OpGraph graph, std::uint32_t number, const Cluster& cluster,
                     const PlanRequest& request, PlanTimes* times) {
  if (request.residency != AwayChoice::kNone) {
    check_residency_request(graph, cluster, request);
    PlanRequest plain = request;
    plain.residency = AwayChoice::kNone;
    plain.suggest = false;
    StepPlan without = plan_number(recosted(graph, {}), number, cluster, plain, times);
    return plan_residing(std::move(graph), number, cluster, request, std::move(without), times);
  }
  if (number == 1) return plan_one(std::move(graph), cluster, request, times);
  if (request.recompute != Recompute::kNone)
    return plan_recomputing_steps(std::move(graph), number, cluster, request);
  Unrolled step = unroll(graph, number);
  StepPlan plan{std::move(graph), std::move(step), Plan{}};
  plan.result = plan_step(*plan.micro_batch, plan.step, cluster, request);
  return plan;
}

// What would do where a step of several micro-batches fits nowhere: the same request asked of other
// clusters, and of plans with second runs.
void advise(const GraphSizes& sizes, std::span<const std::uint32_t> numbers, const Cluster& cluster,
            const PlanRequest& asked, Unplaceable& answer) {
  PlanRequest quiet = asked;
  quiet.suggest = false;
  quiet.bounds = false;
  quiet.watch = nullptr;
  std::vector<Unrolled> steps;
  for (const std::uint32_t number : numbers) steps.push_back(step_of(sizes, asked, number));
  const auto peak_on = [&](const Cluster& other, double part) {
    std::optional<Bytes> least;
    for (const std::uint32_t number : numbers) {
      PlanRequest request = quiet;
      request.budget *= part;
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
    const StepAdvice advice = advice_on(steps, cluster, peak_on, asked.place.cancel);
    answer.smallest_capacity = advice.smallest_capacity;
    answer.more_devices = advice.more_devices;
    if (asked.recompute == Recompute::kNone && numbers.size() == 1 &&
        why_no_recompute(asked).empty())
      answer.step_with_recomputation = step_with_recomputation(
          micro_batch_of(sizes, asked, numbers.front()), numbers.front(), cluster, quiet);
    if (numbers.size() == 1)
      tell_of_host(micro_batch_of(sizes, asked, numbers.front()), numbers.front(), cluster, quiet,
                   answer);
  } catch (const Cancelled&) {  // what is known so far is said
    return;
  }
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
    throw OptionError("method", for_several_only(request.method));
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

namespace {

// Of what several searches say, what is better than all before.
PlanRequest told_of_better(const PlanRequest& asked) {
  PlanRequest request = asked;
  if (!asked.watch) return request;
  auto best = std::make_shared<std::optional<Time>>();
  request.watch = [watch = asked.watch, best = std::move(best)](const SearchNews& news) {
    if (!news.step.has_value() || (best->has_value() && **best <= *news.step)) return;
    *best = news.step;
    watch({.step = news.step, .method = news.method});
  };
  return request;
}

// The plans of all numbers, one after the other, until they are through or somebody stops them: then
// the plan that there is stays.
struct OfNumbers {
  std::optional<StepPlan> best;
  std::uint32_t chosen = 0;
  std::vector<std::string> told;  // what became of each
  bool proved = true;             // that none of them fits
};

template <class GraphOf>
OfNumbers plan_numbers(const GraphOf& graph_of, std::span<const std::uint32_t> numbers,
                       const Cluster& cluster, const PlanRequest& request, PlanTimes* times) {
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
                        const PlanRequest& given, PlanTimes* times) {
  BAECHI_ASSERT(!sizes.empty(), "there is a graph");
  const PlanRequest asked = given.paper ? as_the_paper(given) : given;
  const std::vector<std::uint32_t> numbers = checked_numbers(sizes, asked);
  const bool marks = sizes.front().marks_steps(), divided = asked.mini_batch.has_value();
  const std::optional<std::int64_t> size = sizes.front().batch_size();
  PlanRequest request = asked;
  if (numbers.back() > 1 || asked.recompute != Recompute::kNone) request = told_of_better(asked);
  const auto graph_of = [&](std::uint32_t number) {
    return divided ? at_size(sizes, *asked.mini_batch / number) : std::move(sizes.front());
  };
  OfNumbers of = plan_numbers(graph_of, numbers, cluster, request, times);
  StepPlan& best = *of.best;
  if (auto* answer = std::get_if<Unplaceable>(&best.result)) {
    answer->proved = of.proved;
    if (asked.suggest && numbers.back() > 1 && asked.residency == AwayChoice::kNone)
      advise(divided ? GraphSizes(sizes) : GraphSizes(best.graph_of_one()), numbers, cluster, asked,
             *answer);
    return *std::move(of.best);
  }
  Plan& plan = std::get<Plan>(best.result);
  if (!divided && numbers.front() > 1 && !marks)
    plan.notes.push_back("no operator is marked as running once per step: " +
                         std::to_string(best.step.rank.size() - best.step.per_micro_batch) +
                         " are taken to be variables or updates");
  if (divided && sizes.size() == 1 && size != *asked.mini_batch / of.chosen)
    plan.notes.push_back(scaled_from(*size, std::to_string(*asked.mini_batch / of.chosen)));
  if (numbers.size() > 1) plan.notes.insert(plan.notes.end(), of.told.begin(), of.told.end());
  return *std::move(of.best);
}

}  // namespace baechi
