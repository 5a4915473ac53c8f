// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/cut_graph.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "baechi/graph/union_find.h"
#include "baechi/optimize/grouping.h"
#include "baechi/optimize/mean_link.h"

namespace baechi {
namespace {

// Bytes that each operator's device holds for it at the moment when one device that runs the whole
// graph in topological order holds most.
IdVector<OpId, std::int64_t> memory_at_peak(const OpGraph& graph) {
  const std::span<const OpId> order = graph.topological_order();
  IdVector<OpId, std::size_t> rank(graph.num_ops());
  for (std::size_t i = 0; i < order.size(); ++i) rank[order[i]] = i;
  const auto last_use = [&](TensorId tensor) {
    const OpId producer = graph.producer(tensor);
    const bool retained = graph.retains_outputs(producer);
    std::size_t last = rank[producer];
    for (const Edge& edge : graph.consumers(tensor)) last = std::max(last, rank[edge.to]);
    return retained || graph.consumers(tensor).empty() ? order.size() : last;
  };

  std::vector<std::int64_t> freed(order.size() + 1, 0);
  IdVector<TensorId, std::size_t> last(graph.num_tensors());
  std::int64_t live = 0, most = -1;
  std::size_t worst = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (const TensorId tensor : graph.outputs(order[i])) {
      last[tensor] = last_use(tensor);
      live += graph.home_size(tensor).count();
      freed[last[tensor]] += graph.home_size(tensor).count();
    }
    if (live + graph[order[i]].temporary.count() > most) {
      most = live + graph[order[i]].temporary.count();
      worst = i;
    }
    live -= freed[i];
  }
  IdVector<OpId, std::int64_t> memory(graph.num_ops());
  for (const OpId op : graph.ops()) {
    memory[op] = graph[op].permanent.count();
    if (rank[op] > worst) continue;
    for (const TensorId tensor : graph.outputs(op))
      if (last[tensor] >= worst) memory[op] += graph.home_size(tensor).count();
  }
  return memory;
}

// The devices that may run each operator, as bits.
IdVector<OpId, std::uint64_t> device_bits(const CostModel& costs) {
  IdVector<DeviceClassId, std::uint64_t> of_class(costs.num_classes(), 0);
  for (const DeviceId device : costs.cluster().devices())
    of_class[costs.class_of(device)] |= std::uint64_t{1} << device.index();
  IdVector<OpId, std::uint64_t> bits(costs.graph().num_ops(), 0);
  for (const DeviceClassId c : of_class.keys()) {
    const IdVector<OpId, std::optional<Time>>& times = costs.class_times(c);
    for (const OpId op : bits.keys())
      if (times[op].has_value()) bits[op] |= of_class[c];
  }
  if (costs.has_pins())
    for (const OpId op : bits.keys())
      if (const std::optional<DeviceId> pin = costs.pin(op); pin.has_value())
        bits[op] &= std::uint64_t{1} << pin->index();
  return bits;
}

void index_nets(CutGraph& graph) {
  graph.nets.begin.assign(graph.units.size() + 1, 0);
  for (const CutUnitId unit : graph.pins.values) ++graph.nets.begin[unit.index() + 1];
  std::partial_sum(graph.nets.begin.begin(), graph.nets.begin.end(), graph.nets.begin.begin());
  graph.nets.values.assign(graph.pins.values.size(), NetId(0));
  std::vector<std::uint32_t> next(graph.nets.begin.begin(), graph.nets.begin.end() - 1);
  for (const NetId net : graph.cost.keys())
    for (const CutUnitId unit : graph.pins[net]) graph.nets.values[next[unit.index()]++] = net;
}

// Collects nets, makes them ascending sets, and drops those within one unit.
class NetCollector {
 public:
  void add(std::vector<CutUnitId>& pins, std::int64_t cost) {
    if (pins.size() == 2) {
      if (pins[0] == pins[1]) return;
      if (pins[1] < pins[0]) std::swap(pins[0], pins[1]);
    } else {
      std::sort(pins.begin(), pins.end());
      pins.erase(std::unique(pins.begin(), pins.end()), pins.end());
      if (pins.size() < 2) return;
    }
    pins_.values.insert(pins_.values.end(), pins.begin(), pins.end());
    pins_.begin.push_back(static_cast<std::uint32_t>(pins_.values.size()));
    cost_.push_back(cost);
  }

  // Nets with the same pins become one.
  void finish(CutGraph& graph) && {
    graph.pins.values.reserve(pins_.values.size());
    graph.pins.begin.reserve(pins_.begin.size());
    std::vector<std::optional<NetId>> table(std::bit_ceil(2 * cost_.size() + 1));
    for (const NetId net : cost_.keys()) {
      const std::span<const CutUnitId> pins = pins_[net];
      std::optional<NetId>& same = find(table, graph.pins, pins);
      if (same.has_value()) {
        graph.cost[*same] += cost_[net];
        continue;
      }
      same = graph.cost.push_back(cost_[net]);
      graph.pins.values.insert(graph.pins.values.end(), pins.begin(), pins.end());
      graph.pins.begin.push_back(static_cast<std::uint32_t>(graph.pins.values.size()));
    }
    index_nets(graph);
  }

 private:
  // The place of the net with these pins in an open hash table, or where it belongs.
  static std::optional<NetId>& find(std::vector<std::optional<NetId>>& table,
                                    const IdRows<NetId, CutUnitId>& known,
                                    std::span<const CutUnitId> pins) {
    std::uint64_t hash = pins.size();
    for (const CutUnitId unit : pins) hash = (hash ^ unit.value()) * 0x9e3779b97f4a7c15ULL;
    std::size_t at = static_cast<std::size_t>(hash >> 20) & (table.size() - 1);
    while (table[at].has_value() && !std::ranges::equal(known[*table[at]], pins))
      at = (at + 1) & (table.size() - 1);
    return table[at];
  }

  IdRows<NetId, CutUnitId> pins_;
  IdVector<NetId, std::int64_t> cost_;
};

// The unit that the largest part of a unit's transfers joins it with: of those that it may unite
// with, else of all.
struct Choice {
  std::int64_t rating = 0;
  CutUnitId unit, partner;
  bool allowed;
};

// Sets of units that become one on the next level.
class Unions {
 public:
  Unions(const CutGraph& graph, const UnitCaps& caps)
      : graph_(graph),
        caps_(caps),
        sets_(graph.units.size()),
        sums_(graph.units),
        rating_(graph.units.size(), 0) {}

  std::size_t count() const { return count_; }

  // The largest ratings first.
  std::vector<Choice> choices() {
    std::vector<Choice> choices;
    choices.reserve(graph_.units.size());
    for (const CutUnitId unit : graph_.units.keys())
      if (const auto choice = choose(unit); choice.has_value()) choices.push_back(*choice);
    std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
      return a.rating != b.rating ? a.rating > b.rating : a.unit < b.unit;
    });
    return choices;
  }

  void with_partners(const std::vector<Choice>& choices, std::size_t most) {
    for (const Choice& choice : choices)
      if (count_ < most && choice.allowed) unite(choice.unit, choice.partner);
  }

  void with_rivals(const std::vector<Choice>& choices, std::size_t most) {
    IdVector<CutUnitId, std::optional<CutUnitId>> waiting(graph_.units.size());
    for (const Choice& choice : choices) {
      if (count_ >= most) break;
      const CutUnitId unit = set(choice.unit);
      if (unit == set(choice.partner)) continue;
      std::optional<CutUnitId>& other = waiting[set(choice.partner)];
      if (!other.has_value() || !unite(*other, unit)) other = unit;
    }
  }

  // Adds the coarse units; returns each unit's.
  IdVector<CutUnitId, CutUnitId> apply(CutGraph& coarse) && {
    IdVector<CutUnitId, CutUnitId> coarse_of(graph_.units.size(), CutUnitId(0));
    for (const CutUnitId unit : graph_.units.keys()) {
      const CutUnitId root = set(unit);
      coarse_of[unit] = root == unit ? coarse.units.push_back(sums_[root]) : coarse_of[root];
    }
    return coarse_of;
  }

 private:
  CutUnitId set(CutUnitId unit) { return CutUnitId(sets_.find(unit.value())); }

  bool unite(CutUnitId x, CutUnitId y) {
    const CutUnitId a = set(x), b = set(y);
    if (a == b || !may_unite(sums_[a], sums_[b])) return false;
    const CutUnit united{sums_[a].work + sums_[b].work, sums_[a].memory + sums_[b].memory,
                         sums_[a].devices & sums_[b].devices};
    sets_.unite(a.value(), b.value());
    sums_[std::min(a, b)] = united;
    ++count_;
    return true;
  }

  bool may_unite(const CutUnit& a, const CutUnit& b) const {
    return a.work + b.work <= caps_.work && a.memory + b.memory <= caps_.memory &&
           (a.devices & b.devices) != 0;
  }

  std::optional<Choice> choose(CutUnitId unit) {
    // A net with very many pins says little about any two of them, and is slow to look at.
    constexpr std::size_t kManyPins = 100;
    met_.clear();
    for (const NetId net : graph_.nets[unit]) {
      const std::span<const CutUnitId> pins = graph_.pins[net];
      if (pins.size() > kManyPins) continue;
      const std::int64_t share =
          std::max<std::int64_t>(1, graph_.cost[net] / static_cast<std::int64_t>(pins.size() - 1));
      for (const CutUnitId other : pins) {
        if (rating_[other] == 0) met_.push_back(other);
        rating_[other] += share;
      }
    }
    std::optional<Choice> best;
    for (const CutUnitId other : met_) {
      const std::int64_t rating = std::exchange(rating_[other], 0);
      if (other == unit) continue;
      const bool allowed = may_unite(graph_.units[unit], graph_.units[other]);
      if (!best.has_value() || std::tuple(allowed, rating, best->partner) >
                                   std::tuple(best->allowed, best->rating, other))
        best = Choice{rating, unit, other, allowed};
    }
    return best;
  }

  const CutGraph& graph_;
  UnitCaps caps_;
  UnionFind sets_;
  IdVector<CutUnitId, CutUnit> sums_;
  std::size_t count_ = 0;
  IdVector<CutUnitId, std::int64_t> rating_;
  std::vector<CutUnitId> met_;
};

}  // namespace

std::int64_t CutGraph::total_work() const {
  return std::accumulate(units.begin(), units.end(), std::int64_t{0},
                         [](std::int64_t sum, const CutUnit& unit) { return sum + unit.work; });
}

CutGraphOf cut_graph(const CostModel& costs, const OpLabels& group) {
  const OpGraph& graph = costs.graph();
  CutGraphOf result;
  result.unit = IdVector<OpId, CutUnitId>(graph.num_ops(), CutUnitId(0));
  std::vector<std::optional<CutUnitId>> by_label(graph.num_ops());
  const IdVector<OpId, Time> work = mean_work(costs);
  const IdVector<OpId, std::int64_t> memory = memory_at_peak(graph);
  const IdVector<OpId, std::uint64_t> devices = device_bits(costs);
  for (const OpId op : graph.ops()) {
    std::optional<CutUnitId>& unit = by_label[group[op]];
    if (!unit.has_value())
      unit = result.graph.units.push_back({0, 0, std::numeric_limits<std::uint64_t>::max()});
    CutUnit& into = result.graph.units[*unit];
    into.work += work[op].count();
    into.memory += memory[op];
    into.devices &= devices[op];
    result.unit[op] = *unit;
  }
  const MeanLink link(costs.cluster());
  NetCollector nets;
  std::vector<CutUnitId> pins;
  for (const TensorId tensor : graph.tensors()) {
    if (graph.consumers(tensor).empty()) continue;
    pins.assign(1, result.unit[graph.producer(tensor)]);
    for (const Edge& edge : graph.consumers(tensor)) pins.push_back(result.unit[edge.to]);
    nets.add(pins, link.transfer_time(graph.size(tensor)).count());
  }
  std::move(nets).finish(result.graph);
  return result;
}

std::optional<CutGraph> coarsen(const CutGraph& fine, const UnitCaps& caps,
                                IdVector<CutUnitId, CutUnitId>& coarse_of) {
  Unions unions(fine, caps);
  const std::vector<Choice> choices = unions.choices();
  // A third at most per level: ratings are stale after that.
  unions.with_partners(choices, fine.units.size() / 3);
  // The partners of what is left are full. Units that would have liked the same one go together.
  if (unions.count() * 5 < fine.units.size()) unions.with_rivals(choices, fine.units.size() / 3);
  if (unions.count() * 50 < fine.units.size()) return std::nullopt;

  CutGraph coarse;
  coarse_of = std::move(unions).apply(coarse);
  NetCollector nets;
  std::vector<CutUnitId> pins;
  for (const NetId net : fine.cost.keys()) {
    pins.clear();
    for (const CutUnitId unit : fine.pins[net]) pins.push_back(coarse_of[unit]);
    nets.add(pins, fine.cost[net]);
  }
  std::move(nets).finish(coarse);
  return coarse;
}

}  // namespace baechi
