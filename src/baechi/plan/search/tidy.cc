// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/search/tidy.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "baechi/graph/union_find.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/search/local_search.h"
#include "baechi/plan/search/refine.h"

namespace baechi {
namespace {

constexpr std::int64_t kLittle = 1'000;  // parts of the step
constexpr std::int64_t kCheap = 6;       // parts of what all may lose
constexpr std::int64_t kBegin = 8;  // units of work per operator, for the first replay of a round

// What is connected on one device goes together.
IdVector<OpId, std::uint32_t> connected(const OpGraph& graph, const Placement& device) {
  UnionFind sets(graph.num_ops());
  for (const OpId op : graph.ops())
    for (const Edge& edge : graph.out_edges(op))
      if (device[op] == device[edge.to]) sets.unite(op.value(), edge.to.value());
  IdVector<OpId, std::uint32_t> labels;
  for (const OpId op : graph.ops()) labels.push_back(sets.find(op.value()));
  return labels;
}

// One round: the islands of a plan as they are when it begins, each tried once per allowance.
class Round {
 public:
  Round(const CostModel& costs, const PlacedGraph& start, ExecutionOrder order)
      : costs_(costs),
        graph_(costs.graph()),
        units_(costs, connected(graph_, start.device)),
        search_(costs, units_, start, {.order = order}),
        most_time_(search_.makespan_now().count() / kLittle),
        ops_on_(costs.cluster().num_devices()) {
    for (const DeviceId device : start.device) ++ops_on_[device];
    std::vector<std::pair<Time, UnitId>> found;
    for (const UnitId unit : units_.keys())
      if (const std::optional<Time> time = time_of(unit); time.has_value())
        found.emplace_back(*time, unit);
    std::ranges::sort(found);
    for (const auto& [time, unit] : found) islands_.push_back(unit);
  }

  // Until the work is done: what it costs is taken off.
  void run(Time most, std::int64_t& work, const CancelFlag* cancel) {
    for (const UnitId island : islands_) {
      if (work <= 0 || (cancel != nullptr && cancel->requested())) return;
      const std::int64_t before = search_.work();
      looked_ = 0;
      move(island, std::min(most, search_.makespan_now() + Time(most_time_)));
      work -= search_.work() - before + looked_;
    }
  }

  std::size_t islands() const { return moved_islands_; }
  std::size_t ops() const { return moved_ops_; }
  const PlacedGraph& placed() const { return search_.now(); }

 private:
  DeviceId home(UnitId unit) const { return search_.now().device[units_[unit].ops.front()]; }

  // Of an island; nothing where it is none.
  std::optional<Time> time_of(UnitId unit) const {
    Time time;
    for (const OpId op : units_[unit].ops) {
      time += *costs_.compute_time(op, home(unit));
      if (time.count() > most_time_) return std::nullopt;
    }
    return time;
  }

  void move(UnitId island, Time most) {
    for (const DeviceId device : neighbours(island)) {
      const std::size_t ops = units_[island].ops.size();
      const DeviceId from = home(island);
      if (device == from) return;  // a neighbour came here
      const std::size_t now = sends(island, from), then = sends(island, device);
      const bool empties = ops_on_[from] == ops && ops_on_[device] > 0;
      if (then > now || (then == now && !empties) || !search_.take(island, device, most)) continue;
      ops_on_[from] -= ops;
      ops_on_[device] += ops;
      ++moved_islands_;
      moved_ops_ += ops;
      return;
    }
  }

  template <class Visit>
  void for_all_edges(UnitId island, const Visit& visit) const {
    for (const OpId op : units_[island].ops) {
      for (const Edge& edge : graph_.in_edges(op)) visit(edge, edge.from);
      for (const Edge& edge : graph_.out_edges(op)) visit(edge, edge.to);
    }
  }

  // The devices of its neighbours, the one that it exchanges the most bytes with first; its own
  // before all others where it is one.
  std::vector<DeviceId> neighbours(UnitId island) {
    std::map<DeviceId, Bytes> bytes;
    for_all_edges(island, [&](const Edge& edge, OpId other) {
      ++looked_;
      if (units_.of(other) == island) return;
      bytes[search_.now().device[other]] +=
          edge.tensor.has_value() ? graph_.size(*edge.tensor) : Bytes(0);
    });
    std::vector<DeviceId> devices;
    if (bytes.contains(home(island))) return {home(island)};
    for (const auto& [device, size] : bytes) devices.push_back(device);
    std::ranges::stable_sort(devices, std::greater(), [&](DeviceId d) { return bytes[d]; });
    return devices;
  }

  // Of all tensors that it makes or reads, if it were on `device`.
  std::size_t sends(UnitId island, DeviceId device) {
    tensors_.clear();
    for_all_edges(island, [&](const Edge& edge, OpId) {
      if (edge.tensor.has_value()) tensors_.push_back(*edge.tensor);
    });
    std::ranges::sort(tensors_);
    tensors_.erase(std::unique(tensors_.begin(), tensors_.end()), tensors_.end());
    const auto at = [&](OpId op) {
      return units_.of(op) == island ? device : search_.now().device[op];
    };
    std::size_t count = 0;
    for (const TensorId tensor : tensors_) {
      receivers_.clear();
      for (const Edge& edge : graph_.consumers(tensor)) receivers_.push_back(at(edge.to));
      looked_ += static_cast<std::int64_t>(receivers_.size());
      std::ranges::sort(receivers_);
      receivers_.erase(std::unique(receivers_.begin(), receivers_.end()), receivers_.end());
      const DeviceId from = at(graph_.producer(tensor));
      count += receivers_.size() - (std::ranges::binary_search(receivers_, from) ? 1 : 0);
    }
    return count;
  }

  const CostModel& costs_;
  const OpGraph& graph_;
  const Units units_;  // connected ones
  LocalSearch search_;
  const std::int64_t most_time_;
  IdVector<DeviceId, std::size_t> ops_on_;
  std::vector<UnitId> islands_;  // the shortest first
  std::size_t moved_islands_ = 0, moved_ops_ = 0;

  std::int64_t looked_ = 0;
  std::vector<TensorId> tensors_;
  std::vector<DeviceId> receivers_;
};

}  // namespace

std::optional<Tidied> tidy(const Problem& problem, const Attempt& start,
                           const TidyOptions& options) {
  const std::int64_t begin = kBegin * static_cast<std::int64_t>(problem.costs.graph().num_ops());
  const Time most = start.makespan + options.may_lose;
  std::optional<PlacedGraph> placed = in_order(problem.costs, *start.placed, problem.order);
  Tidied tidied{.attempt = start};
  for (std::int64_t work = options.work; placed.has_value() && work > begin;) {
    Round round(problem.costs, *placed, problem.order);
    work -= begin;
    round.run(start.makespan, work, options.cancel);
    if (options.may_lose > Time(0)) {  // the cheap ones first
      round.run(start.makespan + Time(options.may_lose.count() / kCheap), work, options.cancel);
      round.run(most, work, options.cancel);
    }
    if (round.islands() == 0) break;
    placed = round.placed();
    tidied.islands += round.islands();
    tidied.ops += round.ops();
  }
  tidied.attempt.placed.reset();
  if (tidied.islands == 0 || !offer_placement(problem, *placed, tidied.attempt) ||
      tidied.attempt.makespan > most)
    return std::nullopt;
  return tidied;
}

}  // namespace baechi
