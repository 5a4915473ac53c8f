// SPDX-License-Identifier: Apache-2.0
// How fast the Graph Optimizer is on the paper's graphs (Paper 5): each level, and from the graph
// to a verified plan. "optimize". What it is worth: optimizer_table_bench.cc.
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/assert.h"
#include "baechi/cost/device_presets.h"
#include "baechi/generate/gnmt.h"
#include "baechi/generate/inception_v3.h"
#include "baechi/generate/transformer.h"
#include "baechi/optimize/list_schedule.h"
#include "baechi/optimize/optimize.h"
#include "baechi/place/placer.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_schedule.h"
#include "bench.h"

namespace baechi::bench {
namespace {

struct Variant {
  std::string name;
  OptimizeOptions options;
};

std::vector<Variant> variants() {
  OptimizeOptions paper;
  paper.coplacement.rule = CoplacementRule::kNeighbours;
  return {{"colocate", {.level = OptimizeLevel::kColocate}},
          {"coplace", {.level = OptimizeLevel::kCoplace}},
          {"fuse", {.level = OptimizeLevel::kFuse}},
          {"all", {.level = OptimizeLevel::kAll}},
          {"all, coplace by the paper's rule", paper}};
}

// Optimise, m-SCT, expand, list-schedule, simulate, verify: the plan, its step and its peaks.
std::uint64_t plan_in_full(const CostModel& costs) {
  const Optimized optimized = optimize(costs);
  const CostModel small(optimized.graph, costs.cluster());
  const PlaceResult result = find_placer("m-sct").place(small, {});
  const PlacedGraph expanded = expand(optimized.expansion, std::get<PlacedGraph>(result));
  const Trace trace = simulate(costs, list_schedule(costs, expanded.device).placed);
  BAECHI_ASSERT(check_schedule(costs.graph(), costs.cluster(), trace.schedule).empty(),
                "the plan keeps every rule");
  Checksum sum;
  sum.add(trace.schedule.makespan.count());
  for (const DeviceTrace& device : trace.devices) sum.add(device.peak.count());
  return sum.value();
}

void time_graph(const std::string& name, const OpGraph& graph) {
  const Cluster cluster(*preset_cluster("paper"));
  const CostModel costs(graph, cluster);
  const std::size_t work = graph.num_ops() + graph.num_edges();
  for (const Variant& variant : variants())
    report({.name = name + ", " + variant.name, .work = work, .repeats = 9}, [&] {
      const Optimized optimized = optimize(costs, variant.options);
      Checksum sum;
      sum.add(static_cast<std::int64_t>(optimized.graph.num_ops()));
      for (const OpId op : optimized.graph.ops())
        for (const OpId member : optimized.expansion.members(op)) sum.add(member.value());
      return sum.value();
    });
  report({.name = name + ", all, m-sct, expand, verify", .work = work, .repeats = 9},
         [&] { return plan_in_full(costs); });
}

}  // namespace

void bench_optimize() {
  time_graph("inception-v3", generate_inception_v3({}));
  time_graph("gnmt 40", generate_gnmt({.length = 40}));
  time_graph("gnmt 50", generate_gnmt({.length = 50}));
  time_graph("transformer", generate_transformer({}));
}

}  // namespace baechi::bench
