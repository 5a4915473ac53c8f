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
    if (problem_.failed != nullptr) {
      note_care();
      start_ = problem_.failed->misfit_as_given;
      return search();
    }
    const bool shrink = problem_.shrunk != nullptr && placer_.optimizable;
    if (place(shrink, {}) || placer_.baseline || problem_.paper) return;
    if (place_carefully(shrink)) return;
    if (shrink && keep_cut()) return;
    if (shrink) {
      fall_back("unoptimized");
      as_given_ = true;
      if (place(false, {}) || place_carefully(false)) return;
    }
    if (problem_.searched) search();
  }

 private:
  void fall_back(const char* name) {
    const std::vector<std::string>& known = attempt_.fallbacks;
    if (std::find(known.begin(), known.end(), name) == known.end())
      attempt_.fallbacks.emplace_back(name);
  }

  // How a list scheduler looks after memory.
  struct Care {
    MemoryPolicy memory = MemoryPolicy::kLive;
    double headroom = 0;
  };

  void note_care() {
    if (placer_.list_scheduler) fall_back("headroom");
    fall_back("reserve");
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
    if (further && problem_.last_resort != nullptr)
      problem_.last_resort->care -= work_of(placer_, costs);
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
      if (as_given_ && !attempt_.misfit_as_given.has_value())
        attempt_.misfit_as_given = misfit->placed;
      if (!start_.has_value()) start_ = std::move(misfit->placed);
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

  // Where something fits, further tries are worth what methods may take, and half of what a search may.
  bool may_go_on() const {
    const LastResort* const resort = problem_.last_resort;
    return !problem_.fits || resort == nullptr || resort->care > -resort->work / 2;
  }

  void search() {
    attempt_.optimized = false;
    LastResort own{.order = problem_.order};
    LastResort& resort = problem_.last_resort != nullptr ? *problem_.last_resort : own;
    FitSearch search(problem_.costs, problem_.units,
                     {.simulated_ops = work_to_repair(resort.work),
                      .order = problem_.order,
                      .cancel = options_.cancel});
    fall_back("repair");
    std::optional<PlacedGraph> found = search.repair(start_.has_value() ? *start_ : anywhere());
    resort.spent += search.work();
    if (found.has_value() && offer({*std::move(found)})) return;
    search_any_fit(problem_.costs, problem_.units, options_.cancel, resort);
    for (const std::string& name : resort.fallbacks) fall_back(name.c_str());
    if (resort.placed.has_value()) offer({*resort.placed});
    attempt_.proved = resort.proved;
  }

  // Whatever else is tried: so that a method by its name has what it has among others.
  std::int64_t work_to_repair(std::int64_t work) const {
    constexpr std::int64_t kLeastReplays = 300, kReplaysOfMore = 60;
    const std::int64_t replay = replay_cost(problem_.costs.graph());
    if (!may_go_on()) return std::min(work, kReplaysOfMore * replay);
    return std::max(work / 16, std::min(work, kLeastReplays * replay));
  }

  // A start for repair when the placer gave none: everything where it may run, memory ignored.
  PlacedGraph anywhere() const {
    PlacedGraph placed{Placement(problem_.costs.graph().num_ops(), DeviceId(0)), std::nullopt};
    for (const UnitId unit : problem_.units.keys())
      for (const OpId op : problem_.units[unit].ops)
        placed.device[op] = problem_.units[unit].devices.front();
    return placed;
  }

  const Problem& problem_;
  const PlacerEntry& placer_;
  const PlaceOptions& options_;
  Attempt& attempt_;
  std::optional<PlacedGraph> start_;
  bool as_given_ = false;  // what is tried now, after the optimised graph
};

}  // namespace

std::int64_t work_of(const PlacerEntry& placer, const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  return static_cast<std::int64_t>(graph.num_ops() + graph.num_edges()) * placer.work_of_node +
         static_cast<std::int64_t>(graph.num_ops() * costs.cluster().num_devices()) *
             placer.work_of_pair;
}

Shrunk::Shrunk(const CostModel& original, const OptimizeOptions& options)
    : optimized(optimize(original, options)), costs(optimized.graph, original.cluster()) {}

Attempt attempt(const Problem& problem, const PlacerEntry& placer, const PlaceOptions& options) {
  Attempt attempt;
  attempt.method = std::string(placer.name);
  attempt.placer = &placer;
  const auto begin = std::chrono::steady_clock::now();
  PlacerAttempt(problem, placer, options, attempt).run();
  attempt.nanoseconds =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin)
          .count();
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
