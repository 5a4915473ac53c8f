// SPDX-License-Identifier: Apache-2.0
// The paper's placers, from a graph in memory to a placement and on to a verified schedule, beside
// the cheapest thing one can do with such a graph: one longest-path sweep over the same edges.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <variant>

#include "baechi/cluster/cluster.h"
#include "baechi/cost/cost_model.h"
#include "baechi/generate/generate.h"
#include "baechi/place/list/favorite_child.h"
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

// The longest path, without communication or with every tensor crossing a link.
template <class EdgeTime>
Time longest_path(const OpGraph& graph, IdVector<OpId, Time>& finish, const EdgeTime& edge_time) {
  const IdVector<OpId, std::optional<Time>>& times = graph.times(KindId(0));
  Time longest;
  for (const OpId op : graph.topological_order()) {
    Time start;
    for (const Edge& edge : graph.in_edges(op))
      start = std::max(start, finish[edge.from] + edge_time(edge));
    longest = std::max(longest, finish[op] = start + *times[op]);
  }
  return longest;
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

std::string_view name_of(CommunicationMode mode) {
  return mode == CommunicationMode::kParallel ? "parallel" : "sequential";
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

void place_all(const std::string& graph_name, const OpGraph& graph, std::size_t devices) {
  const int repeats = graph.num_ops() > 500'000 ? 3 : 11;
  const auto measure = [&](const std::string& what, const auto& body) {
    report({graph_name + " " + what, graph.num_ops(), repeats}, body);
  };
  IdVector<OpId, Time> finish(graph.num_ops());
  measure("longest-path sweep", [&] {
    return Checksum()
        .add(longest_path(graph, finish, [](const Edge&) { return Time(0); }).count())
        .value();
  });
  const Cluster pair = cluster(2, CommunicationMode::kParallel, gibibytes(1));
  const Link& link = pair.link(DeviceId(0), DeviceId(1));
  measure("longest-path sweep with transfer times", [&] {
    const Time path = longest_path(graph, finish, [&](const Edge& edge) {
      return edge.tensor ? link.transfer_time(graph.size(*edge.tensor)) : Time(0);
    });
    return Checksum().add(path.count()).value();
  });
  for (const auto mode : {CommunicationMode::kParallel, CommunicationMode::kSequential}) {
    const Cluster where = cluster(devices, mode, gibibytes(4096));
    const std::string on = std::string(name_of(mode)) + ", " + std::to_string(devices) + " devices";
    for (const char* method : {"m-topo", "m-etf", "m-sct"}) {
      const Placer place = find_placer(method).place;
      measure(std::string(method) + " placing, " + on,
              [&] { return checksum(placed(place(CostModel(graph, where), {}))); });
      measure(std::string(method) + " to a verified plan, " + on, [&] {
        const CostModel costs(graph, where);
        return verified(costs, placed(place(costs, {})));
      });
    }
    measure("favorite children, " + on, [&] {
      const CostModel costs(graph, where);
      return Checksum().add(find_favorite_children(costs, {}).longest_path.count()).value();
    });
  }
}

}  // namespace

void bench_place() {
  place_all("gnmt 50:", generate_graph("gnmt", {.length = 50}), 4);
  place_all("inception:", generate_graph("inception-v3"), 4);
}

void bench_place_layered() {
  for (const int ops : {10'000, 100'000, 1'000'000}) {
    const auto num_ops = static_cast<std::size_t>(ops);
    const OpGraph graph = layered_graph({.num_ops = num_ops});
    memory_of("layered " + std::to_string(ops) + ":", graph, 8);
    place_all("layered " + std::to_string(ops) + ":", graph, 8);
  }
}

// The list schedulers on a model of 22,756 operators, on few and on many equal devices.
void bench_equal_devices() {
  const OpGraph graph = generate_graph("gnmt", {.length = 50});
  for (const auto mode : {CommunicationMode::kParallel, CommunicationMode::kSequential})
    for (const std::size_t devices : {4U, 64U, 1'024U}) {
      const Cluster where = cluster(devices, mode, gibibytes(4096));
      for (const char* method : {"m-etf", "m-sct"}) {
        const Placer place = find_placer(method).place;
        report({"gnmt 50: " + std::string(method) + ", " + std::string(name_of(mode)) + ", " +
                    std::to_string(devices) + " devices",
                graph.num_ops(), 11},
               [&] {
                 const CostModel costs(graph, where);
                 return checksum(placed(place(costs, {})));
               });
      }
    }
}

// A table for docs/lab/benchmarks.md: what placing costs per operator, from ten thousand to a
// million.
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
