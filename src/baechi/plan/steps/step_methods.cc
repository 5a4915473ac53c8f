// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/step_methods.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>

#include "baechi/base/in_quotes.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/optimize/list_schedule.h"
#include "baechi/place/pipeline/pipeline.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/fit/any_fit.h"
#include "baechi/plan/planner.h"
#include "baechi/plan/portfolio.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/steps/bare_copy.h"
#include "baechi/plan/steps/names_of_one.h"
#include "baechi/schedule/step_order.h"
#include "baechi/simulate/simulator.h"

namespace baechi {
namespace {

bool follows_order(const PlanRequest& request) { return request.place.expert_order != nullptr; }
bool for_any_step(const PlanRequest& request) {
  return !places_in_stages(request.method) && !follows_order(request);
}
bool for_several(const PlanRequest& request) {
  return request.method == "auto" || request.method == "all" || places_in_stages(request.method) ||
         follows_order(request);
}
bool for_auto(const PlanRequest& request) {
  return request.method == "auto" && for_any_step(request);
}

constexpr StepMethod kStepMethods[] = {
    {.name = "unrolled", .asked = for_any_step, .run = place_unrolled, .whole_step = true},
    {.name = "replayed", .asked = for_any_step, .run = replay_micro_batch},
    {.name = "cut", .asked = for_auto, .run = cut_step},
    {.name = "in stages", .asked = for_several, .run = place_in_stages},
};

// Parts of the budget: for plans of one micro-batch; for their replays, so that a step of hundreds of
// thousands is replayed a few times and a small one under every order; for stages beside those.
constexpr double kOfOne = 0.25, kReplayed = 0.25, kStages = 0.5;

// The step with edges of control so that micro-batch m starts when m - window has ended.
OpGraph with_window(const Unrolled& step, std::uint32_t window) {
  const OpGraph& graph = step.graph;
  OpGraphBuilder builder = bare_copy(graph);
  std::vector<OpId> first, last;  // of micro-batch 0
  for (const OpId op : graph.ops()) {
    if (step.micro_batch[op] != 0) continue;
    const auto inside = [&](OpId other) { return step.micro_batch[other] == 0; };
    if (std::ranges::none_of(graph.in_edges(op), [&](const Edge& e) { return inside(e.from); }))
      first.push_back(op);
    if (std::ranges::none_of(graph.out_edges(op), [&](const Edge& e) { return inside(e.to); }))
      last.push_back(op);
  }
  // An operator in between, so that there are no more edges than ends.
  for (std::uint32_t m = window; m < step.micro_batches; ++m) {
    const OpId gate = builder.add_operator({.name = "gate " + std::to_string(m)});
    builder.set_time(gate, kAnyKind, Time(0));
    for (const OpId op : last) builder.add_control_edge(step.copy(op, m - window), gate);
    for (const OpId op : first) builder.add_control_edge(gate, step.copy(op, m));
  }
  return std::move(builder).build();
}

// Takes the placement if it fits and is faster than what the row and the answer have.
void offer(const Cluster& cluster, const StepSummary& summary, PlacedGraph placed,
           MethodOutcome& row, StepAnswer& answer) {
  for (const DeviceId device : cluster.devices())
    if (summary.peaks[device] > cluster[device].capacity) return;
  if (row.makespan.has_value() && *row.makespan <= summary.makespan) return;
  row.makespan = summary.makespan;
  row.peaks = summary.peaks;
  row.devices_used = static_cast<std::size_t>(
      std::ranges::count_if(*placed.order, [](const auto& ops) { return !ops.empty(); }));
  if (answer.placed.has_value() && answer.makespan <= summary.makespan) return;
  answer.method = row.method;
  answer.makespan = summary.makespan;
  answer.placed = std::move(placed);
}

MethodOutcome row_of(std::string method) {
  return {.method = std::move(method),
          .makespan = {},
          .fallbacks = {},
          .reason = {},
          .devices_used = 0,
          .peaks = {}};
}

// Tries orders of placements and keeps the best that fits.
class Replays {
 public:
  explicit Replays(const StepProblem& problem)
      : problem_(problem),
        step_(problem.step),
        simulator_(problem.costs),
        most_(problem.request.budget.part(kReplayed).replays()) {}

  void add(const Attempt& attempt) {
    const Time in_sequence = attempt.makespan * step_.micro_batches;
    answer_.in_sequence = std::min(answer_.in_sequence.value_or(in_sequence), in_sequence);
    Placement placement;
    for (const OpId op : step_.graph.ops())
      placement.push_back(attempt.placed->device[step_.original[op]]);
    if (std::ranges::find(placements_, placement) != placements_.end()) return;
    placements_.push_back(std::move(placement));
    answer_.methods.push_back(row_of("replayed " + attempt.method));
  }

  StepAnswer run() && {
    try {
      try_orders();
    } catch (const Cancelled&) {  // anytime: what was found before stays
      if (!answer_.placed.has_value()) throw;
    }
    for (MethodOutcome& row : answer_.methods)
      if (!row.makespan.has_value())
        row.reason = "no order of the micro-batches that was tried fits";
    return std::move(answer_);
  }

 private:
  void try_orders() {
    for (const std::uint32_t window : windows()) {
      if (placements_.empty() || (window != windows().front() && replayed_ >= most_)) break;
      const OpGraph limited = with_window(step_, window);
      const CostModel costs(limited, problem_.costs.cluster());
      for (std::size_t i = 0; i < placements_.size(); ++i)
        for (const bool backward_first : {true, false})
          if (is_near(answer_.methods[i]) && (replayed_ == 0 || replayed_ < most_))
            try_order(costs, placements_[i], backward_first, answer_.methods[i]);
    }
  }

  std::vector<std::uint32_t> windows() const {
    const auto devices = static_cast<std::uint32_t>(problem_.costs.cluster().num_devices());
    std::vector<std::uint32_t> windows{step_.micro_batches, devices, 2 * devices, devices + 1, 1};
    std::erase_if(windows, [&](std::uint32_t w) { return w > step_.micro_batches; });
    std::vector<std::uint32_t> unique;
    for (const std::uint32_t window : windows)
      if (std::ranges::find(unique, window) == unique.end()) unique.push_back(window);
    return unique;
  }

  // Other orders hardly make a step shorter by half.
  bool is_near(const MethodOutcome& row) const {
    return !row.makespan.has_value() || row.makespan->count() / 3 * 2 <= answer_.makespan.count();
  }

  void try_order(const CostModel& costs, const Placement& placement, bool backward_first,
                 MethodOutcome& row) {
    throw_if_cancelled(problem_.request.place.cancel);
    Placement with_gates = placement;
    while (with_gates.size() < costs.graph().num_ops()) with_gates.push_back(DeviceId(0));
    IdVector<OpId, Time> priority = critical_times(costs, with_gates);
    if (backward_first)
      for (Time& time : priority) time = Time(0) - time;
    const ListSchedule found = list_schedule(costs, with_gates, priority);
    PlacedGraph placed{placement, DeviceOrder(problem_.costs.cluster().num_devices())};
    for (const DeviceId device : placed.order->keys())
      for (const OpId op : (*found.placed.order)[device])
        if (step_.graph.num_ops() > op.index()) (*placed.order)[device].push_back(op);
    placed.order = with_sums_behind(step_, *placed.order);
    replayed_ += 2 * static_cast<std::int64_t>(step_.graph.num_ops());
    judge(std::move(placed), row);
  }

  void judge(PlacedGraph placed, MethodOutcome& row) {
    const StepSummary& summary = simulator_.run(placed);
    offer(problem_.costs.cluster(), summary, std::move(placed), row, answer_);
  }

  const StepProblem& problem_;
  const Unrolled& step_;
  Simulator simulator_;
  std::vector<Placement> placements_;  // by row
  const std::int64_t most_;            // operators that it may simulate
  std::int64_t replayed_ = 0;
  StepAnswer answer_;
};

// Errors, of an expert's placement, say, name operators as they were written.
PlanResult plan_whole_step(const StepProblem& problem, const PlanRequest& request) try {
  return make_plan(problem.costs, request);
} catch (const OptionError&) {
  throw;
} catch (const InputError& error) {
  throw InputError(in_names_of_one(error.what(), problem.step));
}

}  // namespace

std::span<const StepMethod> step_methods() { return kStepMethods; }

StepAnswer place_unrolled(const StepProblem& problem) {
  PlanRequest request = problem.request;
  request.suggest = false;
  Placement expert;
  if (request.place.expert != nullptr) {
    for (const OpId op : problem.step.graph.ops())
      expert.push_back((*request.place.expert)[problem.step.original[op]]);
    request.place.expert = &expert;
  }
  PlanResult result = plan_whole_step(problem, request);
  StepAnswer answer;
  if (auto* misfit = std::get_if<Unplaceable>(&result)) {
    answer.methods = misfit->methods;
    answer.unplaceable = std::move(*misfit);
    return answer;
  }
  Plan& plan = std::get<Plan>(result);
  const std::size_t devices = problem.costs.cluster().num_devices();
  answer.placed = PlacedGraph{placement_of(plan.schedule),
                              order_of(plan.schedule, problem.step.graph, devices)};
  answer.makespan = plan.makespan();
  answer.method = plan.method;
  answer.fallbacks = std::move(plan.fallbacks);
  answer.methods = std::move(plan.methods);
  answer.passes = std::move(plan.passes);
  answer.bounds = std::move(plan.bounds);
  answer.notes = std::move(plan.notes);
  return answer;
}

StepAnswer place_in_stages(const StepProblem& problem) {
  const std::string& method = problem.request.method;
  const MicroBatchedStep step{problem.micro_batch, problem.step, problem.costs};
  PipelineOptions options{.work = {},
                          .cancel = problem.request.place.cancel,
                          .to_beat = problem.to_beat,
                          .expert = nullptr,
                          .order = problem.request.place.expert_order};
  const StepPlacer own{.name = "expert", .summary = "as the user says"};
  const double part = for_any_step(problem.request) ? kStages : 1;
  options.work = static_cast<std::int64_t>(problem.request.budget.part(part).seconds *
                                           static_cast<double>(PipelineOptions{}.work));
  const Cluster& cluster = problem.costs.cluster();
  Simulator simulator(problem.costs);
  StepAnswer answer;
  const bool as_ordered = follows_order(problem.request);
  for (const StepPlacer& placer : as_ordered ? std::span(&own, 1) : step_placers()) {
    if (method != placer.name && method != "all" && (method != "auto" || placer.baseline)) continue;
    // Beside other methods, a named schedule runs over stages of its own.
    options.expert = method == placer.name ? problem.request.place.expert : nullptr;
    MethodOutcome row = row_of(std::string(placer.name));
    std::optional<PlaceResult> result;
    try {
      result = as_ordered ? place_as_ordered(step, options) : place_step(placer, step, options);
    } catch (const Cancelled&) {  // anytime: what was found before stays
      if (!answer.placed.has_value()) throw;
      break;
    }
    if (auto* placed = std::get_if<PlacedGraph>(&*result)) {
      placed->order = with_sums_behind(problem.step, *placed->order);
      const StepSummary& summary = simulator.run(*placed);
      offer(cluster, summary, std::move(*placed), row, answer);
    }
    if (!row.makespan.has_value()) {
      row.reason = "no stages that were tried fit";
      answer.unplaceable =
          Unplaceable{.op = {},
                      .short_by = {},
                      .proved = false,
                      .reason = in_quotes(placer.name) + " found no stages that fit",
                      .smallest_capacity = {},
                      .more_devices = {},
                      .methods = {}};
      if (const auto* misfit = std::get_if<DoesNotFit>(&*result))
        answer.unplaceable->short_by = misfit->short_by;
    }
    answer.methods.push_back(std::move(row));
  }
  if (answer.placed.has_value()) answer.unplaceable.reset();
  return answer;
}

StepAnswer replay_micro_batch(const StepProblem& problem) {
  Replays replays(problem);
  const CostModel& costs = problem.micro_batch;
  // Its steps are of one micro-batch: nobody is told.
  const PlanRequest request = problem.request.within(problem.request.budget.part(kOfOne));
  const Units units(costs);
  if (!prove_cannot_fit(costs, units).has_value())
    for (const Attempt& attempt : run_portfolio(costs, units, request).attempts)
      if (attempt.placed.has_value()) replays.add(attempt);
  return std::move(replays).run();
}

}  // namespace baechi
