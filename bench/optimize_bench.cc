// SPDX-License-Identifier: Apache-2.0
// The Graph Optimizer's passes on the paper's graphs (Paper 5): time, operators left, and the step
// time that m-ETF gets from each, beside one device's. "optimize".
#include <cstdio>
#include <string>
#include <variant>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/generate/gnmt.h"
#include "baechi/generate/inception_v3.h"
#include "baechi/generate/transformer.h"
#include "baechi/optimize/colocation.h"
#include "baechi/optimize/list_schedule.h"
#include "baechi/optimize/optimize.h"
#include "baechi/place/placer.h"
#include "baechi/simulate/execution_simulator.h"
#include "bench.h"

namespace baechi::bench {
namespace {

// Four of the paper's devices: one transfer at a time each, 134 us and 0.1754 ns per byte.
Cluster paper_cluster() {
  return Cluster(uniform_cluster({.count = 4,
                                  .capacity = gibibytes(64),
                                  .latency = microseconds(134),
                                  .bandwidth = Bandwidth(5'701'254'276)}));
}

double milliseconds_of(Time time) { return static_cast<double>(time.count()) / 1e6; }

struct Variant {
  std::string name;
  OptimizeOptions options;
};

std::vector<Variant> variants() {
  OptimizeOptions paper{.level = OptimizeLevel::kAll};
  paper.coplacement.rule = CoplacementRule::kNeighbours;
  OptimizeOptions degrees{.level = OptimizeLevel::kFuse};
  degrees.fusion.by_reachability = false;
  return {{"none", {.level = OptimizeLevel::kNone}},
          {"colocate", {.level = OptimizeLevel::kColocate}},
          {"coplace", {.level = OptimizeLevel::kCoplace}},
          {"fuse", {.level = OptimizeLevel::kFuse}},
          {"fuse, by degree alone", degrees},
          {"forward", {.level = OptimizeLevel::kForward}},
          {"all", {.level = OptimizeLevel::kAll}},
          {"all, neighbours", paper}};
}

void show(const CostModel& costs, const Variant& variant) {
  double start = cpu_seconds();
  const Optimized optimized = optimize(costs, variant.options);
  const double optimizing = cpu_seconds() - start;
  const CostModel small(optimized.graph, costs.cluster());
  std::printf("  %-22s %6zu ops %5.1f ms", variant.name.c_str(), optimized.graph.num_ops(),
              optimizing * 1e3);
  for (const char* method : {"m-etf", "m-sct"}) {
    start = cpu_seconds();
    const PlaceResult result = find_placer(method).place(small, {});
    const double placing = cpu_seconds() - start;
    const auto* plan = std::get_if<PlacedGraph>(&result);
    if (plan == nullptr) continue;
    const PlacedGraph expanded = expand(optimized.expansion, *plan);
    std::printf("   %s %6.1f ms, step %7.1f, reordered %7.1f", method, placing * 1e3,
                milliseconds_of(simulate(costs, expanded).schedule.makespan),
                milliseconds_of(list_schedule(costs, expanded.device).makespan));
  }
  std::printf("\n");
}

// Colocation while placing against mending a placement that ignored the groups.
void show_post_adjust(const CostModel& costs) {
  const Optimized free = colocate(costs, {ColocationMode::kIgnore});
  const PlaceResult result = find_placer("m-etf").place(CostModel(free.graph, costs.cluster()), {});
  const auto* plan = std::get_if<PlacedGraph>(&result);
  if (plan == nullptr) return;
  const PlacedGraph torn = expand(free.expansion, *plan);
  for (const PostAdjustName& entry : post_adjust_names())
    std::printf("  post-adjust %-16s %s m-etf step %7.1f\n", std::string(entry.name).c_str(),
                "                  ",
                milliseconds_of(
                    simulate(costs, post_adjust(costs, torn, entry.strategy)).schedule.makespan));
}

void show_graph(const OpGraph& graph) {
  const Cluster cluster = paper_cluster();
  const CostModel costs(graph, cluster);
  const Placement one(graph.num_ops(), DeviceId(0));
  std::printf("%s: %zu operators, %zu edges; one device %.1f ms\n", graph.name().c_str(),
              graph.num_ops(), graph.num_edges(),
              milliseconds_of(simulate(costs, {one, std::nullopt}).schedule.makespan));
  for (const Variant& variant : variants()) show(costs, variant);
  show_post_adjust(costs);
  for (const Variant& variant : {variants()[6], variants()[7]})
    report({.name = "  optimize " + variant.name,
            .work = graph.num_ops() + graph.num_edges(),
            .repeats = 5},
           [&] {
             const Optimized optimized = optimize(costs, variant.options);
             Checksum sum;
             sum.add(static_cast<std::int64_t>(optimized.graph.num_ops()));
             for (const OpId op : optimized.graph.ops())
               for (const OpId member : optimized.expansion.members(op)) sum.add(member.value());
             return sum.value();
           });
}

}  // namespace

void bench_optimize() {
  show_graph(generate_inception_v3({}));
  show_graph(generate_gnmt({.length = 40}));
  show_graph(generate_gnmt({.length = 50}));
  show_graph(generate_transformer({}));
}

}  // namespace baechi::bench
