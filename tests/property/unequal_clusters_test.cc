// SPDX-License-Identifier: Apache-2.0
// Every method on clusters of unequal devices and links: plans that the verifier accepts, never
// worse than one device alone, on fewer devices when that is faster. Beyond the paper.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "baechi/plan/planner.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_schedule.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

using testing::chain;
using testing::fork_join;
using testing::random_dag;

constexpr CommunicationMode kParallel = CommunicationMode::kParallel;
constexpr CommunicationMode kSequential = CommunicationMode::kSequential;
constexpr CommunicationMode kDuplex = CommunicationMode::kDuplex;

constexpr Bandwidth gigabytes(std::int64_t n) { return Bandwidth(n * 1'000'000'000); }
constexpr Speed percent(std::int64_t n) { return Speed(n * 10'000); }

// The first device is always called "gpu:0", whatever its kind: what operators are pinned to.
Device device(std::string name, std::string kind, std::int64_t megabytes, Speed speed = kFullSpeed,
              std::string host = "a") {
  return {std::move(name), std::move(kind), Bytes(megabytes * 1'000'000), std::move(host), speed};
}
Device gpu(int i, std::int64_t megabytes, Speed speed = kFullSpeed, std::string host = "a") {
  return device("gpu:" + std::to_string(i), "gpu", megabytes, speed, std::move(host));
}
Device cpu(std::int64_t megabytes) { return device("cpu:0", "cpu", megabytes); }

LinkRule link(LinkScope scope, Time latency, std::optional<Bandwidth> bandwidth,
              std::vector<std::string> channels = {}) {
  LinkRule rule;
  rule.scope = scope;
  rule.latency = latency;
  rule.bandwidth = bandwidth;
  rule.channels = std::move(channels);
  return rule;
}
LinkRule between(LinkScope scope, std::string from, std::string to, Time latency,
                 Bandwidth bandwidth, bool both_ways = true) {
  LinkRule rule = link(scope, latency, bandwidth);
  rule.from = std::move(from);
  rule.to = std::move(to);
  rule.both_ways = both_ways;
  return rule;
}

const LinkRule kPcie = link(LinkScope::kDefault, microseconds(10), gigabytes(12));
const LinkRule kEthernet = link(LinkScope::kOtherHost, microseconds(60), Bandwidth(1'250'000'000),
                                {"nic of {from_host}", "nic of {to_host}"});

std::vector<ClusterSpec> unequal_clusters() {
  return {
      {"gpu with cpu offload", {gpu(0, 24), cpu(1000)}, {kPcie}, kSequential},
      {"two hosts of two gpus over ethernet",
       {gpu(0, 100), gpu(1, 100), gpu(2, 100, kFullSpeed, "b"), gpu(3, 100, kFullSpeed, "b")},
       {kPcie, kEthernet},
       kDuplex},
      {"one fast, three slow",
       {gpu(0, 100), gpu(1, 100, percent(25)), gpu(2, 100, percent(25)), gpu(3, 100, percent(25))},
       {kPcie},
       kSequential},
      {"four capacities", {gpu(0, 8), gpu(1, 48), gpu(2, 12), gpu(3, 16)}, {kPcie}, kSequential},
      {"two pairs with fast links",
       {gpu(0, 60), gpu(1, 60), gpu(2, 60), gpu(3, 60)},
       {kPcie, between(LinkScope::kPair, "gpu:0", "gpu:1", microseconds(2), gigabytes(200)),
        between(LinkScope::kPair, "gpu:2", "gpu:3", microseconds(2), gigabytes(200))},
       kDuplex},
      {"slow in one direction",
       {gpu(0, 60), gpu(1, 60), gpu(2, 60, percent(150))},
       {kPcie, between(LinkScope::kPair, "gpu:0", "gpu:2", microseconds(500), gigabytes(1), false)},
       kDuplex},
      {"one bus for all",
       {gpu(0, 60), gpu(1, 60), gpu(2, 60, percent(50)), cpu(500)},
       {link(LinkScope::kDefault, microseconds(5), gigabytes(4), {"bus"})},
       kDuplex},
      {"a device that nothing runs on",
       {gpu(0, 40), device("npu:0", "npu", 1000), gpu(1, 60, percent(70))},
       {kPcie},
       kSequential},
      {"two unequal sockets, no gpu",
       {device("gpu:0", "cpu", 200), device("cpu:1", "cpu", 400, percent(40))},
       {link(LinkScope::kDefault, microseconds(1), gigabytes(20))},
       kSequential},
      {"links that never pay",
       {gpu(0, 200), gpu(1, 200, percent(120)), gpu(2, 200)},
       {link(LinkScope::kDefault, microseconds(100'000), Bandwidth(1'000'000))},
       kSequential},
      {"links that cost nothing",
       {gpu(0, 60), gpu(1, 60, percent(50)), gpu(2, 60, percent(200))},
       {link(LinkScope::kDefault, Time(0), std::nullopt)},
       kParallel},
      {"the fast one is far away",
       {gpu(0, 60), gpu(1, 60), gpu(2, 60, percent(400), "b")},
       {kPcie, kEthernet},
       kSequential},
      {"kinds with links of their own",
       {gpu(0, 30), gpu(1, 30), cpu(300)},
       {kPcie, between(LinkScope::kKinds, "gpu", "gpu", microseconds(3), gigabytes(50)),
        between(LinkScope::kKinds, "gpu", "cpu", microseconds(40), gigabytes(3))},
       kParallel},
      {"just enough memory together", {gpu(0, 14), gpu(1, 18), gpu(2, 22)}, {kPcie}, kSequential},
  };
}

// Operators of up to 100 us, tensors of up to 1 MB, weights of up to 4 MB.
OpGraph layers_worth(std::uint64_t seed) {
  return random_dag(seed,
                    {.min_ops = 6,
                     .max_ops = 18,
                     .edge_chance = 0.2,
                     .group_chance = 0.15,
                     .backward_chance = 0.3,
                     .pin_chance = seed % 2 == 0 ? 0.05 : 0.0,
                     .cpu_chance = seed % 3 == 0 ? 1.0 : 0.7,
                     .max_time = 100'000,
                     .max_tensor_bytes = 1'000'000,
                     .max_permanent_bytes = 4'000'000,
                     .max_temporary_bytes = 500'000,
                     .memory_mode = seed % 4 == 3 ? MemoryMode::kRetain : MemoryMode::kDataflow});
}

std::optional<Plan> plan_by(const CostModel& costs, std::string method) {
  PlanRequest request;
  request.method = std::move(method);
  request.budget = 0.002;
  request.suggest = false;
  PlanResult result = make_plan(costs, request);
  if (auto* plan = std::get_if<Plan>(&result)) return std::move(*plan);
  return std::nullopt;
}

// Everything on the best device that can hold it, in topological order.
std::optional<Time> best_single_device(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  std::optional<Time> best;
  for (const DeviceId device : costs.cluster().devices()) {
    const auto runs = [&](OpId op) { return costs.may_run(op, device); };
    if (!std::all_of(graph.ops().begin(), graph.ops().end(), runs)) continue;
    PlacedGraph placed{Placement(graph.num_ops(), device),
                       DeviceOrder(costs.cluster().num_devices())};
    const auto order = graph.topological_order();
    (*placed.order)[device].assign(order.begin(), order.end());
    const Trace trace = simulate(costs, placed);
    if (find_overflow(trace, costs.cluster()).has_value()) continue;
    best = std::min(best.value_or(trace.schedule.makespan), trace.schedule.makespan);
  }
  return best;
}

std::vector<DeviceId> used(const Plan& plan) {
  std::vector<DeviceId> devices;
  for (const OpSlot& slot : plan.schedule.slots) devices.push_back(slot.device);
  std::sort(devices.begin(), devices.end());
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  return devices;
}

TEST_CASE("unequal clusters: every method's plans verify, and auto's are the best") {
  int several_in_all = 0;
  for (const ClusterSpec& spec : unequal_clusters()) {
    CAPTURE(spec.name);
    const Cluster cluster(spec);
    int plans = 0;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      CAPTURE(seed);
      const OpGraph graph = layers_worth(seed);
      const CostModel costs(graph, cluster);
      const std::optional<Plan> best = plan_by(costs, "auto");
      const std::optional<Time> alone = best_single_device(costs);
      if (alone.has_value()) {
        REQUIRE(best.has_value());
        CHECK(best->makespan() <= *alone);
      }
      for (const PlacerEntry& placer : all_placers()) {
        if (placer.name == "expert") continue;
        CAPTURE(placer.name);
        const std::optional<Plan> plan = plan_by(costs, std::string(placer.name));
        if (!plan.has_value()) continue;
        CHECK(check_schedule(graph, cluster, plan->schedule) == std::vector<std::string>{});
        REQUIRE(best.has_value());
        // auto does not try a random placement, and gives the exact search a part of its budget.
        const bool tried = placer.name != "random" && placer.name != "exact";
        if (tried) CHECK(best->makespan() <= plan->makespan());
      }
      if (!best.has_value()) continue;
      CHECK(check_schedule(graph, cluster, best->schedule) == std::vector<std::string>{});
      REQUIRE_FALSE(best->bounds.empty());
      CHECK(best->bounds.front().value <= best->makespan());
      ++plans;
      several_in_all += used(*best).size() > 1;
    }
    CHECK(plans > 0);
  }
  CHECK(several_in_all > 20);
}

TEST_CASE("unequal clusters: a chain stays on the fastest device that holds it") {
  const OpGraph graph =
      chain(std::vector<Time>(12, microseconds(50)), Bytes(100'000), Bytes(1'000));
  for (const ClusterSpec& spec : unequal_clusters()) {
    CAPTURE(spec.name);
    const Cluster cluster(spec);
    const CostModel costs(graph, cluster);
    const std::optional<Plan> plan = plan_by(costs, "auto");
    const std::optional<Time> alone = best_single_device(costs);
    CHECK(plan.has_value() == alone.has_value());
    if (!plan.has_value()) continue;
    CHECK(plan->makespan() == *alone);
    CHECK(used(*plan).size() == 1);
  }
}

// 24 branches of 200 us between a source and a sink: work that can be spread.
TEST_CASE("unequal clusters: branches use the devices that pay, and no others") {
  const auto devices_for = [&](const std::string& name, Bytes bytes) {
    for (const ClusterSpec& spec : unequal_clusters()) {
      if (spec.name != name) continue;
      const Cluster cluster(spec);
      const OpGraph graph = fork_join(24, microseconds(200), bytes);
      const CostModel costs(graph, cluster);
      return used(*plan_by(costs, "auto"));
    }
    return std::vector<DeviceId>{};
  };
  const DeviceId first(0), second(1), third(2), fourth(3);
  CHECK(devices_for("links that never pay", Bytes(1000)) == std::vector{second});
  CHECK(devices_for("links that cost nothing", Bytes(1000)) == std::vector{first, second, third});
  CHECK(devices_for("a device that nothing runs on", Bytes(1000)) == std::vector{first, third});
  CHECK(devices_for("two hosts of two gpus over ethernet", Bytes(1000)) ==
        std::vector{first, second, third, fourth});
  // 4 MB take 3.2 ms over Ethernet and a third of a millisecond within a host.
  CHECK(devices_for("two hosts of two gpus over ethernet", Bytes(4'000'000)).size() == 2);
}

}  // namespace
}  // namespace baechi
