// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/in_runs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "baechi/base/assert.h"
#include "baechi/schedule/step_order.h"

namespace baechi {
namespace {

// Orders of one device alone are tried in steps that are simulated in no time.
constexpr std::size_t kMostOfEach = 2'000'000;

class Runs {
 public:
  Runs(const Unrolled& step, const PlacedGraph& placed) : step_(step), placed_(placed) {
    BAECHI_ASSERT(placed.order.has_value(), "a step of micro-batches has an order");
  }

  bool on_one_device() const {
    return std::ranges::count_if(*placed_.order, [](const auto& ops) { return !ops.empty(); }) == 1;
  }

  // What runs once per step is before all micro-batches, or behind them if it waits for one.
  DeviceOrder one_by_one() const {
    const OpGraph& graph = step_.graph;
    IdVector<OpId, bool> behind(graph.num_ops(), false);
    std::vector<std::vector<OpId>> rows(step_.micro_batches + 2);
    for (const OpId op : graph.topological_order()) {
      for (const Edge& edge : graph.in_edges(op))
        behind[op] = behind[op] || behind[edge.from] || step_.micro_batch[edge.from].has_value();
      const std::optional<std::uint32_t> m = step_.micro_batch[op];
      const std::size_t per_step = behind[op] ? rows.size() - 1 : 0;
      rows[m.has_value() ? *m + 1 : per_step].push_back(op);
    }
    DeviceOrder order(placed_.order->size());
    for (const std::vector<OpId>& row : rows)
      for (const OpId op : row) order[placed_.device[op]].push_back(op);
    return order;
  }

  // Every end as soon as what it waits for has run, if all of that is here by then.
  std::vector<OpId> ends_gathered(const std::vector<OpId>& ops) const {
    const OpGraph& graph = step_.graph;
    IdVector<OpId, bool> here(graph.num_ops(), false);
    IdVector<OpId, std::size_t> place(graph.num_ops(), 0);
    for (std::size_t i = 0; i < ops.size(); ++i) {
      here[ops[i]] = true;
      place[ops[i]] = i;
    }
    IdVector<OpId, std::size_t> missing(graph.num_ops(), 0);  // of an end that moves; 0: of none
    for (const OpId op : ops) {
      if (!is_end(op)) continue;
      std::size_t last = 0;
      for (const Edge& edge : graph.in_edges(op))
        if (here[edge.from]) last = std::max(last, place[edge.from]);
      const bool moves = std::ranges::all_of(graph.in_edges(op), [&](const Edge& edge) {
        return here[edge.from] || has_come(edge, last, here, place);
      });
      if (moves)
        missing[op] = static_cast<std::size_t>(std::ranges::count_if(
            graph.in_edges(op), [&](const Edge& edge) { return here[edge.from]; }));
    }
    std::vector<OpId> result;
    for (const OpId op : ops) {
      if (missing[op] != 0 || !here[op]) continue;  // an end that will move up, or has
      std::vector<OpId> ready{op};
      while (!ready.empty()) {
        const OpId next = ready.back();
        ready.pop_back();
        result.push_back(next);
        here[next] = false;
        for (const Edge& edge : graph.out_edges(next)) {
          if (missing[edge.to] == 0) continue;
          --missing[edge.to];
          if (missing[edge.to] == 0) ready.push_back(edge.to);
        }
      }
    }
    return result;
  }

 private:
  // Whether it is of the backward of a micro-batch in which nothing waits for it.
  bool is_end(OpId op) const {
    const std::optional<std::uint32_t> m = step_.micro_batch[op];
    return m.has_value() && step_.graph[op].backward &&
           std::ranges::none_of(step_.graph.out_edges(op),
                                [&](const Edge& edge) { return step_.micro_batch[edge.to] == m; });
  }

  // Whether a tensor from elsewhere is read here by then, by somebody who stays where it is.
  bool has_come(const Edge& edge, std::size_t last, const IdVector<OpId, bool>& here,
                const IdVector<OpId, std::size_t>& place) const {
    return edge.tensor.has_value() &&
           std::ranges::any_of(step_.graph.consumers(*edge.tensor), [&](const Edge& other) {
             return here[other.to] && place[other.to] <= last && !is_end(other.to);
           });
  }

  const Unrolled& step_;
  const PlacedGraph& placed_;
};

}  // namespace

std::vector<DeviceOrder> orders_in_runs(const Unrolled& step, const PlacedGraph& placed) {
  const Runs runs(step, placed);
  std::vector<DeviceOrder> found;
  const auto offer = [&](DeviceOrder order) {
    order = with_sums_behind(step, order);
    if (order != *placed.order && std::ranges::find(found, order) == found.end())
      found.push_back(std::move(order));
  };
  const auto gathered = [&](DeviceOrder order) {
    for (std::vector<OpId>& ops : order) ops = runs.ends_gathered(ops);
    return order;
  };
  if (runs.on_one_device()) offer(gathered(runs.one_by_one()));
  offer(gathered(*placed.order));
  if (placed.order->size() * step.graph.num_ops() > kMostOfEach) return found;
  for (const DeviceId device : placed.order->keys()) {
    DeviceOrder order = *placed.order;
    order[device] = runs.ends_gathered(order[device]);
    offer(std::move(order));
  }
  return found;
}

}  // namespace baechi
