// SPDX-License-Identifier: Apache-2.0
// How many moves a second refine evaluates, on a training graph and on small ones, from m-ETF's
// plan. The checksum is the best step time: a faster search of the same moves finds the same.
#include <string>
#include <variant>

#include "baechi/cluster/cluster.h"
#include "baechi/cost/cost_model.h"
#include "baechi/generate/generate.h"
#include "baechi/place/placer.h"
#include "baechi/plan/local_search.h"
#include "bench.h"
#include "layered_graph.h"

namespace baechi::bench {
namespace {

void bench_moves(const std::string& name, const OpGraph& graph, std::int64_t moves) {
  const Cluster cluster(uniform_cluster({.count = 4,
                                         .capacity = gibibytes(8),
                                         .latency = microseconds(50),
                                         .bandwidth = Bandwidth(6'000'000'000)}));
  const CostModel costs(graph, cluster);
  const Units units(costs);
  const PlaceResult start = place_m_etf(costs, {});
  report(
      {.name = "refine: moves on " + name, .work = static_cast<std::size_t>(moves), .repeats = 3},
      [&] {
        LocalSearch search(costs, units, std::get<PlacedGraph>(start), 1);
        search.run(std::int64_t{1} << 60, [&] { return search.evaluations() >= moves; });
        return static_cast<std::uint64_t>(search.best_makespan().count());
      });
}

}  // namespace

void bench_refine() {
  bench_moves("GNMT, length 40", generate_graph("gnmt", {.length = 40}), 300);
  bench_moves("300 layered operators", layered_graph({.num_ops = 300}), 20'000);
  bench_moves("3,000 layered operators", layered_graph({.num_ops = 3'000}), 2'000);
}

}  // namespace baechi::bench
