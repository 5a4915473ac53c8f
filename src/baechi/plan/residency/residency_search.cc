// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/residency_search.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "baechi/plan/residency/residency_orders.h"
#include "baechi/plan/residency/stored_units.h"
#include "baechi/schedule/step_order.h"
#include "baechi/simulate/settle.h"
#include "baechi/simulate/simulator.h"

namespace baechi {
namespace {

constexpr std::array<double, 6> kKeepParts{0.0, 0.5, 0.8, 0.9, 0.95, 1.0};
constexpr std::array<double, 5> kUnitParts{0.0, 0.4, 0.6, 0.8, 1.0};
constexpr std::size_t kLead = 6;  // and of the best choice these:
constexpr std::array<std::size_t, 3> kOtherLeads{0, 12, 24};
constexpr std::array<double, 2> kLess{0.7, 0.5};  // parts of the memory, as on such devices
constexpr std::array<double, 3> kLateUnits{0.0, 0.8, 1.0};
constexpr int kHalvings = 2;
constexpr int kRounds = 5;  // of replays that correct the account of one choice
// Of a start beside others.
constexpr std::array<std::pair<double, double>, 4> kFirstParts{
    {{0.0, 0.9}, {0.4, 0.95}, {1.0, 1.0}, {0.0, 0.0}}};
constexpr std::size_t kManyOps = 6'000;  // from here on parts are fewer
constexpr std::size_t kMostSettled = 4;  // plans whose order a file may not tell

// What is known of a step before its store has an order.
struct Unordered {
  const OpGraph& step;
  const DeviceOrder& order;          // of the devices
  const IdVector<OpId, Time>& when;  // about when each may be done
};

// The operators of the store, the earliest first, so that no device ever waits for itself: as they come in
// one order of all operators that agrees with the graph and with the devices.
std::vector<OpId> store_order(const Unordered& given, const IdVector<OpId, bool>& on_store) {
  const OpGraph& step = given.step;
  IdVector<OpId, std::size_t> waits(step.num_ops());
  IdVector<OpId, std::optional<OpId>> next(step.num_ops());
  for (const OpId op : step.ops()) waits[op] = step.in_edges(op).size();
  for (const std::vector<OpId>& ops : given.order)
    for (std::size_t i = 1; i < ops.size(); ++i) {
      next[ops[i - 1]] = ops[i];
      ++waits[ops[i]];
    }
  using Entry = std::tuple<bool, Time, OpId>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> free;
  const auto offer = [&](OpId op) { free.emplace(!step[op].variable, given.when[op], op); };
  for (const OpId op : step.ops())
    if (waits[op] == 0) offer(op);
  std::vector<OpId> order;
  while (!free.empty()) {
    const OpId op = std::get<OpId>(free.top());
    free.pop();
    if (on_store[op]) order.push_back(op);
    for (const Edge& edge : step.out_edges(op))
      if (--waits[edge.to] == 0) offer(edge.to);
    if (next[op].has_value() && --waits[*next[op]] == 0) offer(*next[op]);
  }
  return order;
}

struct Try {
  double units = 0.0, keep = 0.0;  // parts of the memory, as in ResidencyPrefer
  std::size_t lead = kLead;
  double memory = 1.0;  // the part that counts as there
  StayFirst first = StayFirst::kSpread;
  bool first_come = false;  // no fetch goes before an update that may begin earlier
};

class Search {
 public:
  Search(const ResidencyProblem& problem, DeviceId store, const CancelFlag* cancel)
      : problem_(problem),
        costs_(problem.costs),
        units_(units_for_store(problem.costs, problem.step, store)),
        cancel_(cancel) {}

  // How good it looks.
  FoundResidency try_start(const ResidencyStart& start, std::size_t number) {
    begin_with(number);
    for (const auto& [units, keep] : kFirstParts) try_parts(start, {units, keep});
    return *here_;
  }

  void try_all_parts(const ResidencyStart& start, std::size_t number) {
    begin_with(number);
    const bool many = costs_.graph().num_ops() > kManyOps;
    for (std::size_t u = 0; u < kUnitParts.size(); u += many ? 2 : 1)
      for (std::size_t k = 0; k < kKeepParts.size(); k += many ? 2 : 1)
        if (kKeepParts[k] >= kUnitParts[u] && !try_parts(start, {kUnitParts[u], kKeepParts[k]}))
          try_parts(start, {kUnitParts[u], kKeepParts[k], 0});
    // As on smaller devices: more memory is then hardly ever worse than that much less.
    for (const double memory : kLess)
      for (std::size_t k = 0; k < kKeepParts.size(); k += many ? 3 : 1)
        try_parts(start, {0, kKeepParts[k], kLead, memory});
    for (const double units : kLateUnits)
      try_parts(start, {units, 1.0, kLead, 1.0, StayFirst::kLate});
    try_parts(start, {1.0, 1.0, kLead, 1.0, StayFirst::kLarge});
    Try best = best_try_;
    for (const std::size_t lead : kOtherLeads) {
      best.lead = lead;
      try_parts(start, best);
    }
    best = best_try_;
    if (const auto last = with_updates_last(problem_, start)) {
      peaks_of_.clear();
      try_parts(*last, best);
      for (const double memory : kLess) try_parts(*last, {0.6, 1.0, kLead, memory});
    }
    if (problem_.step.micro_batches > 1) return;
    const ResidencyStart other = with_last_gradients_first(problem_, start);
    peaks_of_.clear();
    try_parts(other, best);
    try_parts(other, {1.0, 1.0, kLead, 1.0, StayFirst::kLarge});
  }

  void try_nothing_kept(const ResidencyStart& start, std::size_t number) {
    begin_with(number);
    for (const bool first_come : {false, true})
      try_parts(start, {0, 0, 0, 1.0, StayFirst::kSpread, first_come});
  }

  // In an order that a file can tell.
  std::optional<FoundResidency> take() && {
    for (FoundResidency& found : best_)
      if (!found.fits || problem_.step.micro_batches == 1 || settled(found))
        return std::move(found);
    return std::nullopt;
  }

 private:
  void begin_with(std::size_t number) {
    number_ = number;
    here_.reset();
    peaks_of_.clear();
  }

  bool stopped() const { return cancel_ != nullptr && cancel_->requested() && !best_.empty(); }

  // Whether any of it fits. Where it does not at first, but with a smaller account does, what lies between.
  bool try_parts(const ResidencyStart& given, const Try& what) {
    now_ = what;
    ResidencyPrefer prefer{what.lead, what.units, what.keep, what.first,
                           IdVector<DeviceId, Bytes>(costs_.cluster().num_devices())};
    for (const DeviceId device : costs_.cluster().devices())
      prefer.memory[device] = Bytes(static_cast<std::int64_t>(
          static_cast<double>(costs_.cluster()[device].capacity.count()) * what.memory));
    const IdVector<DeviceId, Bytes> there = prefer.memory;
    ResidencyStart start = given;
    std::optional<IdVector<DeviceId, Bytes>> fitting, too_much;
    for (int round = 0; round < kRounds && !stopped(); ++round) {
      const bool fits = try_once(start, prefer, there);
      (fits ? fitting : too_much) = prefer.memory;
      if (fits && round > 1) break;
      if (fits) continue;
      for (const DeviceId device : costs_.cluster().devices()) {
        const Bytes excess = peaks_[device] - std::min(peaks_[device], there[device]);
        prefer.memory[device] -= std::min(prefer.memory[device], excess);
      }
    }
    for (int round = 0; round < kHalvings && fitting.has_value() && too_much.has_value(); ++round) {
      for (const DeviceId device : costs_.cluster().devices())
        prefer.memory[device] = Bytes(((*fitting)[device] + (*too_much)[device]).count() / 2);
      (try_once(start, prefer, there) ? fitting : too_much) = prefer.memory;
    }
    return fitting.has_value();
  }

  // Whether it fits so much memory.
  bool try_once(ResidencyStart& start, const ResidencyPrefer& prefer,
                const IdVector<DeviceId, Bytes>& there) {
    Residency residency = choose_residency(problem_, start, units_, prefer);
    const auto [seen, is_new] = peaks_of_.try_emplace(digest_of(residency));
    if (is_new) {
      FoundResidency found = replay(start, std::move(residency));
      seen->second = peaks_;
      if (!here_.has_value() || found.better_than(*here_)) {
        here_ = found;
        best_try_ = now_;
      }
      offer(std::move(found));
    }
    peaks_ = seen->second;
    return std::ranges::all_of(costs_.cluster().devices(),
                               [&](DeviceId device) { return peaks_[device] <= there[device]; });
  }

  // Of the choice, and of what else a replay depends on most.
  std::uint64_t digest_of(const Residency& residency) const {
    std::uint64_t digest = now_.first_come ? 1 : 0;
    const auto add = [&](std::uint64_t value) {
      digest = (digest ^ value) * 0x9E3779B97F4A7C15U;
      digest ^= digest >> 32U;
    };
    for (const AwayTensor& away : residency.away) {
      add(away.producer.index());
      add(away.port);
      for (const Fetch& fetch : away.fetches) {
        add(fetch.after.has_value() ? fetch.after->index() : costs_.graph().num_ops());
        for (const OpId reader : fetch.readers) add(reader.index());
      }
    }
    for (const OpId op : residency.on_store) add(op.index());
    return digest;
  }

  // When everything on the store can be done, by an estimate of when the rest runs, and when that starts.
  IdVector<OpId, Time> ready_by(const OpGraph& step, const ResidencyStart& start) const {
    IdVector<OpId, Time> ready(step.num_ops());
    for (const OpId op : step.topological_order()) {
      if (step[op].variable) continue;
      if (op.index() < start.slots.size() && !on_store_[op]) {
        ready[op] = start.slots[op].start;
        continue;
      }
      for (const Edge& edge : step.in_edges(op)) {
        const bool given = edge.from.index() < start.slots.size();
        if (!given || step[edge.from].variable) continue;
        Time end = start.slots[edge.from].end;
        if (edge.tensor.has_value() && start.device[edge.from] != start.store)
          end += costs_.cluster()
                     .link(start.device[edge.from], start.store)
                     .transfer_time(step.size(*edge.tensor));
        ready[op] = std::max(ready[op], end);
      }
    }
    if (!now_.first_come) one_after_the_other(start.store, ready);
    return ready;
  }

  // Updates when the store comes to them, so that fetches which are asked for by then go before them.
  void one_after_the_other(DeviceId store, IdVector<OpId, Time>& ready) const {
    std::vector<std::pair<Time, OpId>> updates;
    for (const OpId op : costs_.graph().ops())
      if (on_store_[op] && is_update(problem_.step, op)) updates.emplace_back(ready[op], op);
    std::ranges::sort(updates);
    Time free;
    for (const auto& [at, op] : updates) {
      ready[op] = std::max(at, free);
      free = ready[op] + costs_.compute_time(op, store).value_or(Time(0));
    }
  }

  FoundResidency replay(ResidencyStart& start, Residency residency) {
    const OpGraph& graph = costs_.graph();
    FoundResidency found;
    found.start = number_;
    found.residency = std::move(residency);
    const OpGraph step = residing(problem_.step, found.residency);
    const CostModel costs(step, costs_.cluster());
    found.placed.device = start.device;
    for (const OpId op : found.residency.on_store) found.placed.device[op] = start.store;
    for (std::size_t i = graph.num_ops(); i < step.num_ops(); ++i)
      found.placed.device.push_back(start.store);
    DeviceOrder order(costs_.cluster().num_devices());
    for (const DeviceId device : order.keys())
      for (const OpId op : start.order[device])
        if (found.placed.device[op] == device) order[device].push_back(op);
    on_store_.assign(step.num_ops(), false);
    for (const OpId op : step.ops()) on_store_[op] = found.placed.device[op] == start.store;
    const IdVector<OpId, Time> ready = ready_by(step, start);
    order[start.store] = store_order({step, order, ready}, on_store_);
    found.placed.order = std::move(order);
    Simulator simulator(costs);
    const StepSummary& summary = simulator.run(found.placed);
    measure(found, summary.makespan, summary.peaks);
    found.store_needs = summary.peaks[start.store];
    const IdVector<OpId, OpSlot>& slots = simulator.slots();  // written anew by every call
    for (const OpId op : graph.ops()) start.slots[op] = slots[op];
    return found;
  }

  void measure(FoundResidency& found, Time makespan, const IdVector<DeviceId, Bytes>& peaks) {
    found.makespan = makespan;
    found.fits = true;
    found.over = Bytes(0);
    peaks_ = peaks;
    for (const DeviceId device : costs_.cluster().devices()) {
      const Bytes capacity = costs_.cluster()[device].capacity;
      if (peaks[device] <= capacity) continue;
      found.fits = false;
      if (peaks[device] - capacity <= found.over) continue;
      found.over = peaks[device] - capacity;
      found.step_needs = peaks[device];
      found.fullest = device;
    }
  }

  bool settled(FoundResidency& found) {
    const Unrolled step = with_fetches(problem_.step, found.residency);
    const std::size_t devices = costs_.cluster().num_devices();
    const std::optional<Trace> trace =
        simulate_settled(CostModel(step.graph, costs_.cluster()), step, found.placed);
    if (!trace.has_value()) return false;
    found.placed.order = with_sums_behind(step, order_of(trace->schedule, step.graph, devices));
    IdVector<DeviceId, Bytes> peaks;
    for (const DeviceTrace& device : trace->devices) peaks.push_back(device.peak);
    measure(found, trace->schedule.makespan, peaks);
    return found.fits;
  }

  // Keeps the best few.
  void offer(FoundResidency found) {
    const auto at = std::ranges::find_if(
        best_, [&](const FoundResidency& other) { return found.better_than(other); });
    best_.insert(at, std::move(found));
    if (best_.size() > kMostSettled) best_.pop_back();
  }

  const ResidencyProblem& problem_;
  const CostModel& costs_;
  std::vector<StoredUnit> units_;
  const CancelFlag* cancel_;
  std::size_t number_ = 0;                                       // of the start
  IdVector<DeviceId, Bytes> peaks_;                              // of what was measured last
  std::map<std::uint64_t, IdVector<DeviceId, Bytes>> peaks_of_;  // of each choice, in this order
  IdVector<OpId, bool> on_store_;                                // of the step that is replayed
  Try now_;
  std::optional<FoundResidency> here_;  // the best of one start,
  Try best_try_;                        // and how it was found
  std::vector<FoundResidency> best_;    // of all, the best first
};

}  // namespace

bool FoundResidency::better_than(const FoundResidency& other) const {
  return std::tuple(!fits, over, makespan) < std::tuple(!other.fits, other.over, other.makespan);
}

std::optional<FoundResidency> find_residency(const ResidencyProblem& problem,
                                             const std::vector<ResidencyStart>& starts,
                                             ResidencyEffort effort, const CancelFlag* cancel) {
  if (starts.empty()) return std::nullopt;
  Search search(problem, starts.front().store, cancel);
  if (effort == ResidencyEffort::kAll) {
    for (std::size_t i = 0; i < starts.size(); ++i) search.try_nothing_kept(starts[i], i);
    return std::move(search).take();
  }
  std::size_t best = 0;
  if (starts.size() > 1 || effort == ResidencyEffort::kFew) {
    std::optional<FoundResidency> of_best;
    for (std::size_t i = 0; i < starts.size(); ++i) {
      FoundResidency found = search.try_start(starts[i], i);
      if (of_best.has_value() && !found.better_than(*of_best)) continue;
      of_best = std::move(found);
      best = i;
    }
  }
  if (effort == ResidencyEffort::kMany) search.try_all_parts(starts[best], best);
  return std::move(search).take();
}

}  // namespace baechi
