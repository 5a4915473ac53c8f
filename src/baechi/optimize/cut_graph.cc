// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/cut_graph.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
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
      live += graph.size(tensor).count();
      freed[last[tensor]] += graph.size(tensor).count();
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
      if (last[tensor] >= worst) memory[op] += graph.size(tensor).count();
  }
  return memory;
}

std::uint64_t device_bits(const CostModel& costs, OpId op) {
  std::uint64_t bits = 0;
  for (const DeviceId device : costs.cluster().devices())
    if (costs.may_run(op, device)) bits |= std::uint64_t{1} << device.index();
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
    std::sort(pins.begin(), pins.end());
    pins.erase(std::unique(pins.begin(), pins.end()), pins.end());
    if (pins.size() < 2) return;
    pins_.values.insert(pins_.values.end(), pins.begin(), pins.end());
    pins_.begin.push_back(static_cast<std::uint32_t>(pins_.values.size()));
    cost_.push_back(cost);
  }

  // Nets with the same pins become one.
  void finish(CutGraph& graph) && {
    IdVector<NetId, std::uint64_t> hash(cost_.size());
    std::vector<NetId> order;
    order.reserve(cost_.size());
    for (const NetId net : cost_.keys()) {
      std::uint64_t h = pins_[net].size();
      for (const CutUnitId unit : pins_[net]) h = (h ^ unit.value()) * 0x9e3779b97f4a7c15ULL;
      hash[net] = h;
      order.push_back(net);
    }
    std::sort(order.begin(), order.end(),
              [&](NetId a, NetId b) { return hash[a] != hash[b] ? hash[a] < hash[b] : a < b; });
    std::vector<char> absorbed(cost_.size(), 0);
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (absorbed[order[i].index()] != 0) continue;
      for (std::size_t j = i + 1; j < order.size() && hash[order[j]] == hash[order[i]]; ++j) {
        if (absorbed[order[j].index()] != 0 ||
            !std::ranges::equal(pins_[order[i]], pins_[order[j]]))
          continue;
        absorbed[order[j].index()] = 1;
        cost_[order[i]] += cost_[order[j]];
      }
    }
    graph.pins = {};
    for (const NetId net : cost_.keys()) {
      if (absorbed[net.index()] != 0) continue;
      const std::span<const CutUnitId> pins = pins_[net];
      graph.pins.values.insert(graph.pins.values.end(), pins.begin(), pins.end());
      graph.pins.begin.push_back(static_cast<std::uint32_t>(graph.pins.values.size()));
      graph.cost.push_back(cost_[net]);
    }
    index_nets(graph);
  }

 private:
  IdRows<NetId, CutUnitId> pins_;
  IdVector<NetId, std::int64_t> cost_;
};

// The best partner of each unit: the one that the largest part of its tensors' transfers joins.
class Partners {
 public:
  Partners(const CutGraph& graph, const UnitCaps& caps)
      : graph_(graph), caps_(caps), rating_(graph.units.size(), 0) {}

  struct Choice {
    std::int64_t rating = 0;
    CutUnitId unit, partner;
  };
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
      if (other == unit || !may_unite(graph_.units[unit], graph_.units[other])) continue;
      if (!best.has_value() || rating > best->rating ||
          (rating == best->rating && other < best->partner))
        best = Choice{rating, unit, other};
    }
    return best;
  }
  bool may_unite(const CutUnit& a, const CutUnit& b) const {
    return a.work + b.work <= caps_.work && a.memory + b.memory <= caps_.memory &&
           (a.devices & b.devices) != 0;
  }

 private:
  const CutGraph& graph_;
  UnitCaps caps_;
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
  for (const OpId op : graph.ops()) {
    std::optional<CutUnitId>& unit = by_label[group[op]];
    if (!unit.has_value())
      unit = result.graph.units.push_back({0, 0, std::numeric_limits<std::uint64_t>::max()});
    CutUnit& into = result.graph.units[*unit];
    into.work += work[op].count();
    into.memory += memory[op];
    into.devices &= device_bits(costs, op);
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
  Partners partners(fine, caps);
  std::vector<Partners::Choice> choices;
  for (const CutUnitId unit : fine.units.keys())
    if (const auto choice = partners.choose(unit); choice.has_value()) choices.push_back(*choice);
  std::sort(choices.begin(), choices.end(),
            [](const Partners::Choice& a, const Partners::Choice& b) {
              return a.rating != b.rating ? a.rating > b.rating : a.unit < b.unit;
            });

  // A third at most per level: ratings are stale after that.
  const std::size_t most = fine.units.size() / 3;
  UnionFind sets(fine.units.size());
  IdVector<CutUnitId, CutUnit> sums = fine.units;
  std::size_t unions = 0;
  for (const Partners::Choice& choice : choices) {
    if (unions >= most) break;
    const CutUnitId a(sets.find(choice.unit.value())), b(sets.find(choice.partner.value()));
    if (a == b || !partners.may_unite(sums[a], sums[b])) continue;
    const CutUnit united{sums[a].work + sums[b].work, sums[a].memory + sums[b].memory,
                         sums[a].devices & sums[b].devices};
    sets.unite(a.value(), b.value());
    sums[std::min(a, b)] = united;
    ++unions;
  }
  if (unions * 50 < fine.units.size()) return std::nullopt;

  CutGraph coarse;
  coarse_of = IdVector<CutUnitId, CutUnitId>(fine.units.size(), CutUnitId(0));
  for (const CutUnitId unit : fine.units.keys()) {
    const CutUnitId root(sets.find(unit.value()));
    coarse_of[unit] = root == unit ? coarse.units.push_back(sums[root]) : coarse_of[root];
  }
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
