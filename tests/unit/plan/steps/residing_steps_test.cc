// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/residing_steps.h"

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
#include "baechi/graph/recosted.h"
#include "baechi/graph/residency.h"
#include "baechi/graph/unroll.h"
#include "baechi/plan/residency/residency_bounds.h"
#include "baechi/plan/steps/step_plan.h"
#include "baechi/simulate/execution_simulator.h"
#include "unit/graph_sketch.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

// Two layers, their gradients and updates, which a host may run:
//
//   w1 -> f1 -> f2 -> b2 -> b1    f1's output is read by f2 and b2; b1 and b2 read w1 and w2;
//         w2 ---^                 u1 and u2 read gradients and weights
OpGraph two_layers(std::uint64_t seed) {
  Random random(seed ^ 0xca4d);
  const auto draw = [&](std::int64_t least, std::int64_t most) {
    return least +
           static_cast<std::int64_t>(random.below(static_cast<std::size_t>(most - least + 1)));
  };
  OpGraphBuilder builder("two layers");
  const auto add = [&](const char* name, bool backward) {
    const OpId op =
        builder.add_operator({.name = name, .backward = backward, .per_step = name[0] == 'u'});
    builder.set_time(op, "gpu", Time(draw(5, 60)));
    return op;
  };
  std::array<OpId, 2> w{OpId(0), OpId(0)}, f = w, b = w, u = w;
  std::array<Bytes, 2> weight{Bytes(draw(60, 100)), Bytes(draw(60, 100))};
  for (const std::size_t i : {0U, 1U}) {
    w[i] = builder.add_operator({.name = i == 0 ? "w1" : "w2", .per_step = true, .variable = true});
    builder.add_output(w[i], weight[i]);
  }
  for (const std::size_t i : {0U, 1U}) {
    f[i] = add(i == 0 ? "f1" : "f2", false);
    builder.add_output(f[i], Bytes(draw(10, 80)));
    builder.connect(*builder.output(w[i], 0), f[i]);
  }
  builder.connect(*builder.output(f[0], 0), f[1]);
  for (const std::size_t i : {1U, 0U}) {
    b[i] = add(i == 0 ? "b1" : "b2", true);
    builder.set_forward(b[i], f[i]);
    builder.add_output(b[i], Bytes(weight[i].count() / 2));
    if (i == 1) builder.add_output(b[i], Bytes(draw(2, 10)));
    builder.connect(*builder.output(w[i], 0), b[i]);
  }
  builder.connect(*builder.output(f[0], 0), b[1]);
  builder.connect(*builder.output(f[1], 0), b[1]);
  builder.connect(*builder.output(b[1], 1), b[0]);
  for (const std::size_t i : {1U, 0U}) {
    u[i] = add(i == 0 ? "u1" : "u2", true);
    builder.set_time(u[i], "host", Time(draw(5, 60)));
    builder.connect(*builder.output(w[i], 0), u[i]);
    builder.connect(*builder.output(b[i], 0), u[i]);
  }
  return std::move(builder).build();
}

// The shortest step that fits, of all choices of what is away, how many fetches there are and what each waits
// for; the store runs fetches in the order of what they wait for, updates as their gradients come or last,
// as the device does, too.
class ByBruteForce {
 public:
  ByBruteForce(const OpGraph& graph, const Cluster& cluster) : graph_(graph), cluster_(cluster) {
    for (const char* name : {"f1", "f2", "b2", "b1"}) order_.push_back(op_named(graph, name));
  }

  std::optional<Time> shortest() {
    Residency residency{"host:0", {}, {}};
    choose(0, residency);
    return best_;
  }

 private:
  OpId id(const char* name) const { return op_named(graph_, name); }
  std::size_t position(OpId op) const {
    return static_cast<std::size_t>(std::ranges::find(order_, op) - order_.begin());
  }

  void choose(std::size_t tensor, const Residency& residency) {
    if (tensor == 3) return wait_for(0, residency);
    choose(tensor + 1, residency);
    constexpr std::array<std::array<const char*, 3>, 2> kWeights{
        {{"w1", "f1", "b1"}, {"w2", "f2", "b2"}}};
    Residency away = residency;
    if (tensor == 2) {
      away.away.push_back({id("f1"), 0, {{std::nullopt, {id("b2")}}}});
      return choose(tensor + 1, away);
    }
    const auto& [weight, forward, backward] = kWeights[tensor];
    away.on_store.push_back(id(weight));
    away.on_store.push_back(id(tensor == 0 ? "u1" : "u2"));
    std::vector<OpId> both{id(forward), id(backward)};
    std::ranges::sort(both);
    away.away.push_back({id(weight), 0, {{std::nullopt, both}}});
    choose(tensor + 1, away);
    away.away.back().fetches = {{std::nullopt, {id(forward)}}, {std::nullopt, {id(backward)}}};
    choose(tensor + 1, away);
  }

  void wait_for(std::size_t index, const Residency& residency) {
    std::size_t before = 0;
    for (std::size_t i = 0; i < residency.away.size(); ++i)
      for (std::size_t k = 0; k < residency.away[i].fetches.size(); ++k)
        if (before++ == index) {
          std::size_t first = order_.size();
          for (const OpId reader : residency.away[i].fetches[k].readers)
            first = std::min(first, position(reader));
          Residency other = residency;
          wait_for(index + 1, other);
          for (std::size_t at = 0; at < first; ++at) {
            other.away[i].fetches[k].after = order_[at];
            wait_for(index + 1, other);
          }
          return;
        }
    for (const bool last : {false, true})
      for (const bool early : {false, true}) replay(residency, last, early);
  }

  void replay(Residency residency, bool updates_last, bool early_on_device) {
    std::ranges::sort(residency.on_store);
    const OpGraph step = residing(graph_, residency);
    std::vector<std::tuple<std::size_t, std::size_t, OpId>> on_store;
    std::size_t fetch = graph_.num_ops();
    for (const AwayTensor& away : residency.away)
      for (const Fetch& each : away.fetches)
        on_store.emplace_back(each.after.has_value() ? position(*each.after) + 1 : 0,
                              position(each.readers.front()), OpId(fetch++));
    PlacedGraph placed{Placement(step.num_ops(), DeviceId(0)), DeviceOrder(2)};
    for (std::size_t i = graph_.num_ops(); i < step.num_ops(); ++i)
      placed.device[OpId(i)] = DeviceId(1);
    for (const OpId op : residency.on_store) placed.device[op] = DeviceId(1);
    std::vector<OpId> on_device{id("w1"), id("w2")};
    for (const OpId op : order_) on_device.push_back(op);
    for (const char* name : {"u2", "u1"}) {
      const OpId gradient = id(name[1] == '1' ? "b1" : "b2");
      if (placed.device[id(name)] == DeviceId(0))
        on_device.insert(
            early_on_device ? std::ranges::find(on_device, gradient) + 1 : on_device.end(),
            id(name));
      const std::size_t made = position(gradient) + 1;
      on_store.emplace_back(updates_last ? order_.size() + 1 : made, order_.size(), id(name));
    }
    std::ranges::sort(on_store);
    for (const OpId op : {id("w1"), id("w2")})
      if (placed.device[op] == DeviceId(1)) (*placed.order)[DeviceId(1)].push_back(op);
    for (const auto& [unused, also, op] : on_store)
      if (placed.device[op] == DeviceId(1)) (*placed.order)[DeviceId(1)].push_back(op);
    for (const OpId op : on_device)
      if (placed.device[op] == DeviceId(0)) (*placed.order)[DeviceId(0)].push_back(op);
    const Trace trace = simulate(CostModel(step, cluster_), placed);
    const Bytes peak = trace.devices[DeviceId(0)].peak;
    if (peak > cluster_[DeviceId(0)].capacity) return;
    if (!best_.has_value() || trace.schedule.makespan < *best_) best_ = trace.schedule.makespan;
  }

  const OpGraph& graph_;
  const Cluster& cluster_;
  std::vector<OpId> order_;
  std::optional<Time> best_;
};

std::vector<std::pair<std::string, std::int64_t>> traffic_bounds(const Cluster& cluster,
                                                                 const Unrolled& step) {
  std::vector<std::pair<std::string, std::int64_t>> found;
  for (const NamedBound& bound : residency_bounds({step, CostModel(step.graph, cluster)}))
    if (bound.name.find("host") != std::string::npos)
      found.emplace_back(bound.name, bound.value.count());
  std::ranges::sort(found);
  return found;
}

// A weight of 1,000 bytes and its update, in 10 ns on the device (5 forward, 5 backward) and 100 on the host.
// Beside its gradient (500 bytes, and 1 that its operator reads) it is away where 1,500 bytes are
// there. On two devices with less than it takes together all of it is, too: no unit is cut.
TEST_CASE("residency: traffic and updates at the least, by hand") {
  OpGraphBuilder builder("one weight");
  const OpId w = builder.add_operator({.name = "w", .per_step = true, .variable = true});
  builder.add_output(w, Bytes(1000));
  const auto add = [&](const char* name, std::int64_t time, bool update) {
    const OpId op =
        builder.add_operator({.name = name, .backward = name[0] != 'f', .per_step = update});
    builder.set_time(op, "gpu", Time(time));
    builder.connect(*builder.output(w, 0), op);
    return op;
  };
  const OpId f = add("f", 5, false), b = add("b", 5, false), u = add("u", 3, true);
  builder.set_time(u, "host", Time(100));
  builder.set_forward(b, f);
  builder.add_output(f, Bytes(1));
  builder.add_output(b, Bytes(500));
  builder.connect(*builder.output(f, 0), b);
  builder.connect(*builder.output(b, 0), u);
  const OpGraph graph = std::move(builder).build();
  using Found = std::vector<std::pair<std::string, std::int64_t>>;
  const Unrolled one = unroll(graph, 1), three = unroll(graph, 3);
  const auto away = [](std::int64_t updates) {
    return Found{{"traffic from the host", 999},
                 {"traffic to the host", 499},
                 {"updates on the host", updates}};
  };
  CHECK(traffic_bounds(gpu_and_host(Bytes(1500), Bytes(10'000)), one) == away(109));
  CHECK(traffic_bounds(gpu_and_host(Bytes(1500), Bytes(10'000)), three) ==
        away(129));  // 30 ns before the update; one fetch
  CHECK(traffic_bounds(gpu_and_host(Bytes(1501), Bytes(10'000)), one).empty());
  ClusterSpec two = gpu_and_host(Bytes(750), Bytes(10'000)).spec();
  two.devices.push_back(two.devices.front());
  two.devices.back().name = "gpu:1";
  CHECK(traffic_bounds(Cluster(two), one) == away(109));
  // One run of b goes before the others, which may go side by side.
  CHECK(traffic_bounds(Cluster(two), three) == away(114));
}

Plan with_all_away(OpGraph graph, Bytes capacity) {
  std::vector<OpGraph> sizes;
  sizes.push_back(std::move(graph));
  PlanRequest request{.budget = 0.01};
  request.residency = AwayChoice::kAll;
  StepPlan made = make_step_plan(std::move(sizes), gpu_and_host(capacity, Bytes(10'000)), request);
  REQUIRE(std::holds_alternative<Plan>(made.result));
  return std::get<Plan>(std::move(made.result));
}

// Updates in PyTorch hold optimizer state as an output that nobody reads.
TEST_CASE("residency: nothing fetches what an update makes and nobody reads") {
  OpGraphBuilder builder("an update's output");
  const OpId w = builder.add_operator({.name = "w", .per_step = true, .variable = true});
  builder.add_output(w, Bytes(1'000));
  const OpId f = builder.add_operator({.name = "f"});
  const OpId u = builder.add_operator({.name = "u", .backward = true, .per_step = true});
  for (const OpId op : {f, u}) builder.set_time(op, "gpu", Time(5));
  for (const OpId op : {f, u}) builder.connect(*builder.output(w, 0), op);
  builder.set_time(u, "host", Time(5));
  builder.connect(builder.add_output(f, Bytes(500)), u);
  builder.add_output(u, Bytes(1'000));
  const Plan plan = with_all_away(std::move(builder).build(), Bytes(2'600));
  for (const AwayTensor& away : plan.residency.away) CHECK(away.producer != u);
}

TEST_CASE("residency: a variable that the host may not hold stays") {
  OpGraphBuilder builder("a variable with times");
  const OpId f = builder.add_operator({.name = "f"});
  builder.set_time(f, "gpu", Time(5));
  for (const char* name : {"free", "timed"}) {
    const OpId w = builder.add_operator({.name = name, .variable = true});
    builder.add_output(w, Bytes(1'000));
    if (std::string_view(name) == "timed") builder.set_time(w, "gpu", Time(0));
    builder.connect(*builder.output(w, 0), f);
  }
  const Plan plan = with_all_away(std::move(builder).build(), Bytes(2'500));
  const Placement placement = placement_of(plan.schedule);
  CHECK(placement[OpId(1)] == DeviceId(1));
  CHECK(placement[OpId(2)] == DeviceId(0));
}

TEST_CASE("residency: bounds are never above the best of all choices, and plans are near it") {
  double sum = 0, worst = 1;
  int compared = 0, missed = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = two_layers(seed);
    const Cluster cluster =
        gpu_and_host(Bytes(150 + static_cast<std::int64_t>(seed % 8) * 25), Bytes(10'000));
    const std::optional<Time> best = ByBruteForce(graph, cluster).shortest();
    if (!best.has_value()) continue;
    PlanRequest request{.budget = 0.01};
    request.residency = AwayChoice::kAuto;
    std::vector<OpGraph> sizes;
    sizes.push_back(recosted(graph, {}));
    const StepPlan made = make_step_plan(std::move(sizes), cluster, request);
    const Plan* plan = std::get_if<Plan>(&made.result);
    missed += plan == nullptr ? 1 : 0;
    if (plan == nullptr) continue;
    for (const NamedBound& bound : plan->bounds) {
      CAPTURE(bound.name);
      CHECK(bound.value <= *best);
    }
    const double ratio =
        static_cast<double>(plan->makespan().count()) / static_cast<double>(best->count());
    sum += ratio;
    worst = std::max(worst, ratio);
    ++compared;
  }
  MESSAGE(compared << " compared, mean " << sum / compared << ", worst " << worst << ", missed "
                   << missed);
  REQUIRE(compared > 25);
  CHECK(sum / compared < 1.05);
  CHECK(worst < 1.3);
  CHECK(missed == 0);
}

}  // namespace
}  // namespace baechi::testing
