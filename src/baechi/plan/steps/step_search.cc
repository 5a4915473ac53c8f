// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/step_search.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/plan/attempt/simulated_plan.h"
#include "baechi/plan/steps/in_runs.h"
#include "baechi/plan/steps/names_of_one.h"
#include "baechi/plan/steps/step_methods.h"
#include "baechi/schedule/step_order.h"
#include "baechi/simulate/settle.h"
#include "baechi/verify/check_micro_batches.h"
#include "baechi/verify/check_variables.h"

namespace baechi {
namespace {

constexpr const char* kStoppedSearch =
    "you stopped the search: this is the best of what it had found, another run may find more";

constexpr double kLastResort = 0.5;  // of the budget

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
  const CancelFlag* cancel = problem.request.place.cancel;
  for (DeviceOrder& order : orders_in_runs(problem.step, placed)) {
    if (cancel != nullptr && cancel->requested()) break;
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
  if (problem.request.place.expert_order == nullptr)
    trace = in_runs(problem, *answer.placed, *std::move(trace));
  answer.placed->order = with_sums_behind(
      problem.step, order_of(trace->schedule, problem.step.graph, cluster.num_devices()));
  answer.makespan = trace->schedule.makespan;
  row->makespan = answer.makespan;
  row->peaks.clear();
  for (const DeviceTrace& device : trace->devices) row->peaks.push_back(device.peak);
}

class StepSearch {
 public:
  StepSearch(const OpGraph& graph, const Unrolled& step, const Cluster& cluster,
             const PlanRequest& request)
      : micro_batch_(graph, cluster),
        costs_(step.graph, cluster),
        problem_{micro_batch_, step, costs_, request} {}

  void run() {
    const PlanRequest& request = problem_.request;
    const bool large = is_large(problem_.step) && request.method == "auto";
    const bool asks_in_short = large && request.budget_to_fit.has_value();
    for (const bool last_resort : {false, true}) {
      for (const StepMethod& each : step_methods()) {
        if (stopped_ || (unplaceable_.has_value() && unplaceable_->proved)) return;
        if (!each.asked(request) || (large && each.whole_step) != last_resort) continue;
        if (last_resort && (asks_in_short || is_fair())) return;
        run(each, last_resort);
      }
    }
  }

  PlanResult result() && {
    if (!best_.has_value()) return std::move(*this).unplaceable();
    const Unrolled& step = problem_.step;
    const std::vector<std::string> faults =
        check_micro_batches(micro_batch_.graph(), step.graph, step.micro_batches);
    BAECHI_ASSERT(faults.empty(), ("a step broke a rule: " + faults.front()).c_str());
    Plan plan =
        plan_of(costs_, *best_->placed, best_->method, problem_.request.bounds && bounds_.empty());
    const std::vector<std::string> unordered = check_carried(step, costs_.cluster(), plan.schedule);
    BAECHI_ASSERT(unordered.empty(), ("a plan broke a rule: " + unordered.front()).c_str());
    if (plan.bounds.empty()) plan.bounds = std::move(bounds_);
    plan.micro_batches = step.micro_batches;
    plan.fallbacks = std::move(best_->fallbacks);
    plan.methods = std::move(methods_);
    plan.passes = std::move(passes_);
    plan.notes = std::move(notes_);
    if (stopped_) plan.notes.emplace_back(kStoppedSearch);
    return plan;
  }

 private:
  // Whether something fits, and is no longer than micro-batches that run one after the other.
  bool is_fair() const {
    return best_.has_value() && (!in_sequence_.has_value() || best_->makespan <= *in_sequence_);
  }

  void run(const StepMethod& method, bool last_resort) {
    const CancelFlag* cancel = problem_.request.place.cancel;
    StepAnswer answer;
    try {
      throw_if_cancelled(cancel);
      PlanRequest request = problem_.request;
      if (last_resort) {  // the others have spent most of it
        request.budget_to_fit = request.budget;
        request.budget = request.budget.part(kLastResort);
      }
      StepProblem problem{micro_batch_, problem_.step, costs_, request};
      if (best_.has_value()) problem.to_beat = best_->makespan;
      answer = method.run(problem);
    } catch (const Cancelled&) {  // anytime: what was found before stays
      if (!best_.has_value()) throw;
      stopped_ = true;
      return;
    }
    stopped_ = cancel != nullptr && cancel->requested();
    settle(problem_, answer);
    append(methods_, answer.methods);
    append(passes_, answer.passes);
    append(notes_, answer.notes);
    if (bounds_.empty()) bounds_ = answer.bounds;
    if (answer.in_sequence.has_value()) in_sequence_ = answer.in_sequence;
    if (answer.unplaceable.has_value() && (last_resort || !unplaceable_.has_value()))
      unplaceable_ = std::move(answer.unplaceable);
    if (!answer.placed.has_value()) return;
    if (best_.has_value() && answer.makespan >= best_->makespan) return;
    best_ = std::move(answer);
    if (problem_.request.watch)
      problem_.request.watch({.step = best_->makespan, .method = best_->method});
  }

  // Of a search that was stopped nothing is known.
  PlanResult unplaceable() && {
    if (stopped_) throw Cancelled();
    if (!unplaceable_.has_value()) {
      unplaceable_.emplace();
      unplaceable_->reason = "what fits does so in no order that a file can tell";
    }
    unplaceable_->methods = std::move(methods_);
    tell_of_one(*unplaceable_, problem_.step);
    return *std::move(unplaceable_);
  }

  const CostModel micro_batch_, costs_;
  const StepProblem problem_;
  std::optional<StepAnswer> best_;
  std::optional<Time> in_sequence_;
  std::optional<Unplaceable> unplaceable_;
  std::vector<MethodOutcome> methods_;
  std::vector<OptimizerPass> passes_;
  std::vector<NamedBound> bounds_;
  std::vector<std::string> notes_;
  bool stopped_ = false;
};

}  // namespace

PlanResult plan_step(const OpGraph& graph, const Unrolled& step, const Cluster& cluster,
                     const PlanRequest& request) {
  StepSearch search(graph, step, cluster, request);
  search.run();
  return std::move(search).result();
}

}  // namespace baechi
