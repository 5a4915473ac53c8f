// SPDX-License-Identifier: Apache-2.0
// Ways to choose favorite children (Paper 2.4, 4.4): how short each makes w(F), and m-SCT's step.
#include <array>
#include <cstdio>
#include <string>
#include <variant>

#include "baechi/cluster/cluster.h"
#include "baechi/cost/cost_model.h"
#include "baechi/generate/generate.h"
#include "baechi/io/graph/read_graph.h"
#include "baechi/place/list/favorite_child.h"
#include "baechi/place/placer.h"
#include "baechi/simulate/execution_simulator.h"
#include "bench.h"

namespace baechi::bench {
namespace {

struct Way {
  FavoriteMethod method;
  double threshold = 0.5;
  bool complete = true;
};
constexpr std::array kWays{
    Way{FavoriteMethod::kLpExact, 0.1, false},
    Way{FavoriteMethod::kLpExact, 0.5, false},
    Way{FavoriteMethod::kLpExact, 0.5, true},
    Way{FavoriteMethod::kMatching},
};

struct Links {
  const char* name;
  Time latency;
  Bandwidth bandwidth;
  CommunicationMode mode;
};
const std::array kLinks{
    Links{"134 us, 5.7 GB/s, sequential", microseconds(134), Bandwidth(5'700'000'000),
          CommunicationMode::kSequential},
    Links{"10 us, 25 GB/s, parallel", microseconds(10), Bandwidth(25'000'000'000),
          CommunicationMode::kParallel},
};

std::string step_time(const CostModel& costs, const PlaceResult& result) {
  const auto* placed = std::get_if<PlacedGraph>(&result);
  if (placed == nullptr) return "-";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f",
                static_cast<double>(simulate(costs, *placed).schedule.makespan.count()) / 1e6);
  return text.data();
}

void compare(const OpGraph& graph) {
  for (const Links& links : kLinks) {
    const Cluster cluster(uniform_cluster({.count = 4,
                                           .capacity = gibibytes(64),
                                           .latency = links.latency,
                                           .bandwidth = links.bandwidth,
                                           .communication = links.mode}));
    const CostModel costs(graph, cluster);
    std::array<FavoriteChildren, kWays.size()> favorites;
    std::string steps;
    Time bound;
    for (std::size_t i = 0; i < kWays.size(); ++i) {
      const Way& way = kWays[i];
      const PlaceOptions options{.favorites = way.method,
                                 .lp_threshold = way.threshold,
                                 .complete_matching = way.complete};
      favorites[i] = find_favorite_children(costs, options);
      bound = std::max(bound, favorites[i].bound);
      steps += " " + step_time(costs, place_m_sct(costs, options)) + " |";
    }
    std::printf("| %s | %s |", graph.name().c_str(), links.name);
    for (const FavoriteChildren& found : favorites)
      std::printf(" %.3f |", static_cast<double>(found.longest_path.count()) /
                                 static_cast<double>(bound.count()));
    std::printf("%s %s |\n", steps.c_str(), step_time(costs, place_m_etf(costs, {})).c_str());
    std::fflush(stdout);
  }
}

}  // namespace

// A table for docs/explanation/favorite_children.md.
void bench_favorites() {
  std::printf(
      "| graph | links | w: 0.1 | w: 0.5 | w: completed | w: matching "
      "| step: 0.1 | step: 0.5 | step: completed | step: matching | m-ETF |\n"
      "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const char* name : {"inception-v3", "gnmt", "transformer", "llama", "moe"})
    compare(generate_graph(name));
  compare(generate_graph("layered", {.operators = 2000}));
  for (const std::string& path : graph_files()) compare(read_graph(path));
}

}  // namespace baechi::bench
