// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/sensitivity.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/parallel.h"
#include "baechi/plan/fit/fit_search.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/steps/step_plan.h"
#include "baechi/plan/steps/step_request.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/study/unless_cancelled.h"

namespace baechi {
namespace {

// The value at rank (n - 1) * quarters / 4 of sorted values, between two of them by proportion.
Time quantile(const std::vector<Time>& sorted, std::int64_t quarters) {
  const auto rank = static_cast<std::int64_t>(sorted.size() - 1) * quarters;
  const auto at = static_cast<std::size_t>(rank / 4);
  if (rank % 4 == 0) return sorted[at];
  const Time step = sorted[at + 1] - sorted[at];
  return sorted[at] + Time(scale_up(step.count(), rank % 4, 4, "time"));
}

void replay_true(const CostModel& costs, const Units& units, const Plan& plan,
                 const CancelFlag* cancel, SensitivitySample& sample) {
  const Cluster& cluster = costs.cluster();
  const PlacedGraph placed = placed_graph_of(plan, costs.graph());
  const Trace trace = simulate(costs, placed, {.cancel = cancel});
  if (!find_overflow(trace, cluster).has_value()) {
    sample.makespan = trace.schedule.makespan;
    return;
  }
  sample.repaired = true;
  FitSearch search(costs, units, {.order = plan.order, .cancel = cancel});
  if (const std::optional<PlacedGraph> repaired = search.repair(placed))
    sample.makespan = simulate(costs, *repaired, {.cancel = cancel}).schedule.makespan;
}

// What steps truly cost: of the graph, or of each number of micro-batches.
class TrueSteps {
 public:
  TrueSteps(const GraphSizes& sizes, const Cluster& cluster, const StepRequest& request) {
    if (!asks_for_steps(sizes, request)) {
      add(1, sizes.first(), cluster);
      return;
    }
    const std::vector<std::uint32_t> numbers = checked_numbers(sizes, request);
    steps_.reserve(numbers.size());
    for (const std::uint32_t number : numbers) {
      steps_.push_back(step_of(sizes, request, number));
      add(number, steps_.back().graph, cluster);
    }
  }

  void replay(const Plan& plan, const CancelFlag* cancel, SensitivitySample& sample) const {
    const auto at = std::ranges::find(truths_, plan.micro_batches, &Truth::micro_batches);
    BAECHI_ASSERT(at != truths_.end(), "a plan has one of the numbers that were asked for");
    replay_true(*at->costs, *at->units, plan, cancel, sample);
  }

 private:
  struct Truth {
    std::uint32_t micro_batches;
    std::unique_ptr<CostModel> costs;
    std::unique_ptr<Units> units;
  };

  void add(std::uint32_t number, const OpGraph& graph, const Cluster& cluster) {
    auto costs = std::make_unique<CostModel>(graph, cluster);
    auto units = std::make_unique<Units>(*costs);
    truths_.push_back({number, std::move(costs), std::move(units)});
  }

  std::vector<Unrolled> steps_;
  std::vector<Truth> truths_;
};

}  // namespace

Distribution distribution_of(std::vector<Time> values) {
  BAECHI_ASSERT(!values.empty(), "a distribution is of something");
  std::sort(values.begin(), values.end());
  return {.min = values.front(),
          .lower_quartile = quantile(values, 1),
          .median = quantile(values, 2),
          .upper_quartile = quantile(values, 3),
          .max = values.back()};
}

std::variant<Sensitivity, Unplaceable> sensitivity(const GraphSizes& sizes, const Cluster& cluster,
                                                   const StepRequest& request,
                                                   const Perturbations& perturbations) {
  if (perturbations.samples < 1 || perturbations.samples > kMostSamples)
    throw InputError("there must be 1 to " + std::to_string(kMostSamples) + " samples, not " +
                     std::to_string(perturbations.samples));
  StepRequest wanted = request;
  wanted.search.bounds = false;
  PlanResult truth = plan_sizes(sizes, cluster, wanted);
  throw_if_cancelled(perturbations.cancel);
  if (auto* answer = std::get_if<Unplaceable>(&truth)) return std::move(*answer);
  Sensitivity result;
  result.fraction = perturbations.fraction;
  result.true_makespan = std::get<Plan>(truth).makespan();
  result.true_method = std::get<Plan>(truth).method;
  result.true_micro_batches = std::get<Plan>(truth).micro_batches;

  wanted.search.suggest = false;
  wanted.search.threads = 1;  // the samples share the threads instead
  const TrueSteps truths(sizes, cluster, wanted);
  const auto run = [&](std::size_t i) {
    throw_if_cancelled(perturbations.cancel);
    SensitivitySample sample;
    sample.seed = perturbations.seed + i;
    std::vector<OpGraph> wrong;
    for (const OpGraph& graph : sizes.all())
      wrong.push_back(perturbed(graph, perturbations.fraction, sample.seed));
    const PlanResult plan = plan_sizes(wrong, cluster, wanted);
    throw_if_cancelled(perturbations.cancel);
    if (std::holds_alternative<Unplaceable>(plan)) return sample;
    sample.method = std::get<Plan>(plan).method;
    sample.micro_batches = std::get<Plan>(plan).micro_batches;
    truths.replay(std::get<Plan>(plan), perturbations.cancel, sample);
    return sample;
  };
  std::vector<std::optional<SensitivitySample>> samples(perturbations.samples);
  parallel_for(samples.size(), perturbations.threads, [&](std::size_t i) {
    samples[i] = unless_cancelled(/*has_answer=*/true, [&] { return run(i); });
  });
  for (std::optional<SensitivitySample>& sample : samples)
    if (sample.has_value()) result.samples.push_back(*std::move(sample));
  if (result.samples.empty()) throw Cancelled();
  std::vector<Time> steps;
  for (const SensitivitySample& sample : result.samples)
    if (sample.makespan.has_value()) steps.push_back(*sample.makespan);
  if (!steps.empty()) result.steps = distribution_of(std::move(steps));
  return result;
}

}  // namespace baechi
