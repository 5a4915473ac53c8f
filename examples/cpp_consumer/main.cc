// SPDX-License-Identifier: Apache-2.0
// A program outside baechi's own build that plans with the installed library.
//
//   a(1) --> b(3) --> c(3) --> d(1)
//     \                         ^
//      +---> e(3) --> f(1) -----+      Paper Figure 1: compute times; transfers take 1
#include <baechi/base/version.h>
#include <baechi/cluster/cluster.h>
#include <baechi/cost/cost_model.h>
#include <baechi/graph/op_graph_builder.h>

#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace {

baechi::OpGraph figure_1() {
  baechi::OpGraphBuilder builder("figure 1");
  std::map<std::string_view, baechi::TensorId> outputs;
  for (const auto& [name, time] : {std::pair<std::string_view, int>{"a", 1},
                                   {"b", 3},
                                   {"c", 3},
                                   {"d", 1},
                                   {"e", 3},
                                   {"f", 1}}) {
    const baechi::OpId op = builder.add_operator({.name = name});
    builder.set_time(op, baechi::kAnyKind, baechi::Time(time));
    outputs.emplace(name, builder.add_output(op, baechi::Bytes(0)));
  }
  for (const auto& [from, to] : {std::pair<std::string_view, std::string_view>{"a", "b"},
                                 {"a", "e"},
                                 {"b", "c"},
                                 {"c", "d"},
                                 {"e", "f"},
                                 {"f", "d"}})
    builder.connect(outputs.at(from), *builder.find(to));
  return std::move(builder).build();
}

}  // namespace

int main() {
  const baechi::OpGraph graph = figure_1();
  const baechi::Cluster cluster(baechi::uniform_cluster(
      {.count = 2, .capacity = baechi::Bytes(4), .latency = baechi::Time(1)}));
  const baechi::CostModel costs(graph, cluster);

  baechi::Time work(0);
  for (const baechi::OpId op : graph.ops())
    work += costs.compute_time(op, baechi::DeviceId(0)).value();
  std::printf("baechi %s: %zu operators, %lld time units of work\n",
              std::string(baechi::version()).c_str(), graph.num_ops(),
              static_cast<long long>(work.count()));
}
