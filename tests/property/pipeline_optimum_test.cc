// SPDX-License-Identifier: Apache-2.0
// `pipeline` against the optimum of small steps, which two searches find that share nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/place/exact/exact.h"
#include "baechi/place/pipeline/pipeline.h"
#include "baechi/simulate/execution_simulator.h"
#include "property/effort.h"
#include "unit/place/pipeline_graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

// Tries every stage for every layer and every order. Copies of one operator are alike, so they run
// in the order of their micro-batches: a partial schedule is how many copies of every operator have
// run, and when. Of two that have run the same, one that is nowhere later is enough.
class BruteForce {
 public:
  BruteForce(const OpGraph& graph, const Cluster& cluster, std::uint32_t micro_batches)
      : graph_(graph), costs_(graph, cluster), micro_batches_(micro_batches) {}

  // Requires a plan that takes `above`.
  Time solve(Time above) {
    best_ = above;
    const std::size_t groups = graph_.num_groups();
    const bool alike = costs_.class_of(DeviceId(0)) == costs_.class_of(DeviceId(1));
    for (std::size_t choice = 0; choice < (std::size_t{1} << groups) / (alike ? 2 : 1); ++choice) {
      choice_ = choice;
      seen_.clear();
      look_ahead();
      go({std::vector<std::uint32_t>(graph_.num_ops(), 0),
          std::vector<std::vector<Time>>(graph_.num_ops()),
          {Time(0), Time(0)}});
    }
    return best_;
  }

 private:
  struct Partial {
    std::vector<std::uint32_t> ran;       // copies, by operator
    std::vector<std::vector<Time>> ends;  // of those
    std::vector<Time> free;               // by device
  };

  DeviceId device(OpId op) const { return DeviceId((choice_ >> graph_[op].group->index()) & 1U); }
  // The longest way from each operator to the end of its micro-batch, itself included.
  void look_ahead() {
    ahead_.assign(graph_.num_ops(), Time(0));
    const auto order = graph_.topological_order();
    for (std::size_t i = order.size(); i-- > 0;) {
      Time behind;
      for (const Edge& edge : graph_.out_edges(order[i])) {
        const bool sent = device(edge.from) != device(edge.to);
        behind = std::max(behind, ahead_[edge.to] + (sent ? transfer(edge) : Time(0)));
      }
      ahead_[order[i]] = behind + *costs_.compute_time(order[i], device(order[i]));
    }
  }
  Time transfer(const Edge& edge) const {
    return costs_.transfer_time(*edge.tensor, device(edge.from), device(edge.to));
  }
  std::optional<Time> ready(const Partial& partial, OpId op) const {
    const std::uint32_t copy = partial.ran[op.index()];
    if (copy == micro_batches_) return std::nullopt;
    Time at;
    for (const Edge& edge : graph_.in_edges(op)) {
      if (partial.ran[edge.from.index()] <= copy) return std::nullopt;
      Time there = partial.ends[edge.from.index()][copy];
      if (device(edge.from) != device(op)) there += transfer(edge);
      at = std::max(at, there);
    }
    return at;
  }
  // Whether one that ran the same was nowhere later; else remembers this one.
  bool dominated(const Partial& partial) {
    std::vector<Time> key = partial.free;
    for (const auto& ends : partial.ends) key.insert(key.end(), ends.begin(), ends.end());
    std::vector<std::vector<Time>>& known = seen_[partial.ran];
    const auto nowhere_later = [](const std::vector<Time>& a, const std::vector<Time>& b) {
      return std::equal(a.begin(), a.end(), b.begin(), [](Time x, Time y) { return x <= y; });
    };
    for (const auto& other : known)
      if (nowhere_later(other, key)) return true;
    std::erase_if(known, [&](const auto& other) { return nowhere_later(key, other); });
    known.push_back(std::move(key));
    return false;
  }
  void go(const Partial& partial) {
    const Time makespan = *std::max_element(partial.free.begin(), partial.free.end());
    std::vector<Time> left = partial.free;
    bool done = true;
    for (const OpId op : graph_.ops()) {
      const std::uint32_t copies = micro_batches_ - partial.ran[op.index()];
      left[device(op).index()] += *costs_.compute_time(op, device(op)) * copies;
      done = done && copies == 0;
    }
    if (done) best_ = std::min(best_, makespan);
    Time bound = *std::max_element(left.begin(), left.end());
    for (const OpId op : graph_.ops())
      if (const auto at = ready(partial, op); at.has_value() && !done)
        bound = std::max(bound, std::max(*at, partial.free[device(op).index()]) + ahead_[op]);
    if (done || bound >= best_ || dominated(partial)) return;
    for (const OpId op : graph_.ops()) {
      const std::optional<Time> at = ready(partial, op);
      if (!at.has_value()) continue;
      Partial next = partial;
      Time& free = next.free[device(op).index()];
      free = std::max(free, *at) + *costs_.compute_time(op, device(op));
      ++next.ran[op.index()];
      next.ends[op.index()].push_back(free);
      go(next);
    }
  }

  const OpGraph& graph_;
  const CostModel costs_;
  std::uint32_t micro_batches_;
  std::size_t choice_ = 0;
  std::map<std::vector<std::uint32_t>, std::vector<std::vector<Time>>> seen_;
  IdVector<OpId, Time> ahead_;
  Time best_;
};

struct Instance {
  OpGraph graph;
  Cluster cluster;
  std::uint32_t micro_batches;
};

Instance random_instance(std::uint64_t seed) {
  Random random(seed);
  const bool split = random.below(2) == 0;
  const std::size_t layers = 2 + random.below(split ? 2 : 3);
  std::vector<std::int64_t> times;
  for (std::size_t i = 0; i < layers; ++i)
    times.push_back(1 + static_cast<std::int64_t>(random.below(20)));
  ClusterSpec spec =
      testing::equal_devices(2, Bytes(1'000'000), Time(static_cast<std::int64_t>(random.below(6))),
                             {}, CommunicationMode::kParallel)
          .spec();
  if (random.below(2) == 0) spec.devices[random.below(2)].speed = Speed(500'000);
  return {testing::training({.forward = times, .split = split, .colocated = true}),
          Cluster(std::move(spec)), static_cast<std::uint32_t>(2 + random.below(2))};
}

Time pipeline_step(const Instance& instance, const Unrolled& unrolled, const CostModel& step) {
  const CostModel costs(instance.graph, instance.cluster);
  const PlaceResult result = place_pipeline({costs, unrolled, step}, {});
  REQUIRE(std::holds_alternative<PlacedGraph>(result));
  return simulate(step, std::get<PlacedGraph>(result)).schedule.makespan;
}

TEST_CASE("pipeline: brute force over stages and orders agrees with exact on the unrolled graph") {
  for (std::uint64_t seed = 0; seed < testing::effort(40); ++seed) {
    CAPTURE(seed);
    const Instance instance = random_instance(seed);
    const Unrolled unrolled = unroll(instance.graph, instance.micro_batches);
    const CostModel step(unrolled.graph, instance.cluster);
    const ExactResult exact = solve_exactly(step, {.work = 20'000'000});
    REQUIRE(exact.complete);
    const Time own = pipeline_step(instance, unrolled, step);
    const Time best =
        BruteForce(instance.graph, instance.cluster, instance.micro_batches).solve(own);
    CHECK(simulate(step, *exact.placed).schedule.makespan == best);
  }
}

// The mean over the optimum, in percent above it.
double mean_excess(std::uint64_t instances) {
  double sum = 0;
  for (std::uint64_t seed = 0; seed < instances; ++seed) {
    CAPTURE(seed);
    const Instance instance = random_instance(seed);
    const Unrolled unrolled = unroll(instance.graph, instance.micro_batches);
    const CostModel step(unrolled.graph, instance.cluster);
    const Time own = pipeline_step(instance, unrolled, step);
    const ExactResult exact = solve_exactly(step, {.work = 20'000'000});
    REQUIRE(exact.complete);
    CHECK(own >= exact.makespan);
    sum += static_cast<double>(own.count()) / static_cast<double>(exact.makespan.count()) - 1;
  }
  return 100 * sum / static_cast<double>(instances);
}

TEST_CASE("pipeline: within 5% of the optimum of small steps in the mean") {
  CHECK(mean_excess(testing::effort(100)) <= 5);
}

// BAECHI_INSTANCES=500 build/release/baechi_tests --no-skip -tc="pipeline: figures of*"
TEST_CASE("pipeline: figures of small steps against the optimum" * doctest::skip()) {
  const std::uint64_t instances = testing::instances(500);
  MESSAGE("pipeline is " << mean_excess(instances) << "% above the optimum in the mean of "
                         << instances << " steps");
}

}  // namespace
}  // namespace baechi
