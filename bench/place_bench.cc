// SPDX-License-Identifier: Apache-2.0
// What the paper's placers take, from a graph in memory to a placement: time and memory.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <variant>

#include "baechi/cluster/cluster.h"
#include "baechi/cost/cost_model.h"
#include "baechi/place/placer.h"
#include "baechi/simulate/execution_simulator.h"
#include "baechi/verify/check_schedule.h"
#include "bench.h"
#include "layered_graph.h"

namespace baechi::bench {
namespace {

// RTX 2080s behind the paper's switch: 134 us and 5.7 GB/s.
Cluster cluster(std::size_t count, CommunicationMode mode, Bytes capacity) {
  return Cluster(uniform_cluster({.count = count,
                                  .capacity = capacity,
                                  .latency = microseconds(134),
                                  .bandwidth = Bandwidth(5'700'000'000),
                                  .communication = mode}));
}

const PlacedGraph& placed(const PlaceResult& result) {
  const auto* plan = std::get_if<PlacedGraph>(&result);
  if (plan != nullptr) return *plan;
  std::fprintf(stderr, "the benchmark's graph does not fit\n");
  std::exit(1);
}

std::uint64_t checksum(const PlacedGraph& plan) {
  Checksum sum;
  for (const DeviceId device : plan.device) sum.add(device.value());
  for (const auto& ops : *plan.order)
    for (const OpId op : ops) sum.add(op.value());
  return sum.value();
}

std::uint64_t verified(const CostModel& costs, const PlacedGraph& plan) {
  const Trace trace = simulate(costs, plan);
  if (!check_schedule(costs.graph(), costs.cluster(), trace.schedule).empty()) {
    std::fprintf(stderr, "the benchmark's plan breaks a rule\n");
    std::exit(1);
  }
  return Checksum().add(trace.schedule.makespan.count()).value();
}

void memory_of(const std::string& graph_name, const OpGraph& graph, std::size_t devices) {
  const auto units = static_cast<double>(graph.num_ops() + graph.num_edges());
  const Cluster where = cluster(devices, CommunicationMode::kParallel, gibibytes(4096));
  for (const char* method : {"m-topo", "m-etf", "m-sct"}) {
    const Placer place = find_placer(method).place;
    const auto measure = [&](const char* what, const std::function<void()>& body) {
      print_memory(graph_name + " " + method + what, peak_memory(body), units,
                   "bytes per op + edge, beside the graph");
    };
    measure(" placing", [&] { checksum(placed(place(CostModel(graph, where), {}))); });
    measure(" to a verified plan", [&] {
      const CostModel costs(graph, where);
      verified(costs, placed(place(costs, {})));
    });
  }
}

}  // namespace

void bench_place_layered() {
  for (const int ops : {10'000, 100'000, 1'000'000}) {
    const auto num_ops = static_cast<std::size_t>(ops);
    memory_of("layered " + std::to_string(ops) + ":", layered_graph({.num_ops = num_ops}), 8);
  }
}

// What placing costs per operator, from ten thousand to a million.
void bench_growth() {
  constexpr std::array kMethods{"m-topo", "m-etf", "m-sct"};
  constexpr int kRepeats = 3;
  std::printf("| operators |");
  for (const char* method : kMethods) std::printf(" %s |", method);
  std::printf("\n| ---: | ---: | ---: | ---: |\n");
  const Cluster where = cluster(8, CommunicationMode::kParallel, gibibytes(4096));
  for (const unsigned num_ops : {10'000U, 30'000U, 100'000U, 300'000U, 1'000'000U}) {
    const OpGraph graph = layered_graph({.num_ops = num_ops});
    std::printf("| %u |", num_ops);
    for (const char* method : kMethods) {
      const Placer place = find_placer(method).place;
      std::array<double, kRepeats> seconds{};
      for (double& taken : seconds) {
        const double before = cpu_seconds();
        checksum(placed(place(CostModel(graph, where), {})));
        taken = cpu_seconds() - before;
      }
      std::sort(seconds.begin(), seconds.end());
      std::printf(" %.1f ms |", 1e3 * seconds[kRepeats / 2]);
      std::fflush(stdout);
    }
    std::printf("\n");
  }
}

}  // namespace baechi::bench
