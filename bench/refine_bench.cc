// SPDX-License-Identifier: Apache-2.0
// How many moves a second refine evaluates, on a training graph and on small ones, from m-ETF's
// plan, with ample memory and with hardly more than that plan needs, which turns moves down. The
// checksum is the best step time: a faster search of the same moves finds the same.
#include <algorithm>
#include <string>
#include <variant>

#include "baechi/cluster/cluster.h"
#include "baechi/cost/cost_model.h"
#include "baechi/generate/generate.h"
#include "baechi/place/placer.h"
#include "baechi/plan/search/local_search.h"
#include "baechi/simulate/execution_simulator.h"
#include "bench.h"
#include "layered_graph.h"

namespace baechi::bench {
namespace {

void time_moves(const std::string& name, const CostModel& costs, const PlacedGraph& start,
                std::int64_t moves) {
  const Units units(costs);
  report(
      {.name = "refine: moves on " + name, .work = static_cast<std::size_t>(moves), .repeats = 3},
      [&] {
        LocalSearch search(costs, units, start, {});
        search.run(std::int64_t{1} << 60, [&] { return search.evaluations() >= moves; });
        return static_cast<std::uint64_t>(search.best_makespan().count());
      });
}

void bench_moves(const std::string& name, const OpGraph& graph, std::int64_t moves) {
  UniformCluster devices{.count = 4,
                         .capacity = gibibytes(8),
                         .latency = microseconds(50),
                         .bandwidth = Bandwidth(6'000'000'000)};
  const Cluster ample(uniform_cluster(devices));
  const CostModel costs(graph, ample);
  const auto start = std::get<PlacedGraph>(place_m_etf(costs, {}));
  time_moves(name, costs, start, moves);

  devices.capacity = Bytes(0);
  for (const DeviceTrace& device : simulate(costs, start).devices)
    devices.capacity = std::max(devices.capacity, device.peak);
  const Cluster tight(uniform_cluster(devices));
  time_moves(name + ", tight memory", CostModel(graph, tight), start, moves);
}

}  // namespace

void bench_refine() {
  bench_moves("GNMT, length 40", generate_graph("gnmt", {.length = 40}), 300);
  bench_moves("300 layered operators", layered_graph({.num_ops = 300}), 20'000);
  bench_moves("3,000 layered operators", layered_graph({.num_ops = 3'000}), 2'000);
}

}  // namespace baechi::bench
