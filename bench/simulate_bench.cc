// SPDX-License-Identifier: Apache-2.0
// The Execution Simulator: one replay of a large graph from scratch, and the repeated replays of a
// search over small ones.
#include <string>

#include "baechi/base/random.h"
#include "baechi/cluster/cluster.h"
#include "baechi/cost/cost_model.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/simulate/simulator.h"
#include "bench.h"
#include "layered_graph.h"

namespace baechi::bench {
namespace {

Cluster cluster(std::size_t count, CommunicationMode mode) {
  return Cluster(uniform_cluster({.count = count,
                                  .capacity = gibibytes(1024),
                                  .latency = microseconds(10),
                                  .bandwidth = Bandwidth(100'000'000'000),
                                  .communication = mode}));
}

// In blocks of consecutive operators, dealt out in turn: most tensors stay, some travel.
PlacedGraph in_blocks(const OpGraph& graph, std::size_t num_devices, bool with_order) {
  constexpr std::size_t kBlock = 500;
  PlacedGraph placed{Placement(graph.num_ops(), DeviceId(0)), std::nullopt};
  if (with_order) placed.order.emplace(num_devices);
  for (const OpId op : graph.ops()) {
    placed.device[op] = DeviceId(op.index() / kBlock % num_devices);
    if (with_order) (*placed.order)[placed.device[op]].push_back(op);
  }
  return placed;
}

PlacedGraph at_random(const OpGraph& graph, std::size_t num_devices, bool with_order) {
  Random random(7);
  PlacedGraph placed{Placement(graph.num_ops(), DeviceId(0)), std::nullopt};
  if (with_order) placed.order.emplace(num_devices);
  for (const OpId op : graph.ops()) {
    placed.device[op] = DeviceId(random.below(num_devices));
    if (with_order) (*placed.order)[placed.device[op]].push_back(op);
  }
  return placed;
}

std::uint64_t checksum(const Trace& trace) {
  Checksum sum;
  sum.add(trace.schedule.makespan.count());
  sum.add(static_cast<std::int64_t>(trace.schedule.transfers.size()));
  for (const OpSlot& slot : trace.schedule.slots) sum.add(slot.end.count());
  for (const Transfer& transfer : trace.schedule.transfers) sum.add(transfer.end.count());
  for (const DeviceTrace& device : trace.devices) sum.add(device.peak.count());
  return sum.value();
}

std::string shape(const OpGraph& graph, std::size_t num_devices) {
  return std::to_string(graph.num_ops()) + " ops " + std::to_string(graph.num_edges()) + " edges " +
         std::to_string(num_devices) + " devices ";
}

void from_scratch(const OpGraph& graph, std::size_t num_devices, CommunicationMode mode,
                  bool with_order) {
  const Cluster devices = cluster(num_devices, mode);
  const CostModel costs(graph, devices);
  const std::string how =
      std::string(mode == CommunicationMode::kParallel ? "parallel" : "sequential") +
      (with_order ? ", order" : ", no order");
  for (const bool random : {false, true}) {
    const PlacedGraph placed = random ? at_random(graph, num_devices, with_order)
                                      : in_blocks(graph, num_devices, with_order);
    report(
        {.name = "simulate " + shape(graph, num_devices) + (random ? "random " : "blocks ") + how,
         .work = graph.num_ops()},
        [&] { return checksum(simulate(costs, placed)); });
  }
}

void repeatedly(const OpGraph& graph, std::size_t num_devices) {
  const Cluster devices = cluster(num_devices, CommunicationMode::kSequential);
  const CostModel costs(graph, devices);
  const std::size_t runs = 2'000'000 / graph.num_ops();
  for (const bool with_order : {true, false}) {
    const PlacedGraph placed = in_blocks(graph, num_devices, with_order);
    Simulator simulator(costs);
    const std::string name = " x " + std::to_string(runs) + " " + shape(graph, num_devices) +
                             (with_order ? "order" : "");
    report({.name = "makespan" + name, .work = graph.num_ops() * runs}, [&] {
      Checksum sum;
      for (std::size_t i = 0; i < runs; ++i) sum.add(simulator.makespan(placed).count());
      return sum.value();
    });
    report({.name = "run     " + name, .work = graph.num_ops() * runs}, [&] {
      Checksum sum;
      for (std::size_t i = 0; i < runs; ++i) {
        const StepSummary& summary = simulator.run(placed);
        sum.add(summary.makespan.count());
        for (const Bytes peak : summary.peaks) sum.add(peak.count());
      }
      return sum.value();
    });
  }
}

}  // namespace

void bench_simulate() {
  for (const std::size_t num_ops : {10'000u, 100'000u, 1'000'000u})
    from_scratch(layered_graph({.num_ops = num_ops}), 4, CommunicationMode::kSequential, true);
  const OpGraph million = layered_graph({.num_ops = 1'000'000});
  from_scratch(million, 4, CommunicationMode::kSequential, false);
  from_scratch(million, 4, CommunicationMode::kParallel, true);
  from_scratch(million, 64, CommunicationMode::kSequential, true);
  for (const std::size_t num_ops : {300u, 3'000u, 30'000u})
    repeatedly(layered_graph({.num_ops = num_ops}), 4);
}

}  // namespace baechi::bench
