// SPDX-License-Identifier: Apache-2.0
// What a proof of optimality costs, by the size of the graph.
#include <algorithm>
#include <cstdio>
#include <string>
#include <variant>
#include <vector>

#include "baechi/place/exact/exact.h"
#include "baechi/place/placer.h"
#include "bench.h"
#include "small_instance.h"

namespace baechi::bench {
namespace {

struct Size {
  std::size_t num_ops, num_devices;
};

void prove(const InstanceKind& kind, Size size) {
  constexpr std::uint64_t kInstances = 12;
  std::vector<double> seconds;
  std::vector<std::int64_t> work;
  std::size_t proved = 0;
  for (std::uint64_t seed = 0; seed < kInstances; ++seed) {
    const auto [graph, cluster] = small_instance(kind, size.num_ops, size.num_devices, seed);
    const CostModel costs(graph, cluster);
    const PlaceResult start = place_m_etf(costs, {});
    const double before = cpu_seconds();
    const ExactResult found = solve_exactly(costs, {.start = std::get_if<PlacedGraph>(&start)});
    seconds.push_back(cpu_seconds() - before);
    work.push_back(found.work);
    proved += found.complete ? 1 : 0;
  }
  std::ranges::sort(seconds);
  std::ranges::sort(work);
  std::printf("| %2zu on %zu | %-24s | %2zu of %zu | %9.3f | %9.3f | %9.2f |\n", size.num_ops,
              size.num_devices, std::string(kind.name).c_str(), proved, seconds.size(),
              seconds[seconds.size() / 2], seconds.back(), static_cast<double>(work.back()) / 1e6);
  std::fflush(stdout);
}

}  // namespace

void bench_exact() {
  std::printf(
      "| operators, devices | kind | proved | median s | longest s | most work, millions |\n"
      "| --- | --- | --- | ---: | ---: | ---: |\n");
  for (const Size size : {Size{12, 3}, Size{16, 3}, Size{16, 4}, Size{20, 3}})
    for (const InstanceKind& kind : instance_kinds()) prove(kind, size);
}

}  // namespace baechi::bench
