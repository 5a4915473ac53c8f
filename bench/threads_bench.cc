// SPDX-License-Identifier: Apache-2.0
// How much more of the search is done in the same time by two threads. Times are those that would
// pass if each thread had a processor, so that other programs on the machine do not count.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "baechi/base/parallel.h"
#include "baechi/cluster/cluster.h"
#include "baechi/cost/cost_model.h"
#include "baechi/generate/generate.h"
#include "baechi/place/placer.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/fit/any_fit.h"
#include "baechi/plan/portfolio.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/search/search_on.h"
#include "baechi/plan/search/spending.h"
#include "bench.h"
#include "layered_graph.h"

namespace baechi::bench {
namespace {

struct Searched {
  double seconds;  // until it is done, had each thread a processor
  double all;      // of all threads
  Time step;
};

Searched search(const Problem& problem, Attempt best, double budget, unsigned threads) {
  PlanRequest request;
  request.budget = budget;
  request.threads = threads;
  const LastResort no_fallbacks{.work = 0};
  Spending parts(request, no_fallbacks);
  const double all_before = cpu_seconds();
  const std::chrono::nanoseconds before = time_with_own_processor();
  search_on(problem, request, parts, best, {.place_window = best_placement});
  const std::chrono::duration<double> seconds = time_with_own_processor() - before;
  return {seconds.count(), cpu_seconds() - all_before, best.makespan};
}

void compare(const std::string& name, const OpGraph& graph) {
  constexpr std::size_t kRepeats = 5;
  const Cluster cluster(uniform_cluster({.count = 4,
                                         .capacity = gibibytes(64),
                                         .latency = microseconds(134),
                                         .bandwidth = Bandwidth(5'701'254'276),
                                         .communication = CommunicationMode::kSequential}));
  const CostModel costs(graph, cluster);
  const Units units(costs);
  const Problem problem{costs, units};
  const Attempt start = attempt(problem, find_placer("m-etf"), {});
  for (const double budget : {0.1, 1.0}) {
    std::array<double, kRepeats> alone{}, both{}, faster{}, more{};
    for (std::size_t i = 0; i < kRepeats; ++i) {  // in turn, so that both meet the same neighbours
      const Searched one = search(problem, start, budget, 1),
                     two = search(problem, start, budget, 2);
      if (one.step != two.step) {
        std::fprintf(stderr, "%s: the plan depends on the threads\n", name.c_str());
        std::exit(1);
      }
      alone[i] = one.seconds, both[i] = two.seconds;
      faster[i] = one.seconds / two.seconds, more[i] = two.all / one.all - 1;
    }
    const auto median = [](auto values) {
      std::ranges::sort(values);
      return values[kRepeats / 2];
    };
    std::printf("| %s | %zu | %g s | %.2f s | %.2f s | %.2f | %+.0f%% |\n", name.c_str(),
                graph.num_ops(), budget, median(alone), median(both), median(faster),
                100 * median(more));
    std::fflush(stdout);
  }
}

}  // namespace

void bench_threads() {
  std::printf(
      "| graph | operators | budget | one thread | two threads | times the work per second "
      "| more processor time |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  compare("Inception-V3", generate_graph("inception-v3"));
  compare("U-Net", generate_graph("unet"));
  compare("Transformer", generate_graph("transformer"));
  compare("Mixtral-like", generate_graph("moe"));
  compare("GNMT, length 40", generate_graph("gnmt", {.length = 40}));
  compare("GNMT, length 50", generate_graph("gnmt", {.length = 50}));
  compare("layered", layered_graph({.num_ops = 3'000}));
}

}  // namespace baechi::bench
