// SPDX-License-Identifier: Apache-2.0
// Steps beside a host against the best of all choices of what is kept, away or made again.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/graph/recomputation.h"
#include "baechi/graph/recosted.h"
#include "baechi/graph/residency.h"
#include "baechi/graph/topological_order.h"
#include "baechi/plan/steps/step_plan.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

// Layers, their gradients and updates, which a host may run:
//
//   f0 -> f1 -> f2 -> b2 -> b1 -> b0    the output of f[i] is read by f[i + 1] and b[i + 1], that of the
//                                       last by its own b; f[i], b[i] and u[i] read w[i], u[i] the
//                                       gradient of b[i], too
struct Layers {
  OpGraph graph;
  std::size_t count;

  OpId operator[](const std::string& name) const { return op_named(graph, name.c_str()); }
  OpId of(char part, std::size_t layer) const { return (*this)[part + std::to_string(layer)]; }
};

Layers chain(std::uint64_t seed, std::size_t count, bool weights) {
  Random random(seed ^ 0xca4d);
  const auto draw = [&](std::int64_t least, std::int64_t most) {
    return least +
           static_cast<std::int64_t>(random.below(static_cast<std::size_t>(most - least + 1)));
  };
  OpGraphBuilder builder("chain");
  std::vector<OpId> w, f, b;
  std::vector<Bytes> weight;
  const auto add = [&](char part, std::size_t layer) {
    const OpId op = builder.add_operator({.name = part + std::to_string(layer),
                                          .backward = part == 'b' || part == 'u',
                                          .per_step = part == 'w' || part == 'u',
                                          .variable = part == 'w'});
    if (part != 'w') builder.set_time(op, "gpu", Time(draw(5, 60)));
    return op;
  };
  for (std::size_t i = 0; i < count && weights; ++i) {
    w.push_back(add('w', i));
    weight.emplace_back(draw(60, 100));
    builder.add_output(w[i], weight[i]);
  }
  for (std::size_t i = 0; i < count; ++i) {
    f.push_back(add('f', i));
    builder.add_output(f[i], Bytes(draw(10, 80)));
    if (weights) builder.connect(*builder.output(w[i], 0), f[i]);
    if (i > 0) builder.connect(*builder.output(f[i - 1], 0), f[i]);
  }
  for (std::size_t i = count; i-- > 0;) {
    const OpId back = add('b', i);
    builder.set_forward(back, f[i]);
    builder.add_output(back, Bytes(draw(2, 10)));
    if (weights) builder.add_output(back, Bytes(weight[i].count() / 2));
    if (weights) builder.connect(*builder.output(w[i], 0), back);
    if (i > 0) builder.connect(*builder.output(f[i - 1], 0), back);
    builder.connect(b.empty() ? *builder.output(f[i], 0) : *builder.output(b.back(), 0), back);
    b.push_back(back);
    if (!weights) continue;
    const OpId update = add('u', i);
    builder.set_time(update, "host", Time(draw(5, 60) * (seed % 2 == 0 ? 1 : 20)));
    builder.connect(*builder.output(w[i], 0), update);
    builder.connect(*builder.output(back, 1), update);
  }
  return {std::move(builder).build(), count};
}

// The shortest step that fits, of all choices of what is away, how many fetches there are, what each waits
// for and what runs again. Fetches are asked for in the order of their readers, and the store runs
// them in that of what they wait for, updates as their gradients come or last, as the device does, too.
class ByBruteForce {
 public:
  ByBruteForce(const Layers& layers, const Cluster& cluster) : layers_(layers), cluster_(cluster) {}

  std::optional<Time> shortest() {
    const MayRunAgain may_run(layers_.graph);
    std::vector<OpId> may;
    for (std::size_t i = 0; i + 1 < layers_.count; ++i)  // the last is read at once
      if (!may_run.refusal(layers_.of('f', i)).has_value()) may.push_back(layers_.of('f', i));
    for (std::uint32_t set = 0; set < 1U << may.size(); ++set) {
      std::vector<Recomputation> again;
      for (std::size_t i = 0; i < may.size(); ++i)
        if ((set >> i & 1U) != 0) again.push_back({may[i]});
      graph_.emplace(recomputing(layers_.graph, again));
      order_.clear();
      for (const OpId op : program_order(*graph_))
        if (!(*graph_)[op].per_step) order_.push_back(op);
      choose(OpId(0), {"host:0", {}, {}});
    }
    return best_;
  }

 private:
  std::size_t position(OpId op) const {
    return static_cast<std::size_t>(std::ranges::find(order_, op) - order_.begin());
  }
  bool is_update(OpId op) const { return (*graph_)[op].per_step && !(*graph_)[op].variable; }

  std::size_t layer_of(OpId op) const {
    return static_cast<std::size_t>((*graph_)[op].name.back() - '0');
  }

  // Readers on the device, forward and backward.
  std::array<std::vector<OpId>, 2> readers(OpId op) const {
    std::array<std::vector<OpId>, 2> found;
    for (const Edge& edge : graph_->out_edges(op))
      if (edge.tensor.has_value() && !is_update(edge.to))
        found[(*graph_)[edge.to].backward ? 1 : 0].push_back(edge.to);
    for (std::vector<OpId>& each : found) std::ranges::sort(each);
    return found;
  }

  void choose(OpId op, const Residency& residency) {
    if (op.index() == graph_->num_ops()) return wait_for(residency);
    const OpId next(op.value() + 1);
    choose(next, residency);
    const auto [forward, backward] = readers(op);
    Residency away = residency;
    if ((*graph_)[op].variable) {
      away.on_store.push_back(op);
      for (const Edge& edge : graph_->out_edges(op))
        if (is_update(edge.to)) away.on_store.push_back(edge.to);
      std::vector<OpId> both = forward;
      both.insert(both.end(), backward.begin(), backward.end());
      std::ranges::sort(both);
      away.away.push_back({op, 0, {{std::nullopt, both}}});
      choose(next, away);
      away.away.back().fetches = {{std::nullopt, forward}, {std::nullopt, backward}};
      choose(next, away);
      stream(op, residency, {both});
      return stream(op, residency, {forward, backward});
    } else if (!(*graph_)[op].backward && !forward.empty() && !backward.empty()) {
      away.away.push_back({op, 0, {{std::nullopt, backward}}});
    } else {
      return;
    }
    choose(next, away);
  }

  // The update reads what the last fetch brings, too.
  void stream(OpId variable, const Residency& residency, std::vector<std::vector<OpId>> readers) {
    for (const Edge& edge : graph_->out_edges(variable))
      if (is_update(edge.to)) readers.back().push_back(edge.to);
    std::ranges::sort(readers.back());
    Residency away = residency;
    away.on_store.push_back(variable);
    away.away.push_back({variable, 0, {}});
    for (const std::vector<OpId>& each : readers)
      away.away.back().fetches.push_back({std::nullopt, each});
    choose(OpId(variable.value() + 1), away);
  }

  struct Wait {
    std::size_t reader = 0;  // the first, by position
    std::size_t tensor = 0, fetch = 0;
    std::size_t after = 0;  // so many operators
    auto operator<=>(const Wait&) const = default;
  };

  void wait_for(const Residency& residency) {
    waits_.clear();
    for (std::size_t i = 0; i < residency.away.size(); ++i)
      for (std::size_t k = 0; k < residency.away[i].fetches.size(); ++k) {
        std::size_t first = order_.size();
        for (const OpId reader : residency.away[i].fetches[k].readers)
          first = std::min(first, position(reader));
        waits_.push_back({first, i, k});
      }
    std::ranges::sort(waits_);
    wait_for(0, 0, residency);
  }

  void wait_for(std::size_t index, std::size_t from, const Residency& residency) {
    if (index < waits_.size()) {
      for (std::size_t at = from; at <= waits_[index].reader; ++at) {
        waits_[index].after = at;
        wait_for(index + 1, at, residency);
      }
      return;
    }
    Residency chosen = residency;
    for (const Wait& wait : waits_)
      if (wait.after > 0)
        chosen.away[wait.tensor].fetches[wait.fetch].after = order_[wait.after - 1];
    std::ranges::sort(chosen.on_store);
    const OpGraph step = residing(*graph_, chosen);
    const auto on_host =
        std::ranges::count_if(chosen.on_store, [&](OpId op) { return is_update(op); });
    const bool some_here =
        on_host < std::ranges::count_if(graph_->ops(), [&](OpId op) { return is_update(op); });
    for (const bool last : {false, true})
      for (const bool early : {false, true})
        if ((on_host > 0 || !last) && (some_here || !early)) replay(step, chosen, last, early);
  }

  void replay(const OpGraph& step, const Residency& residency, bool last, bool early_on_device) {
    for (std::size_t i = 0; i < waits_.size() && early_on_device; ++i) {
      const std::vector<OpId>& readers =
          residency.away[waits_[i].tensor].fetches[waits_[i].fetch].readers;
      for (const OpId reader : readers)  // it comes before what its fetch would wait for
        if (is_update(reader) && waits_[i].after > position(layers_.of('b', layer_of(reader))) + 1)
          return;
    }
    std::vector<std::tuple<std::size_t, std::size_t, OpId>> on_store;
    PlacedGraph placed{Placement(step.num_ops(), DeviceId(0)), DeviceOrder(2)};
    for (const OpId op : residency.on_store) placed.device[op] = DeviceId(1);
    for (std::size_t i = graph_->num_ops(); i < step.num_ops(); ++i)
      placed.device[OpId(i)] = DeviceId(1);
    std::vector<std::size_t> before(residency.away.size() + 1);
    for (std::size_t i = 0; i < residency.away.size(); ++i)
      before[i + 1] = before[i] + residency.away[i].fetches.size();
    for (const Wait& wait : waits_)
      on_store.emplace_back(wait.after, wait.reader,
                            OpId(graph_->num_ops() + before[wait.tensor] + wait.fetch));
    const std::size_t streams = graph_->num_ops() + before.back();
    std::vector<OpId>&on_device = (*placed.order)[DeviceId(0)],
    &of_store = (*placed.order)[DeviceId(1)];
    for (const OpId op : graph_->ops())
      if ((*graph_)[op].variable) (*placed.order)[placed.device[op]].push_back(op);
    on_device.insert(on_device.end(), order_.begin(), order_.end());
    for (std::size_t i = layers_.count; i-- > 0;) {
      if (!(*graph_)[OpId(0)].variable) break;
      const OpId update = layers_.of('u', i), gradient = layers_.of('b', i);
      if (placed.device[update] == DeviceId(0)) {
        const auto at =
            early_on_device ? std::ranges::find(on_device, gradient) + 1 : on_device.end();
        const auto behind = on_device.insert(at, update) + 1;
        for (std::size_t made = streams; made < step.num_ops(); made += 2)
          if (step.in_edges(OpId(made)).front().from == update ||
              step.in_edges(OpId(made)).back().from == update) {
            placed.device[OpId(made)] = DeviceId(0);
            on_device.insert(behind, OpId(made));
            on_store.emplace_back(order_.size() + 2, order_.size(), OpId(made + 1));
            break;
          }
      } else
        on_store.emplace_back(last ? order_.size() + 1 : position(gradient) + 1, order_.size(),
                              update);
    }
    std::ranges::sort(on_store);
    for (const auto& [unused, also, op] : on_store) of_store.push_back(op);
    const Trace trace = simulate(CostModel(step, cluster_), placed);
    if (trace.devices[DeviceId(0)].peak > cluster_[DeviceId(0)].capacity) return;
    if (!best_.has_value() || trace.schedule.makespan < *best_) best_ = trace.schedule.makespan;
  }

  const Layers& layers_;
  const Cluster& cluster_;
  std::optional<OpGraph> graph_;  // with second runs
  std::vector<OpId> order_;       // of micro-batches
  std::vector<Wait> waits_;       // by reader
  std::optional<Time> best_;
};

struct Compared {
  int count = 0, missed = 0;
  double sum = 0, worst = 0;
};

Compared compare(std::size_t layers, bool weights, Bytes least, std::uint64_t seeds,
                 double budget) {
  Compared all;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    CAPTURE(layers);
    CAPTURE(weights);
    CAPTURE(seed);
    const Layers graph = chain(seed, layers, weights);
    const Bytes capacity = least + Bytes(static_cast<std::int64_t>(seed % 8) * 25);
    const Cluster cluster = gpu_and_host(capacity, Bytes(10'000));
    const std::optional<Time> best = ByBruteForce(graph, cluster).shortest();
    if (!best.has_value()) continue;
    const auto planned = [&](AwayChoice residency) {
      StepRequest request{.search = {.budget = budget}};
      request.residency = residency;
      std::vector<OpGraph> sizes;
      sizes.push_back(recosted(graph.graph, {}));
      return make_step_plan(std::move(sizes), cluster, request).result;
    };
    const PlanResult made = planned(AwayChoice::kAuto), all_away = planned(AwayChoice::kAll);
    const Plan *plan = std::get_if<Plan>(&made), *other = std::get_if<Plan>(&all_away);
    all.missed += plan == nullptr ? 1 : 0;
    CHECK((other == nullptr || (plan != nullptr && plan->makespan() <= other->makespan())));
    if (plan == nullptr) continue;
    for (const NamedBound& bound : plan->bounds) {
      CAPTURE(bound.name);
      CHECK(bound.value <= *best);
    }
    const double ratio =
        static_cast<double>(plan->makespan().count()) / static_cast<double>(best->count());
    all.sum += ratio;
    all.worst = std::max(all.worst, ratio);
    ++all.count;
  }
  MESSAGE(layers << " layers, weights " << weights << ": " << all.count << " compared, mean "
                 << all.sum / all.count << ", worst " << all.worst << ", missed " << all.missed);
  return all;
}

TEST_CASE("residency: bounds are never above the best of all choices, and plans are near it") {
  const Compared weights = compare(2, true, Bytes(150), 50, 0.005);
  REQUIRE(weights.count > 25);
  CHECK(weights.sum / weights.count < 1.0);  // gradients may be away, too
  CHECK(weights.worst < 1.3);
  CHECK(weights.missed == 0);
  const Compared results = compare(4, false, Bytes(100), 40, 0.005);
  REQUIRE(results.count > 25);
  CHECK(results.sum / results.count < 1.03);
  CHECK(results.worst < 1.2);
  CHECK(results.missed == 0);
}

TEST_CASE("residency: figures of plans over the best of all choices" * doctest::skip()) {
  compare(2, true, Bytes(150), 400, 0.1);
  compare(3, true, Bytes(180), 60, 0.1);
  compare(6, false, Bytes(100), 60, 0.1);
}

}  // namespace
}  // namespace baechi::testing
