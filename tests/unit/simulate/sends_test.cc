// SPDX-License-Identifier: Apache-2.0
// Executors whose sends block, or whose messages take the time of their ends
// (docs/reference/semantics.md).
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/plan/planner.h"
#include "baechi/schedule/execution_order.h"
#include "baechi/simulate/critical_path.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_schedule.h"
#include "unit/graph_sketch.h"
#include "unit/simulate/naive_simulator.h"
#include "unit/simulate/random_placement.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

Cluster whose_sends_block(ClusterSpec spec) {
  spec.sends = Sends::kBlocking;
  return Cluster(std::move(spec));
}

Cluster whose_messages_take_time(ClusterSpec spec) {
  spec.message_time = MessageTime{Time(2), Time(3)};
  return Cluster(std::move(spec));
}

std::string first_fault(const OpGraph& graph, const Cluster& cluster, const Schedule& schedule,
                        ExecutionOrder order = ExecutionOrder::kPlanned) {
  const auto faults =
      check_schedule(graph, cluster, schedule, {.capacities = false, .order = order});
  return faults.empty() ? "" : faults.front();
}

// a(5) is read by b(4) on gpu:1 and d(1) on gpu:2; c(1) is behind a on gpu:0.
OpGraph fork() {
  return GraphSketch()
      .ops({{"a", 5}, {"b", 4}, {"c", 1}, {"d", 1}})
      .tensors({{"a", 4, {"b"}}, {"a", 3, {"d"}}})
      .build();
}

TEST_CASE("sends that block: a device sends one output after the other, and only then goes on") {
  const OpGraph graph = fork();
  const PlacedGraph placed = in_order(graph, {{"a", "c"}, {"b"}, {"d"}});
  const auto end_of = [&](const Schedule& schedule, const char* name) {
    return schedule.slots[op_named(graph, name)].end;
  };
  for (const CommunicationMode mode :
       {CommunicationMode::kParallel, CommunicationMode::kSequential, CommunicationMode::kDuplex}) {
    const Cluster cluster = whose_sends_block(byte_per_ns(3, mode).spec());
    const Schedule schedule = simulate(CostModel(graph, cluster), placed).schedule;
    CHECK(first_fault(graph, cluster, schedule) == "");
    CHECK(end_of(schedule, "b") == Time(5 + 4 + 4));
    CHECK(end_of(schedule, "d") == Time(5 + 4 + 3 + 1));
    CHECK(end_of(schedule, "c") == Time(5 + 4 + 3 + 1));
  }
  const Cluster goes_on = byte_per_ns(3, CommunicationMode::kParallel);
  const Schedule free = simulate(CostModel(graph, goes_on), placed).schedule;
  CHECK(end_of(free, "c") == Time(6));
  CHECK(end_of(free, "d") == Time(5 + 3 + 1));
}

TEST_CASE("verify: a device that does not wait for its sends, or longer than for them") {
  const OpGraph graph = fork();
  const PlacedGraph placed = in_order(graph, {{"a", "c"}, {"b"}, {"d"}});
  const Cluster cluster = whose_sends_block(byte_per_ns(3, CommunicationMode::kParallel).spec());
  const Schedule right = simulate(CostModel(graph, cluster), placed).schedule;
  const OpId c = op_named(graph, "c");
  Schedule wrong = right;
  wrong.slots[c] = {kGpu0, Time(5), Time(6)};
  CHECK(first_fault(graph, cluster, wrong) ==
        "operator 'c' on 'gpu:0' starts at 5 ns, while its device sends until 12 ns");
  wrong.slots[c] = {kGpu0, Time(13), Time(14)};
  CHECK(first_fault(graph, cluster, wrong) ==
        "operator 'c' on 'gpu:0' starts at 13 ns although it could start at 12 ns");
  CHECK(first_fault(graph, byte_per_ns(3, CommunicationMode::kParallel), right) != "");
}

// a sends two messages, and what reads each is the first on its device; e reads that of b again.
TEST_CASE("messages that take time: who sends and who receives first takes longer") {
  const OpGraph graph = GraphSketch()
                            .ops({{"a", 5}, {"b", 4}, {"c", 1}, {"d", 1}, {"e", 1}})
                            .tensors({{"a", 4, {"b", "e"}}, {"a", 3, {"d"}}})
                            .build();
  const PlacedGraph placed = in_order(graph, {{"a", "c"}, {"b", "e"}, {"d"}});
  const Cluster cluster =
      whose_messages_take_time(byte_per_ns(3, CommunicationMode::kParallel).spec());
  const Schedule right = simulate(CostModel(graph, cluster), placed).schedule;
  const auto slot = [&](const char* name) { return right.slots[op_named(graph, name)]; };
  CHECK(first_fault(graph, cluster, right) == "");
  CHECK(slot("a").end == Time(5 + 2 + 2));
  CHECK(slot("b").start == Time(9 + 4));
  CHECK(slot("b").end == Time(9 + 4 + 3 + 4));
  CHECK(slot("c").end == Time(9 + 1));
  CHECK(slot("d").end == Time(9 + 3 + 3 + 1));
  CHECK(slot("e").end == Time(20 + 1));

  Schedule wrong = right;
  wrong.slots[op_named(graph, "d")].end = Time(9 + 3 + 1);
  CHECK(first_fault(graph, cluster, wrong) == "operator 'd' on 'gpu:2' takes 4 ns, not 1 ns");
  CHECK(first_fault(graph, byte_per_ns(3, CommunicationMode::kParallel), right) ==
        "operator 'a' on 'gpu:0' takes 5 ns, not 9 ns");
}

struct Counts {
  std::size_t compared = 0, longer = 0;
};

// Against the replay that looks at everything at every nanosecond, the verifier, the critical path
// and the bounds.
void compare(const OpGraph& graph, const Cluster& cluster, const PlacedGraph& placed,
             ExecutionOrder order, Counts& counts) {
  const CostModel costs(graph, cluster);
  const Trace trace = simulate(costs, placed, {.record_memory = true});
  const std::optional<Trace> naive = naive_simulate(costs, placed);
  REQUIRE(naive.has_value());
  REQUIRE(trace == *naive);
  REQUIRE(first_fault(graph, cluster, trace.schedule, order) == "");
  if (placed.order.has_value()) {  // a plan is saved as its schedule, and replayed from that
    const DeviceOrder read = order_of(trace.schedule, graph, cluster.num_devices());
    const PlacedGraph again{placed.device, read, placed.asking};
    REQUIRE(simulate(costs, again).schedule.makespan == trace.schedule.makespan);
  }
  const CriticalPath path = critical_path(graph, cluster, trace.schedule);
  REQUIRE(path.links.back().end == trace.schedule.makespan);
  for (std::size_t i = 1; i < path.links.size(); ++i)
    REQUIRE(path.links[i].start == path.links[i - 1].end);
  if (!find_overflow(trace, cluster).has_value())
    for (const NamedBound& bound : lower_bounds(costs))
      REQUIRE(bound.value <= trace.schedule.makespan);
  ++counts.compared;
  ClusterSpec spec = cluster.spec();
  spec.sends = Sends::kFree;
  spec.message_time.reset();
  const Cluster free(std::move(spec));
  if (simulate(CostModel(graph, free), placed).schedule.makespan < trace.schedule.makespan)
    ++counts.longer;
}

using Change = Cluster (*)(ClusterSpec);

void compare_random(std::uint64_t salt, Change changed, Counts& counts) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    Random random(seed ^ salt);
    const OpGraph graph = random_dag(seed, varied_limits(random));
    ClusterSpec spec = varied_cluster(seed, random).spec();
    if (random.chance(0.2))
      spec.host_time = HostTime{Time(random.between(0, 6)), Time(random.between(0, 6))};
    const Cluster cluster = changed(std::move(spec));
    const std::optional<Placement> placement = random_placement(CostModel(graph, cluster), random);
    if (!placement.has_value()) continue;
    PlacedGraph placed{*placement, std::nullopt};
    if (random.chance(0.6))
      placed.order = random_order(CostModel(graph, cluster), *placement, random);
    const bool none = !placed.order.has_value() && !cluster.host_time().has_value();
    compare(graph, cluster, placed, none ? ExecutionOrder::kNone : ExecutionOrder::kPlanned,
            counts);
  }
}

TEST_CASE("sends that block: random placements replay as the naive way, keep the rules") {
  Counts counts;
  compare_random(0xb10c, whose_sends_block, counts);
  CHECK(counts.compared > 1500);
  CHECK(counts.longer > 400);
}

TEST_CASE("messages that take time: random placements replay as the naive way, keep the rules") {
  Counts counts;
  compare_random(0x5e4d, whose_messages_take_time, counts);
  CHECK(counts.compared > 1500);
  CHECK(counts.longer > 400);
}

// Stages of random times on devices of their own, in the order of 1F1B.
TEST_CASE("sends that block: 300 random pipelines replay as the naive way, to the nanosecond") {
  Counts counts;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random(seed ^ 0x1f1b);
    const auto stages = static_cast<std::size_t>(random.between(2, 5));
    const auto batches = static_cast<std::size_t>(random.between(1, 9));
    const auto name = [](const char* pass, std::size_t stage, std::size_t batch) {
      return pass + std::to_string(stage) + "@" + std::to_string(batch);
    };
    std::vector<std::pair<std::int64_t, std::int64_t>> times, sizes;
    for (std::size_t s = 0; s < stages; ++s) {
      times.emplace_back(random.between(0, 12), random.between(1, 25));
      sizes.emplace_back(random.between(0, 9), random.between(0, 9));
    }
    GraphSketch sketch;
    for (std::size_t m = 0; m < batches; ++m)
      for (std::size_t s = 0; s < stages; ++s)
        sketch.op(name("f", s, m), times[s].first).op(name("b", s, m), times[s].second);
    for (std::size_t m = 0; m < batches; ++m)
      for (std::size_t s = 0; s < stages; ++s) {
        const std::string forward = name("f", s, m), back = name("b", s, m);
        const std::string next = name("f", s + 1, m), before = name("b", s - 1, m);
        sketch.tensor(forward, 1, {back.c_str()});
        if (s + 1 < stages) sketch.tensor(forward, sizes[s].first, {next.c_str()});
        if (s > 0) sketch.tensor(back, sizes[s].second, {before.c_str()});
      }
    const OpGraph graph = sketch.build();
    std::vector<std::vector<std::string>> names(stages);
    for (std::size_t s = 0; s < stages; ++s) {
      const std::size_t ahead = std::min(stages - 1 - s, batches);
      for (std::size_t m = 0; m < ahead; ++m) names[s].push_back(name("f", s, m));
      for (std::size_t m = 0; m < batches; ++m) {
        if (m + ahead < batches) names[s].push_back(name("f", s, m + ahead));
        names[s].push_back(name("b", s, m));
      }
    }
    DeviceLists lists;
    for (const auto& row : names) lists.emplace_back(row.begin(), row.end());
    const PlacedGraph placed = in_order(graph, lists);
    const auto mode = static_cast<CommunicationMode>(random.below(3));
    const Cluster cluster =
        whose_sends_block(byte_per_ns(stages, mode, Time(random.between(0, 3))).spec());
    compare(graph, cluster, placed, ExecutionOrder::kPlanned, counts);
  }
  CHECK(counts.compared == 300);
  CHECK(counts.longer > 150);
}

TEST_CASE("sends that take time: what auto plans replays as the naive way, and beats no bound") {
  std::size_t planned = 0, sent = 0;
  for (std::uint64_t seed = 0; seed < 90; ++seed) {
    CAPTURE(seed);
    Random random(seed ^ 0xb10c2);
    const OpGraph graph = random_dag(seed, varied_limits(random));
    const Change changed = seed % 2 == 0 ? whose_messages_take_time : whose_sends_block;
    const Cluster cluster = changed(varied_cluster(seed, random).spec());
    const CostModel costs(graph, cluster);
    PlanRequest request;
    request.budget = 0.005;
    const PlanResult result = make_plan(costs, request);
    const Plan* plan = std::get_if<Plan>(&result);
    if (plan == nullptr) continue;
    REQUIRE(first_fault(graph, cluster, plan->schedule) == "");
    const std::optional<Trace> naive = naive_simulate(costs, placed_graph_of(*plan, graph));
    REQUIRE(naive.has_value());
    REQUIRE(naive->schedule == plan->schedule);
    for (const NamedBound& bound : plan->bounds) REQUIRE(bound.value <= plan->makespan());
    ++planned;
    sent += plan->schedule.transfers.size();
  }
  CHECK(planned > 30);
  CHECK(sent > 90);
}

}  // namespace
}  // namespace baechi::testing
