// SPDX-License-Identifier: Apache-2.0
// Steps of replicas against all numbers of them and all stages, and against one replica.
#include "baechi/graph/replicas.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/graph/recosted.h"
#include "baechi/io/plan/plan_file.h"
#include "baechi/io/step/open_plan.h"
#include "baechi/optimize/list_schedule.h"
#include "baechi/plan/steps/step_plan.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_plan.h"
#include "property/effort.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

struct ReplicaInstance {
  OpGraph graph;
  Cluster cluster;
  std::uint32_t micro_batches;
};

// Layers with a weight and an update each. Of a branchy one, the second reads the input as the
// first does, and the last reads both.
OpGraph random_layers(Random& random) {
  const std::size_t layers = 2 + random.below(3);
  const bool branchy = layers > 2 && random.below(2) == 0;
  OpGraphBuilder builder("layers");
  const auto add = [&](const std::string& name, std::size_t layer, std::int64_t time,
                       OperatorSpec spec) {
    const std::string full = name + std::to_string(layer);
    spec.name = full;
    const OpId op = testing::timed(builder, spec, Time(time));
    builder.add_to_group(op, "layer" + std::to_string(layer));
    return op;
  };
  std::vector<OpId> forward, backward;
  for (std::size_t i = 0; i < layers; ++i) {
    const auto time = static_cast<std::int64_t>(10 + random.below(90));
    const auto weights = static_cast<std::int64_t>(1 + random.below(400));
    forward.push_back(add("f", i, time, {.name = {}, .permanent = Bytes(weights)}));
    backward.push_back(add("b", i, 2 * time, {.name = {}, .forward = forward[i]}));
    const OpId update = add("u", i, 2, {.name = {}, .backward = true, .per_step = true});
    builder.connect(builder.add_output(backward[i], Bytes(weights)), update);
    const TensorId kept = builder.add_output(forward[i], Bytes(8));
    builder.connect(kept, backward[i]);
    for (std::size_t from = 0; from < i; ++from) {
      const bool reads = branchy ? (i + 1 == layers) || (from == 0 && i > 1) : from + 1 == i;
      if (!reads) continue;
      builder.connect(*builder.output(forward[from], 0), forward[i]);
      builder.connect(builder.add_output(backward[i], Bytes(8)), backward[from]);
    }
  }
  return std::move(builder).build();
}

ReplicaInstance random_instance_of_replicas(std::uint64_t seed, bool equal) {
  Random random(seed);
  OpGraph graph = random_layers(random);
  ClusterSpec spec = uniform_cluster(
      {.count = 2 + random.below(7),
       .capacity = Bytes(100'000),
       .latency = Time(static_cast<std::int64_t>(random.below(8))),
       .bandwidth = Bandwidth(1'000'000'000 * static_cast<std::int64_t>(1 + random.below(8))),
       .communication =
           random.below(2) == 0 ? CommunicationMode::kDuplex : CommunicationMode::kSequential});
  for (Device& device : spec.devices) {
    if (equal) break;
    if (random.below(3) == 0) device.speed = Speed(500'000);
    if (random.below(3) == 0) device.host = "other";
    if (random.below(4) == 0) device.capacity = Bytes(1'000);
  }
  if (!equal && random.below(4) == 0) spec.sends = Sends::kBlocking;
  if (!equal)
    spec.links.push_back({.scope = LinkScope::kOtherHost,
                          .from = {},
                          .to = {},
                          .latency = Time(20),
                          .bandwidth = Bandwidth(500'000'000),
                          .channels = {}});
  return {std::move(graph), Cluster(std::move(spec)),
          static_cast<std::uint32_t>(std::size_t{1} << (1 + random.below(3)))};
}

Plan planned(const ReplicaInstance& instance, std::optional<std::vector<std::uint32_t>> replicas,
             StepPlan* made = nullptr, double budget = 0.2) {
  StepRequest request{.search = {.budget = budget}};
  request.micro_batches = {instance.micro_batches};
  request.replicas = std::move(replicas);
  std::vector<OpGraph> graphs;
  graphs.push_back(recosted(instance.graph, {}));
  StepPlan plan = make_step_plan(std::move(graphs), instance.cluster, request);
  REQUIRE(std::holds_alternative<Plan>(plan.result));
  Plan result = std::get<Plan>(plan.result);
  if (made != nullptr) *made = std::move(plan);
  return result;
}

// The step of layers on these devices of each replica, which has `each` of them.
Time shortest_order(const ReplicaInstance& instance, const Replicas& replicas,
                    const std::vector<std::size_t>& device_of_layer, std::size_t each) {
  const OpGraph& one = instance.graph;
  const bool several = replicas.any();
  const Unrolled step = unroll(several ? replicated(one, replicas) : recosted(one, {}),
                               instance.micro_batches / replicas.count);
  const std::size_t all = one.num_ops() * replicas.count;
  Placement placement;
  for (const OpId op : step.graph.ops()) {
    const std::size_t at = step.original[op].index();
    OpId like(at % one.num_ops());
    std::size_t replica = at / one.num_ops();
    if (at >= all) {
      replica = (at - all) % replicas.count;
      like = replicas.buckets[(at - all) / replicas.count / replicas.rounds()].front().producer;
    }
    placement.push_back(DeviceId(replica * each + device_of_layer[one[like].group->index()]));
  }
  const CostModel costs(step.graph, instance.cluster);
  const IdVector<OpId, Time> critical = critical_times(costs, placement);
  const Time most = *std::max_element(critical.begin(), critical.end());
  std::optional<Time> shortest;
  for (const int way : {0, 1, 2}) {
    IdVector<OpId, Time> priority = critical;
    for (const OpId op : step.graph.ops()) {
      if (way == 1) priority[op] = Time(0) - priority[op];
      if (way == 2 && step.graph[op].backward) priority[op] += most;
    }
    const Time found =
        simulate(costs, list_schedule(costs, placement, priority).placed).schedule.makespan;
    if (!shortest.has_value() || found < *shortest) shortest = found;
  }
  return *shortest;
}

Time best_by_enumeration(const ReplicaInstance& instance) {
  std::optional<Time> best;
  const std::size_t layers = instance.graph.num_groups();
  const std::vector<ReducedTensor> reduced = reduced_tensors(instance.graph);
  for (std::uint32_t count = 1; count <= instance.micro_batches; ++count) {
    const std::size_t each = instance.cluster.num_devices() / count;
    if (instance.micro_batches % count != 0 || each == 0) continue;
    std::vector<std::size_t> device_of_layer(layers, 0);
    const std::function<void(std::size_t, std::size_t)> choose = [&](std::size_t layer,
                                                                     std::size_t used) {
      if (layer < layers) {
        for (std::size_t device = 0; device < std::min(used + 1, each); ++device) {
          device_of_layer[layer] = device;
          choose(layer + 1, std::max(used, device + 1));
        }
        return;
      }
      for (const bool together : {false, true}) {
        Replicas replicas{.count = count};
        for (const ReducedTensor& tensor : reduced) {
          const auto device = device_of_layer[instance.graph[tensor.producer].group->index()];
          const auto same = std::ranges::find_if(replicas.buckets, [&](const auto& bucket) {
            const GroupId group = *instance.graph[bucket.front().producer].group;
            return device_of_layer[group.index()] == device;
          });
          if (together && same != replicas.buckets.end())
            same->push_back(tensor);
          else
            replicas.buckets.push_back({tensor});
        }
        const Time found = shortest_order(instance, replicas, device_of_layer, each);
        if (!best.has_value() || found < *best) best = found;
      }
    };
    choose(0, 0);
  }
  return *best;
}

TEST_CASE("replicas: at most 1.01 times the best number of them and stages, by enumeration") {
  double worst = 0;
  for (std::uint64_t seed = 0; seed < testing::effort(40, 40); ++seed) {
    CAPTURE(seed);
    const ReplicaInstance instance = random_instance_of_replicas(seed, true);
    const double budget = Budget().seconds;
    const Time own = planned(instance, std::vector<std::uint32_t>{}, nullptr, budget).makespan();
    const Time best = best_by_enumeration(instance);
    const double ratio = static_cast<double>(own.count()) / static_cast<double>(best.count());
    CHECK(ratio <= 1.01);
    worst = std::max(worst, ratio);
  }
  MESSAGE("the worst is " << worst << " times the best");
}

TEST_CASE("replicas: auto is never worse than one replica, right, and above its bounds") {
  std::size_t several = 0;
  for (std::uint64_t seed = 0; seed < testing::effort(60, 60); ++seed) {
    CAPTURE(seed);
    const ReplicaInstance instance = random_instance_of_replicas(seed, false);
    StepPlan made{std::nullopt, as_step(recosted(instance.graph, {})), Plan{}};
    constexpr double kBudget = 0.05;
    const Plan any = planned(instance, std::vector<std::uint32_t>{}, &made, kBudget);
    CHECK(any.makespan() <= planned(instance, std::nullopt, nullptr, kBudget).makespan());
    CHECK(check_plan(instance.graph, made.step, any).empty());
    for (const NamedBound& bound : any.bounds) CHECK(bound.value <= any.makespan());
    const std::string text = plan_to_json(any, made.step);
    CHECK(open_plan_text(text, "plan.json", recosted(instance.graph, {})).plan == any);
    if (any.replicas.any()) ++several;
  }
  CHECK(several >= testing::effort(60, 60) / 10);
}

// A number of replicas is below no plan that was ever found with as many.
TEST_CASE("replicas: bounds are below every plan with as many") {
  for (std::uint64_t seed = 0; seed < testing::effort(30); ++seed) {
    CAPTURE(seed);
    ReplicaInstance instance = random_instance_of_replicas(seed, true);
    if (instance.micro_batches % 2 != 0) continue;
    const Plan plan = planned(instance, std::vector<std::uint32_t>{2});
    REQUIRE(plan.replicas.count == 2);
    const std::size_t layers = instance.graph.num_groups();
    std::vector<std::size_t> all_on_one(layers, 0);
    Replicas replicas{.count = 2};
    for (const ReducedTensor& tensor : reduced_tensors(instance.graph))
      replicas.buckets.push_back({tensor});
    CHECK(plan.bounds.front().value <=
          shortest_order(instance, replicas, all_on_one, instance.cluster.num_devices() / 2));
  }
}

}  // namespace
}  // namespace baechi
