// SPDX-License-Identifier: Apache-2.0
// What an answer about second runs claims is proved, and what it is about.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/io/cluster/read_cluster.h"
#include "baechi/io/graph/read_graph.h"
#include "baechi/plan/steps/step_plan.h"
#include "unit/graph/training_sketches.h"
#include "unit/plan/one_size.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

PlanResult planned_with(const OpGraph& graph, const Cluster& cluster, Recompute recompute,
                        std::uint32_t micro_batches = 1) {
  StepRequest request{.search = {.budget = 0.02}};
  request.recompute = recompute;
  request.search.suggest = false;
  request.search.bounds = false;
  request.micro_batches = {micro_batches};
  return step_plan_of(graph, cluster, request).result;
}

// f1 keeps two outputs and has a second run that needs more at once than keeping them: with all
// second runs 8 bytes are needed, without any 7.
constexpr const char* kKept = R"({"format": "baechi-graph", "version": 1, "operators": [
  {"name": "x", "time": 954, "outputs": [1]},
  {"name": "f0", "time": 810, "outputs": [1], "inputs": [["x", 0]]},
  {"name": "f1", "time": 524, "outputs": [2, 1], "inputs": [["x", 0]],
   "memory": {"temporary": 3}, "colocate": ["gf1"]},
  {"name": "f2", "time": 328, "outputs": [1], "inputs": [["f1", 0]]},
  {"name": "f2.b", "time": 696, "outputs": [2], "inputs": [["f2", 0]], "forward": "f2"},
  {"name": "f1.b", "time": 636, "outputs": [1],
   "inputs": [["f2.b", 0], ["f1", 1], ["x", 0]], "forward": "f1", "colocate": ["gf1"]},
  {"name": "f0.b", "time": 770, "outputs": [0], "inputs": [["f0", 0]], "forward": "f0",
   "memory": {"temporary": 3}}]})";

TEST_CASE("recompute: that all second runs fit nowhere proves nothing where none of them fits") {
  const OpGraph graph = parse_graph(kKept, "kept");
  const Cluster one = byte_per_ns(1, CommunicationMode::kDuplex, Time(0), Bytes(7));
  CHECK(std::holds_alternative<Plan>(planned_with(graph, one, Recompute::kNone)));
  CHECK(std::holds_alternative<Plan>(planned_with(graph, one, Recompute::kAuto)));
  const PlanResult all = planned_with(graph, one, Recompute::kAll);
  REQUIRE(std::holds_alternative<Unplaceable>(all));
  CHECK_FALSE(std::get<Unplaceable>(all).proved);
  CHECK(std::get<Unplaceable>(all).reason.starts_with("with all second runs, "));
}

TEST_CASE("recompute: what is proved to fit nowhere fits with no choice of second runs") {
  int refused = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const OpGraph graph = random_training(seed, 5, seed % 2 == 0);
    const auto micro_batches = static_cast<std::uint32_t>(1 + seed % 3);
    for (const std::int64_t capacity : {20, 45}) {
      CAPTURE(seed);
      CAPTURE(capacity);
      const Cluster cluster =
          byte_per_ns(1 + seed % 2, CommunicationMode::kDuplex, Time(0), Bytes(capacity));
      bool fits = false, proved = false;
      for (const Recompute recompute : {Recompute::kNone, Recompute::kAuto, Recompute::kAll}) {
        const PlanResult result = planned_with(graph, cluster, recompute, micro_batches);
        const auto* answer = std::get_if<Unplaceable>(&result);
        fits = fits || answer == nullptr;
        // Without second runs the proof is about plans without them.
        proved = proved || (recompute != Recompute::kNone && answer != nullptr && answer->proved);
        refused += answer != nullptr;
      }
      CHECK_FALSE((fits && proved));
    }
  }
  CHECK(refused > 5);
}

}  // namespace
}  // namespace baechi::testing
