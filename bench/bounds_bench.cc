// SPDX-License-Identifier: Apache-2.0
// What it costs to judge a plan: the lower bounds, and the verifier beside the simulation that it
// checks.
#include <string>
#include <vector>

#include "baechi/base/random.h"
#include "baechi/bounds/graph_facts.h"
#include "baechi/bounds/lower_bounds.h"
#include "baechi/cluster/cluster.h"
#include "baechi/cost/cost_model.h"
#include "baechi/generate/generate.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_schedule.h"
#include "bench.h"
#include "layered_graph.h"

namespace baechi::bench {
namespace {

ClusterSpec four_devices() {
  return uniform_cluster({.count = 4,
                          .capacity = gibibytes(8),
                          .latency = microseconds(134),
                          .bandwidth = Bandwidth(5'700'000'000)});
}

ClusterSpec unequal_devices() {
  ClusterSpec spec = four_devices();
  spec.devices[1].speed = Speed(600'000);
  spec.devices[2].speed = Speed(300'000);
  spec.devices[3].capacity = gibibytes(2);
  return spec;
}

std::string shape(const OpGraph& graph) {
  return graph.name() + ", " + std::to_string(graph.num_ops()) + " ops: ";
}

void bounds_of(const OpGraph& graph) {
  for (const bool equal : {true, false}) {
    const Cluster cluster(equal ? four_devices() : unequal_devices());
    const CostModel costs(graph, cluster);
    report({.name = "bounds " + shape(graph) + (equal ? "4 equal devices" : "4 unequal devices"),
            .work = graph.num_ops()},
           [&] {
             Checksum sum;
             for (const NamedBound& bound : lower_bounds(costs)) sum.add(bound.value.count());
             return sum.value();
           });
  }
  report({.name = "facts " + shape(graph), .work = graph.num_ops()},
         [&] { return Checksum().add(graph_facts(graph).critical_path.count()).value(); });
}

void verify_beside_simulate(const OpGraph& graph) {
  const Cluster cluster(four_devices());
  const CostModel costs(graph, cluster);
  for (const bool random : {false, true}) {
    Random draw(7);
    PlacedGraph placed{Placement(graph.num_ops(), DeviceId(0)), DeviceOrder(4)};
    for (std::size_t i = 0; i < graph.num_ops(); ++i) {
      const OpId op = graph.topological_order()[i];
      placed.device[op] = DeviceId(random ? draw.below(4) : i / 500 % 4);
      (*placed.order)[placed.device[op]].push_back(op);
    }
    const std::string how = shape(graph) + (random ? "random devices" : "blocks of 500");
    report({.name = "simulate " + how, .work = graph.num_ops()}, [&] {
      return Checksum().add(simulate(costs, placed).schedule.makespan.count()).value();
    });
    const Schedule schedule = simulate(costs, placed).schedule;
    report({.name = "verify   " + how, .work = graph.num_ops()}, [&] {
      const auto found = check_schedule(graph, cluster, schedule, {.capacities = true});
      return Checksum().add(static_cast<std::int64_t>(found.size())).value();
    });
  }
}

}  // namespace

void bench_bounds() {
  for (const char* name : {"inception-v3", "transformer", "gnmt"}) bounds_of(generate_graph(name));
  bounds_of(generate_graph("gnmt", {.length = 50}));
  for (const std::size_t num_ops : {22'000u, 1'000'000u})
    bounds_of(layered_graph({.num_ops = num_ops}));
}

void bench_verify() {
  verify_beside_simulate(generate_graph("gnmt", {.length = 50}));
  for (const std::size_t num_ops : {22'000u, 1'000'000u})
    verify_beside_simulate(layered_graph({.num_ops = num_ops}));
}

}  // namespace baechi::bench
