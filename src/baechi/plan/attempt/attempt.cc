// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/attempt/attempt.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "baechi/base/short_text.h"
#include "baechi/optimize/list_schedule.h"
#include "baechi/plan/fit/fit_search.h"
#include "baechi/plan/fit/fit_walk.h"

namespace baechi {
namespace {

// Shares of the devices for PlaceOptions::headroom, tried in this order.
constexpr std::array kHeadrooms{0.1, 0.2, 0.3, 0.4};
// A plan of the optimised graph in the orders worth trying on the original one: the expanded order,
// the order of the longest path ahead, and whatever becomes ready first. Executors that have their
// own leave no choice.
std::vector<PlacedGraph> expansions(const Problem& problem, const PlacedGraph& small) {
  std::vector<PlacedGraph> result{expand(problem.shrunk->optimized.expansion, small)};
  if (problem.paper) result.front().order.reset();
  if (problem.paper) return result;
  if (problem.order != ExecutionOrder::kPlanned) return result;
  const Placement placement = result.front().device;
  result.push_back(list_schedule(problem.costs, placement).placed);
  if (result.front().order.has_value()) result.push_back({placement, std::nullopt});
  return result;
}

std::int64_t nanoseconds_since(std::chrono::steady_clock::time_point begin) {
  const auto time = std::chrono::steady_clock::now() - begin;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

void note_fallback(const std::string& name, Attempt& attempt) {
  if (std::ranges::find(attempt.fallbacks, name) == attempt.fallbacks.end())
    attempt.fallbacks.push_back(name);
}

// The first candidate that runs over, if one does, and where.
struct Misfit {
  PlacedGraph placed;
  Trace trace;
  Overflow overflow;
};

// Keeps in `attempt` the fastest that fits, if it beats what is there. True if so.
bool offer(const Problem& problem, std::vector<PlacedGraph> candidates, Attempt& attempt,
           const CancelFlag* cancel = nullptr, std::optional<Misfit>* misfit = nullptr) {
  const CostModel& costs = problem.costs;
  bool better = false;
  for (PlacedGraph& candidate : candidates) {
    candidate = as_executed(std::move(candidate), problem.order, costs.graph(),
                            costs.cluster().num_devices());
    Trace trace = simulate(costs, candidate, {.cancel = cancel});
    if (const std::optional<Overflow> overflow = find_overflow(trace, costs.cluster())) {
      if (misfit != nullptr && !misfit->has_value())
        misfit->emplace(Misfit{std::move(candidate), std::move(trace), *overflow});
      continue;
    }
    if (attempt.placed.has_value() && trace.schedule.makespan >= attempt.makespan) continue;
    attempt.makespan = trace.schedule.makespan;
    attempt.peaks.clear();
    for (const DeviceTrace& device : trace.devices) attempt.peaks.push_back(device.peak);
    attempt.placed = std::move(candidate);
    better = true;
  }
  return better;
}

class PlacerAttempt {
 public:
  PlacerAttempt(const Problem& problem, const PlacerEntry& placer, const PlaceOptions& options,
                Attempt& attempt)
      : problem_(problem), placer_(placer), options_(options), attempt_(attempt) {}

  void run() {
    const bool shrink = problem_.shrunk != nullptr && placer_.optimizable;
    if (place(shrink, {}) || placer_.baseline || problem_.paper) return;
    if (place_carefully(shrink)) return;
    if (shrink && keep_cut()) return;
    if (shrink) {
      fall_back("unoptimized");
      as_given_ = true;
      if (!place(false, {})) place_carefully(false);
    }
  }

 private:
  void fall_back(const char* name) { note_fallback(name, attempt_); }

  // How a list scheduler looks after memory.
  struct Care {
    MemoryPolicy memory = MemoryPolicy::kLive;
    double headroom = 0;
  };

  // Further tries are worth what methods and searches may take for them.
  bool may_go_on() {
    const LastResort* const resort = problem_.last_resort;
    const bool may = resort == nullptr || (problem_.fits ? resort->care : resort->care_to_fit) > 0;
    attempt_.gave_up = attempt_.gave_up || !may;
    return may;
  }

  bool place_carefully(bool shrink) {
    if (placer_.list_scheduler) {
      fall_back("headroom");
      for (const double headroom : kHeadrooms) {
        if (!may_go_on()) return false;
        if (place(shrink, {.headroom = headroom})) return true;
      }
    }
    if (!may_go_on()) return false;
    fall_back("reserve");
    return place(shrink, {.memory = MemoryPolicy::kReserve});
  }

  bool place(bool shrink, const Care& care) {
    PlaceOptions options = options_;
    options.memory = care.memory;
    options.headroom = care.headroom;
    attempt_.optimized = shrink;
    if (!shrink) {
      std::optional<PlacedGraph> placed = known(care);
      if (!placed.has_value()) placed = run_placer(problem_.costs, options);
      if (placed.has_value() && problem_.paper && placer_.optimizable) placed->order.reset();
      return placed.has_value() && offer({*std::move(placed)});
    }
    const std::optional<PlacedGraph> small = run_placer(problem_.shrunk->costs, options);
    const bool fits = small.has_value() && offer(expansions(problem_, *small));
    return place_at_home(options) || fits;
  }

  std::optional<PlacedGraph> known(const Care& care) const {
    if (problem_.known != nullptr && care.memory == MemoryPolicy::kLive && care.headroom == 0)
      for (const auto& [place, placed] : *problem_.known)
        if (place == placer_.place) return placed;
    return std::nullopt;
  }

  // The paper's way lets the first operator of a group decide, and a group that starts with a
  // short operator stays where its parents are. This one takes the cut at its word.
  bool place_at_home(PlaceOptions options) {
    const std::optional<PlacedGraph>& home = problem_.shrunk->optimized.home;
    if (!home.has_value() || !placer_.list_scheduler) return false;
    options.home = &home->device;
    std::optional<PlacedGraph> placed = run_placer(problem_.costs, options);
    if (!placed.has_value()) return false;
    std::vector<PlacedGraph> candidates;
    if (problem_.order == ExecutionOrder::kPlanned)
      candidates.push_back(list_schedule(problem_.costs, placed->device).placed);
    candidates.insert(candidates.begin(), *std::move(placed));
    const bool better = offer(std::move(candidates));
    attempt_.at_home = attempt_.at_home || better;
    return better;
  }

  // The cut fits as it is, though not in the order that the list scheduler would have.
  bool keep_cut() {
    const std::optional<PlacedGraph>& home = problem_.shrunk->optimized.home;
    if (!home.has_value() || !placer_.list_scheduler) return false;
    fall_back("cut");
    attempt_.optimized = true;
    attempt_.at_home = offer({*home});
    return attempt_.at_home;
  }

  std::optional<PlacedGraph> run_placer(const CostModel& costs, const PlaceOptions& options) {
    const bool further = options.headroom > 0 || options.memory == MemoryPolicy::kReserve;
    if (further && problem_.last_resort != nullptr) {
      problem_.last_resort->care -= work_of(placer_, costs);
      problem_.last_resort->care_to_fit -= work_of(placer_, costs);
    }
    PlaceResult result = placer_.place(costs, options);
    if (auto* placed = std::get_if<PlacedGraph>(&result)) return std::move(*placed);
    note_shortage(costs, std::get<DoesNotFit>(result));
    return std::nullopt;
  }

  bool offer(std::vector<PlacedGraph> candidates) {
    std::optional<Misfit> misfit;
    if (baechi::offer(problem_, std::move(candidates), attempt_, options_.cancel, &misfit)) {
      attempt_.reason.clear();
      attempt_.misfit.reset();
      return true;
    }
    if (misfit.has_value()) {
      if (attempt_.reason.empty() && !attempt_.placed.has_value())
        note_overflow(misfit->trace, misfit->overflow);
      auto& first = as_given_ ? attempt_.misfit_as_given : attempt_.misfit_plan;
      if (!first.has_value()) first = {std::move(misfit->placed), misfit->trace.schedule.makespan};
    }
    return false;
  }

  void note_shortage(const CostModel& costs, const DoesNotFit& misfit) {
    if (attempt_.placed.has_value() || !attempt_.reason.empty()) return;
    attempt_.reason = "operator '" + std::string(costs.graph()[misfit.op].name) +
                      "' found no room: the device with the most lacked " +
                      in_words(misfit.short_by);
    attempt_.misfit = misfit;
    if (&costs != &problem_.costs)
      attempt_.misfit->op = problem_.shrunk->optimized.expansion.members(misfit.op).front();
  }

  void note_overflow(const Trace& trace, const Overflow& overflow) {
    const DeviceTrace& device = trace.devices[overflow.device];
    attempt_.reason = "device '" + problem_.costs.cluster()[overflow.device].name +
                      "' would peak at " + in_words(device.peak) + ", " + in_words(overflow.over) +
                      " more than it has";
    if (device.peak_op.has_value()) attempt_.misfit = DoesNotFit{*device.peak_op, overflow.over};
  }

  const Problem& problem_;
  const PlacerEntry& placer_;
  const PlaceOptions& options_;
  Attempt& attempt_;
  bool as_given_ = false;  // what is tried now, after the optimised graph
};

// Whatever else is tried: so that a method by its name has what it has among others.
std::int64_t work_to_repair(const Problem& problem, std::int64_t work) {
  constexpr std::int64_t kLeastReplays = 300;
  const std::int64_t replay = replay_cost(problem.costs.graph());
  const std::int64_t all = std::max(work / 16, std::min(work, kLeastReplays * replay));
  if (!problem.fits || problem.last_resort == nullptr) return all;
  return std::clamp<std::int64_t>(problem.last_resort->repairs, 0, all);
}

// A start for repair when the placer gave none: everything where it may run, memory ignored.
PlacedGraph anywhere(const Problem& problem) {
  PlacedGraph placed{Placement(problem.costs.graph().num_ops(), DeviceId(0)), std::nullopt};
  for (const UnitId unit : problem.units.keys())
    for (const OpId op : problem.units[unit].ops)
      placed.device[op] = problem.units[unit].devices.front();
  return placed;
}

}  // namespace

std::int64_t work_of(const PlacerEntry& placer, const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  return static_cast<std::int64_t>(graph.num_ops() + graph.num_edges()) * placer.work_of_node +
         static_cast<std::int64_t>(graph.num_ops() * costs.cluster().num_devices()) *
             placer.work_of_pair;
}

Shrunk::Shrunk(const CostModel& original, const OptimizeOptions& options)
    : optimized(optimize(original, options)), costs(optimized.graph, original.cluster()) {}

Attempt own_choices(const Problem& problem, const PlacerEntry& placer,
                    const PlaceOptions& options) {
  Attempt attempt;
  attempt.method = std::string(placer.name);
  attempt.placer = &placer;
  const auto begin = std::chrono::steady_clock::now();
  PlacerAttempt(problem, placer, options, attempt).run();
  attempt.nanoseconds = nanoseconds_since(begin);
  return attempt;
}

void repair(const Problem& problem, const CancelFlag* cancel, Attempt& attempt) {
  attempt.optimized = false;
  const auto begin = std::chrono::steady_clock::now();
  LastResort own{.order = problem.order};
  LastResort& resort = problem.last_resort != nullptr ? *problem.last_resort : own;
  const bool has_as_given = attempt.misfit_as_given.has_value();
  std::vector<PlacedGraph> starts;
  for (std::optional<Attempt::Misfit>* misfit : {&attempt.misfit_plan, &attempt.misfit_as_given})
    if (misfit->has_value()) starts.push_back(std::exchange(*misfit, std::nullopt)->placed);
  const bool was_shrunk = problem.shrunk != nullptr && attempt.placer->optimizable;
  if (starts.empty() || (was_shrunk && !has_as_given)) starts.push_back(anywhere(problem));
  note_fallback("repair", attempt);
  for (const PlacedGraph& start : starts) {
    const std::int64_t work = work_to_repair(problem, resort.work);
    if (work < replay_cost(problem.costs.graph())) break;
    FitSearch search(problem.costs, problem.units,
                     {.simulated_ops = work, .order = problem.order, .cancel = cancel});
    std::optional<PlacedGraph> found = search.repair(start);
    resort.spent += search.work();
    if (problem.fits) resort.repairs -= search.work();
    if (found.has_value()) offer(problem, {*std::move(found)}, attempt);
    if (attempt.placed.has_value()) break;
    if (problem.fits) continue;  // any plan is no better
    search_any_fit(problem.costs, problem.units, cancel, resort);
    for (const std::string& name : resort.fallbacks) note_fallback(name, attempt);
    if (resort.placed.has_value()) offer(problem, {*resort.placed}, attempt);
    if (attempt.placed.has_value()) break;
  }
  attempt.proved = resort.proved;
  if (attempt.placed.has_value()) {
    attempt.reason.clear();
    attempt.misfit.reset();
  }
  attempt.nanoseconds += nanoseconds_since(begin);
}

Attempt attempt(const Problem& problem, const PlacerEntry& placer, const PlaceOptions& options) {
  Attempt attempt = own_choices(problem, placer, options);
  if (attempt.may_be_repaired() && !problem.paper) repair(problem, options.cancel, attempt);
  return attempt;
}

bool offer_placement(const Problem& problem, const PlacedGraph& placed, Attempt& attempt) {
  return offer(problem, {placed}, attempt);
}

const Attempt* best_of(std::span<const Attempt> attempts) {
  const Attempt* best = nullptr;
  for (const Attempt& attempt : attempts)
    if (attempt.placed.has_value() && (best == nullptr || attempt.makespan < best->makespan))
      best = &attempt;
  return best;
}

MethodOutcome outcome_of(const Attempt& attempt) {
  MethodOutcome outcome{.method = attempt.method,
                        .makespan = {},
                        .fallbacks = attempt.fallbacks,
                        .reason = attempt.reason,
                        .devices_used = 0,
                        .peaks = attempt.peaks};
  if (!attempt.placed.has_value()) return outcome;
  outcome.makespan = attempt.makespan;
  std::vector<DeviceId> used(attempt.placed->device.begin(), attempt.placed->device.end());
  std::sort(used.begin(), used.end());
  outcome.devices_used =
      static_cast<std::size_t>(std::unique(used.begin(), used.end()) - used.begin());
  return outcome;
}

}  // namespace baechi
