// SPDX-License-Identifier: Apache-2.0
// Chains beside a host behind a slow link, against the shortest steps that a solver found.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/plan/steps/step_plan.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {
namespace {

// Layers and their gradients, each read by the next, by those of its own layer and, some of them,
// by later ones.
OpGraph slow_chain(Random& random) {
  OpGraphBuilder builder("chain");
  const std::size_t layers = 5 + random.below(3);
  std::vector<OpId> ops;
  const auto add = [&](std::string name, std::int64_t least, std::int64_t bytes, bool backward) {
    const OpId op = timed(builder, {.name = std::move(name), .backward = backward},
                          Time(random.between(least, 4 * least)));
    builder.add_output(op, Bytes(random.between(bytes, 8 * bytes)));
    if (!ops.empty()) builder.connect(*builder.output(ops.back(), 0), op);
    ops.push_back(op);
    return op;
  };
  for (std::size_t i = 0; i < layers; ++i) {
    const OpId op = add("f" + std::to_string(i), 20, 10, false);
    if (i > 2 && random.chance(0.3))
      builder.connect(*builder.output(ops[random.below(i - 1)], 0), op);
  }
  for (std::size_t i = layers; i-- > 0;) {
    const OpId op = add("b" + std::to_string(i), 30, 5, true);
    builder.set_forward(op, ops[i]);
    if (i + 1 < layers && random.chance(0.5)) builder.connect(*builder.output(ops[i], 0), op);
    if (i > 0) builder.connect(*builder.output(ops[i - 1], 0), op);
  }
  return std::move(builder).build();
}

// What the operator with the most needs while it runs, and what all hold at most with nothing away.
std::pair<Bytes, Bytes> least_and_most(const OpGraph& graph) {
  Bytes least, most;
  for (const OpId now : graph.ops()) {
    Bytes needed = graph.output_bytes(now), held;
    for (const Edge& edge : graph.in_edges(now)) needed += graph.size(*edge.tensor);
    for (const TensorId tensor : graph.tensors()) {
      OpId last = graph.producer(tensor);
      if (last > now) continue;
      for (const Edge& edge : graph.consumers(tensor)) last = std::max(last, edge.to);
      if (last >= now) held += graph.size(tensor);
    }
    least = std::max(least, needed);
    most = std::max(most, held);
  }
  return {least, most};
}

Cluster behind_slow_link(Bytes capacity, double bytes_per_ns) {
  ClusterSpec spec = gpu_and_host(capacity, Bytes(100'000)).spec();
  for (LinkRule& rule : spec.links)
    rule.bandwidth = Bandwidth(static_cast<std::int64_t>(bytes_per_ns * 1e9));
  return Cluster(spec);
}

// By CP-SAT: operators in their only order, each tensor away or not between any two readers, puts and
// fetches as the semantics have them.
constexpr std::array<std::int64_t, 12> kShortest{971,  2395, 771,  1313, 2566, 1532,
                                                 1507, 1675, 1058, 912,  1504, 693};

TEST_CASE(
    "residency: what fits with all away gets a plan, near the shortest, however slow the link") {
  double sum = 0, worst = 0;
  for (std::size_t seed = 0; seed < kShortest.size(); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    OpGraph graph = slow_chain(random);
    const auto [least, most] = least_and_most(graph);
    const double part = std::array{0.15, 0.3, 0.5}[random.below(3)];
    const Bytes capacity =
        least +
        Bytes(static_cast<std::int64_t>(part * static_cast<double>((most - least).count())));
    const Cluster cluster = behind_slow_link(capacity, std::array{0.5, 0.25}[random.below(2)]);
    StepRequest request{.search = {.budget = 1.0}};
    request.residency = AwayChoice::kAuto;
    request.recompute = Recompute::kNone;
    std::vector<OpGraph> sizes;
    sizes.push_back(std::move(graph));
    const PlanResult made = make_step_plan(std::move(sizes), cluster, request).result;
    const Plan* plan = std::get_if<Plan>(&made);
    REQUIRE(plan != nullptr);
    const double ratio =
        static_cast<double>(plan->makespan().count()) / static_cast<double>(kShortest[seed]);
    CHECK(ratio >= 1);
    sum += ratio;
    worst = std::max(worst, ratio);
  }
  MESSAGE("mean " << sum / static_cast<double>(kShortest.size()) << ", worst " << worst);
  CHECK(sum / static_cast<double>(kShortest.size()) < 1.06);
  CHECK(worst < 1.2);
}

}  // namespace
}  // namespace baechi::testing
