// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/step_advice.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/io/cluster/read_cluster.h"
#include "baechi/io/graph/read_graph.h"
#include "baechi/plan/fit/changed_cluster.h"
#include "baechi/plan/request/budget.h"
#include "baechi/plan/steps/step_plan.h"
#include "baechi/study/cluster_edits.h"
#include "baechi/study/least.h"
#include "property/effort.h"
#include "unit/graph/training_sketches.h"
#include "unit/plan/one_size.h"
#include "unit/plan/training_graph.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

StepRequest asking_for(std::uint32_t micro_batches, Recompute recompute = Recompute::kNone) {
  StepRequest request{.search = {.budget = 0.02}};
  request.micro_batches = {micro_batches};
  request.recompute = recompute;
  return request;
}

PlanResult planned_on(const OpGraph& graph, const Cluster& cluster, const StepRequest& request) {
  return step_plan_of(graph, cluster, request).result;
}

// What is told fits, asked for the same way.
void check_told(const OpGraph& graph, const Cluster& cluster, const StepRequest& request,
                const Unplaceable& answer) {
  REQUIRE(answer.smallest_capacity.has_value());
  const auto more = changed_cluster(cluster, answer.smallest_capacity, cluster.num_devices());
  CHECK(std::holds_alternative<Plan>(planned_on(graph, *more, request)));
  if (!answer.more_devices.has_value()) return;
  const auto others = changed_cluster(cluster, std::nullopt, *answer.more_devices);
  CHECK(std::holds_alternative<Plan>(planned_on(graph, *others, request)));
}

// f0 may run on d1 alone.
constexpr const char* kPinned = R"({"format": "baechi-graph", "version": 1, "operators": [
  {"name": "w0", "time": 0, "memory": {"permanent": 8}, "outputs": [14], "per": "step",
   "colocate": ["gw0"]},
  {"name": "x", "time": 1, "outputs": [28]},
  {"name": "f0", "time": 2, "outputs": [27], "inputs": [["x", 0], ["w0", 0]],
   "memory": {"temporary": 28}, "colocate": ["gw0"], "device": "d1"},
  {"name": "f1", "time": 2, "outputs": [18], "inputs": [["f0", 0]],
   "memory": {"temporary": 14}, "colocate": ["gf1"]},
  {"name": "f2", "time": 3, "outputs": [14], "inputs": [["x", 0]], "colocate": ["gf2"]},
  {"name": "f2.b", "time": 1, "outputs": [30], "inputs": [["f2", 0], ["x", 0]], "forward": "f2",
   "memory": {"temporary": 2}, "colocate": ["gf2"]},
  {"name": "f1.b", "time": 1, "outputs": [0], "inputs": [["f1", 0], ["f0", 0]], "forward": "f1",
   "colocate": ["gf1"]},
  {"name": "f0.bx", "time": 3, "outputs": [30], "inputs": [["f1.b", 0], ["x", 0]],
   "forward": "f0"},
  {"name": "f0.bw", "time": 3, "outputs": [13], "inputs": [["f1.b", 0], ["x", 0]],
   "forward": "f0"},
  {"name": "norm", "time": 1, "inputs": [["f0.bw", 0]], "outputs": [1], "backward": true,
   "per": "step"},
  {"name": "u0", "time": 3, "inputs": [["f0.bw", 0], ["norm", 0]], "backward": true,
   "per": "step"},
  {"name": "metric", "time": 1, "inputs": [["f2", 0]], "per": "step"}]})";
constexpr const char* kTwoDevices = R"({"format": "baechi-cluster", "version": 1,
  "communication": "parallel", "devices": [
    {"name": "d0", "kind": "gpu", "capacity": 158, "speed": 0.5, "host": "a"},
    {"name": "d1", "kind": "gpu", "capacity": 111}],
  "links": [{"scope": "default", "latency": 5, "channels": ["bus"]}]})";

TEST_CASE("micro-batches: the capacity that is told fits with all second runs, too") {
  const OpGraph graph = parse_graph(kPinned, "pinned");
  const Cluster cluster(parse_cluster(kTwoDevices, "two"));
  const StepRequest request = asking_for(3, Recompute::kAll);
  const PlanResult result = planned_on(graph, cluster, request);
  REQUIRE(std::holds_alternative<Unplaceable>(result));
  check_told(graph, cluster, request, std::get<Unplaceable>(result));
}

TEST_CASE("micro-batches: advice takes its share of the budget, however many plans that are") {
  const OpGraph graph = training(40);
  const Cluster cluster = byte_per_ns(2, CommunicationMode::kDuplex, Time(0));
  std::vector<Unrolled> steps;
  steps.push_back(unroll(graph, 4));
  const std::int64_t of_one = 20 * static_cast<std::int64_t>(steps.front().graph.num_ops());
  for (const int plans : {0, 1, 4, 40}) {
    CAPTURE(plans);
    std::int64_t spent = 0;
    int tries = 0;
    const PeakOn fits_if_large = [&](const Cluster& other, Budget budget) -> std::optional<Bytes> {
      spent += budget.replays();
      ++tries;
      const Bytes capacity = other[DeviceId(0)].capacity;
      return other.num_devices() > 3 || capacity.count() > 1'000 ? std::optional(capacity)
                                                                 : std::nullopt;
    };
    const StepAdvice advice =
        advice_on(steps, cluster, fits_if_large,
                  {.budget = Budget::of_replays(static_cast<double>(plans * of_one))});
    CHECK(advice.work <= plans * of_one);
    CHECK(tries <= plans);
    CHECK(tries * of_one + spent <= plans * of_one + tries);
    CHECK(advice.cut_short == (plans < 4));
    CHECK(advice.smallest_capacity.has_value() == (plans >= 4));
  }
}

TEST_CASE("micro-batches: what is told is what min finds, about, in memory and in devices") {
  std::uint64_t told = 0;
  for (std::uint64_t seed = 1; seed <= effort(3, 3); ++seed) {
    CAPTURE(seed);
    const OpGraph graph = seed == 1 ? training(4) : random_training(seed, 5, seed % 2 == 0);
    const auto micro_batches = static_cast<std::uint32_t>(2 + seed % 3);
    StepRequest request = asking_for(micro_batches);
    const ClusterSpec two = byte_per_ns(2, CommunicationMode::kDuplex, Time(0)).spec();
    const auto least = least_memory(graph, two, request);
    REQUIRE(least.has_value());
    const Cluster tight(with_memory(two, Bytes(least->capacity.count() * 8 / 10)));
    const PlanResult result = planned_on(graph, tight, request);
    if (!std::holds_alternative<Unplaceable>(result)) continue;
    const auto& answer = std::get<Unplaceable>(result);
    check_told(graph, tight, request, answer);
    CHECK(answer.smallest_capacity->count() <= least->capacity.count() * 101 / 100 + 1);
    const auto fewest = fewest_devices(graph, tight.spec(), 8, request);
    CHECK(answer.more_devices.has_value() == fewest.has_value());
    if (fewest.has_value() && answer.more_devices.has_value())
      CHECK(*answer.more_devices <= fewest->count);
    ++told;
  }
  CHECK(told >= effort(2, 2));
}

}  // namespace
}  // namespace baechi::testing
