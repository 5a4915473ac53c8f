// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/search/search_on.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "baechi/generate/generate.h"
#include "baechi/plan/attempt/attempt.h"
#include "baechi/plan/attempt/search_log.h"
#include "baechi/plan/fit/any_fit.h"
#include "baechi/plan/portfolio.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/search/spending.h"
#include "unit/graphs.h"
#include "unit/simulate/small_clusters.h"

namespace baechi {
namespace {

struct Searched {
  Attempt best;
  std::vector<SearchPart> parts;
  std::vector<Time> told;
};

constexpr double kBudget = 1.0 / 256;

// With searches of a tenth and of all of the budget, or of a larger one.
Searched search(const CostModel& costs, unsigned threads, const CancelFlag* cancel = nullptr,
                double budgets = 1) {
  constexpr double kFirst = kBudget / 10;
  const Units units(costs);
  const Problem problem{costs, units};
  Searched result{.best = attempt(problem, find_placer("m-etf"), {}), .parts = {}, .told = {}};
  PlanRequest request;
  request.budget = kBudget * budgets;
  request.threads = threads;
  request.place.cancel = cancel;
  request.watch = [&](const SearchNews& news) { result.told.push_back(*news.step); };
  SearchLog log(request);
  const PlanRequest watched = log.watched();
  const LastResort no_fallbacks{.work = 0};
  Spending spending(watched, no_fallbacks);
  result.parts = search_on(problem, watched, spending, result.best,
                           {.place_window = best_placement, .first = kFirst, .of_small = kBudget});
  return result;
}

TEST_CASE(
    "search: small graphs are searched with a longer budget as with a shorter one, and further") {
  int better = 0, tight = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    const OpGraph graph = testing::random_dag(
        seed, {.min_ops = 30, .max_ops = 60, .edge_chance = 0.05, .max_time = 1'000});
    const Bytes capacity(seed % 2 == 0 ? 1'000 : 100);
    const Cluster cluster = testing::equal_devices(4, capacity, Time(100));
    const CostModel costs(graph, cluster);
    Searched last = search(costs, 1, nullptr, 0.1);
    if (!last.best.placed.has_value()) continue;
    tight += seed % 2 == 0 ? 0 : 1;
    for (const double budgets : {0.14, 0.18, 0.45, 0.6}) {
      CAPTURE(budgets);
      Searched longer = search(costs, 1, nullptr, budgets);
      REQUIRE(longer.parts.size() >= last.parts.size());
      for (std::size_t i = 0; i + 1 < last.parts.size(); ++i)
        CHECK(longer.parts[i].ends == last.parts[i].ends);
      CHECK(longer.best.makespan <= last.best.makespan);
      better += longer.best.makespan < last.best.makespan ? 1 : 0;
      last = std::move(longer);
    }
  }
  CHECK(better > 10);
  CHECK(tight > 2);
}

TEST_SUITE("threads") {
  TEST_CASE("search: threads share the searches of all budgets, and the number changes no plan") {
    const OpGraph graph = generate_graph("moe", {.length = 128, .layers = 8});
    const Cluster cluster =
        testing::equal_devices(4, Bytes(64LL << 30), Time(134'000), Bandwidth(5'700'000'000));
    const CostModel costs(graph, cluster);
    const Searched one = search(costs, 1);
    REQUIRE(one.parts.size() == 2);
    for (const unsigned threads : {2U, 5U}) {
      CAPTURE(threads);
      const Searched many = search(costs, threads);
      CHECK(many.best.placed == one.best.placed);
      REQUIRE(many.parts.size() == one.parts.size());
      for (std::size_t i = 0; i < one.parts.size(); ++i) {
        CHECK(many.parts[i].budget.seconds == one.parts[i].budget.seconds);
        CHECK(many.parts[i].best == one.parts[i].best);
        CHECK(many.parts[i].ends == one.parts[i].ends);
      }
      CHECK(std::ranges::is_sorted(many.told, std::ranges::greater()));
      CHECK(many.told.back() == one.told.back());
    }
  }

  TEST_CASE("search: who is stopped at once keeps the plan that there was, on two threads too") {
    const OpGraph graph = generate_graph("unet");
    const Cluster cluster =
        testing::equal_devices(2, Bytes(64LL << 30), Time(134'000), Bandwidth(5'700'000'000));
    const CostModel costs(graph, cluster);
    CancelFlag cancel;
    cancel.request();
    for (const unsigned threads : {1U, 2U}) {
      const Searched stopped = search(costs, threads, &cancel);
      const Searched whole = search(costs, threads);
      CHECK(stopped.best.placed.has_value());
      CHECK(stopped.best.makespan >= whole.best.makespan);
    }
  }
}

}  // namespace
}  // namespace baechi
