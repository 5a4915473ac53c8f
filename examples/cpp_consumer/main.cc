// SPDX-License-Identifier: Apache-2.0
// A program outside baechi's own build that plans with the installed library.
//
//   a(1,1) --> b(3,2) --> c(3,2) --> d(1,1)      Paper Figure 1: compute time, permanent memory;
//     \                               ^          a transfer takes one time unit, and a device
//      +-----> e(3,1) --> f(1,1) -----+          holds four memory units
#include <baechi/base/version.h>
#include <baechi/cluster/cluster.h>
#include <baechi/cost/cost_model.h>
#include <baechi/graph/op_graph_builder.h>
#include <baechi/plan/planner.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace {

baechi::OpGraph figure_1() {
  baechi::OpGraphBuilder builder("figure 1");
  struct Row {
    std::string_view name;
    int time, memory;
  };
  for (const Row& row :
       {Row{"a", 1, 1}, {"b", 3, 2}, {"c", 3, 2}, {"d", 1, 1}, {"e", 3, 1}, {"f", 1, 1}}) {
    const baechi::OpId op =
        builder.add_operator({.name = row.name, .permanent = baechi::Bytes(row.memory)});
    builder.set_time(op, baechi::kAnyKind, baechi::Time(row.time));
    builder.add_output(op, baechi::Bytes(0));
  }
  for (const std::string_view edge : {"ab", "ae", "bc", "cd", "ef", "fd"}) {
    const baechi::OpId from = *builder.find(edge.substr(0, 1));
    builder.connect(*builder.output(from, 0), *builder.find(edge.substr(1)));
  }
  return std::move(builder).build();
}

}  // namespace

int main() {
  const baechi::OpGraph graph = figure_1();
  const baechi::Cluster cluster(
      baechi::uniform_cluster({.count = 2,
                               .capacity = baechi::Bytes(4),
                               .latency = baechi::Time(1),
                               .communication = baechi::CommunicationMode::kParallel}));
  const baechi::CostModel costs(graph, cluster);

  baechi::PlanRequest request;
  request.method = "m-sct";
  const baechi::PlanResult result = baechi::make_plan(costs, request);
  if (const auto* failure = std::get_if<baechi::Unplaceable>(&result)) {
    std::printf("does not fit: %s\n", failure->in_words().c_str());
    return 1;
  }
  const auto& plan = std::get<baechi::Plan>(result);
  std::printf("baechi %s: a step takes %lld time units\n", std::string(baechi::version()).c_str(),
              static_cast<long long>(plan.makespan().count()));
  for (const baechi::OpId op : graph.ops()) {
    const baechi::OpSlot& slot = plan.schedule.slots[op];
    std::printf("  %s on %s from %lld to %lld\n", std::string(graph[op].name).c_str(),
                cluster[slot.device].name.c_str(), static_cast<long long>(slot.start.count()),
                static_cast<long long>(slot.end.count()));
  }
  return plan.makespan() == baechi::Time(9) ? 0 : 1;  // what the paper says
}
