// SPDX-License-Identifier: Apache-2.0
#include "baechi/lp/favorite_matching.h"

#include <doctest/doctest.h>

#include "unit/lp/matching_oracle.h"

namespace baechi::lp {
namespace {

using instances::Instance;
using instances::Regime;

// w(F) by the oracle; fails the test unless `favorites` is a maximal matching of paying edges.
std::int64_t checked_longest_path(const Instance& instance, const FavoriteMatching& favorites) {
  const auto matched = oracle::matched_edges(instance, favorites);
  REQUIRE(matched.has_value());
  for (const PathEdge& edge : instance.edges)
    CHECK((edge.cost == 0 || favorites.child[edge.from] || favorites.parent[edge.to]));
  const std::int64_t longest = oracle::longest_path(instance, oracle::pay(instance, *matched));
  CHECK(favorites.longest_path == longest);
  CHECK(longest_path_with(instance.problem(), *matched) == longest);
  return longest;
}

std::vector<Instance> families(std::uint64_t seed) {
  return {instances::gnmt_like(1, 2),
          instances::transformer_like(1, 2),
          instances::layered_random(6, 5, seed),
          instances::chain_with_skips(30, seed),
          instances::random_dag(25, 0.15, seed),
          instances::random_dag(12, 0.6, seed)};
}

TEST_CASE("favorite matching: always a maximal matching whose longest path is what it says") {
  for (std::uint64_t seed = 0; seed < 25; ++seed) {
    for (const Regime regime : instances::kRegimes) {
      for (const Instance& graph : families(seed)) {
        CAPTURE(seed);
        CAPTURE(instances::name(regime));
        const Instance instance = instances::with_times(graph, regime, seed);
        const MatchingPathProblem problem = instance.problem();
        const std::int64_t longest =
            checked_longest_path(instance, find_favorite_matching(problem));
        CHECK(matching_lower_bound(problem) <= longest);
        CHECK(longest <= problem.unmatched_path());
      }
    }
  }
}

TEST_CASE("favorite matching: nearly always optimal on graphs that brute force can solve") {
  int optimal = 0, total = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    for (const Regime regime : instances::kRegimes) {
      CAPTURE(seed);
      CAPTURE(instances::name(regime));
      const Instance instance =
          instances::with_times(instances::random_dag(7, 0.5, seed), regime, seed);
      const std::int64_t best = oracle::best_longest_path(instance);
      const std::int64_t found = find_favorite_matching(instance.problem()).longest_path;
      CHECK(matching_lower_bound(instance.problem()) <= best);
      CHECK(found >= best);
      CHECK(static_cast<double>(found) <= 1.5 * static_cast<double>(best));
      optimal += found == best ? 1 : 0;
      ++total;
    }
  }
  CAPTURE(optimal);
  CHECK(optimal * 100 >= 95 * total);
}

//      1
//    /
//  0 - 2     one of three equal children can be the favorite
//    \.
//      3
Instance fork(std::int64_t length, std::int64_t cost) {
  Instance instance;
  instance.lengths.assign(4, length);
  instance.edges = {{0, 1, cost}, {0, 2, cost}, {0, 3, cost}};
  return instance;
}

TEST_CASE("favorite matching: a fork with ties has exactly one favorite child") {
  const FavoriteMatching favorites = find_favorite_matching(fork(2, 1).problem());
  CHECK(checked_longest_path(fork(2, 1), favorites) == 5);
  CHECK(favorites.child[0].has_value());
}

TEST_CASE("favorite matching: swaps find what greedy misses") {
  // Greedy takes the longer edge 0->2 first and leaves 0->3 and 1->2 to pay; the best matching
  // takes those two.
  Instance instance;
  instance.lengths = {1, 1, 1, 1};
  instance.edges = {{0, 2, 10}, {0, 3, 9}, {1, 2, 9}};
  CHECK(oracle::best_longest_path(instance) == 11);
  const FavoriteMatching favorites = find_favorite_matching(instance.problem());
  CHECK(checked_longest_path(instance, favorites) == 11);
}

TEST_CASE("favorite matching: degenerate graphs") {
  CHECK(find_favorite_matching(MatchingPathProblem({}, {})).longest_path == 0);
  CHECK(
      find_favorite_matching(MatchingPathProblem(std::vector<std::int64_t>{7}, {})).longest_path ==
      7);
  SUBCASE("no time at all") {
    CHECK(checked_longest_path(fork(0, 0), find_favorite_matching(fork(0, 0).problem())) == 0);
  }
  SUBCASE("no communication: nothing to gain, no favorites") {
    const FavoriteMatching favorites = find_favorite_matching(fork(3, 0).problem());
    CHECK(checked_longest_path(fork(3, 0), favorites) == 6);
    CHECK(!favorites.child[0].has_value());
  }
  SUBCASE("communication only") {
    CHECK(checked_longest_path(fork(0, 9), find_favorite_matching(fork(0, 9).problem())) == 9);
  }
  SUBCASE("eleven days per operator") {
    constexpr std::int64_t kDays = 1'000'000'000'000'000;
    const Instance huge = fork(kDays, 400 * kDays);
    CHECK(checked_longest_path(huge, find_favorite_matching(huge.problem())) == 402 * kDays);
  }
}

TEST_CASE("favorite matching: more work never changes what is promised, and cancelling stops it") {
  const Instance instance = instances::with_times(instances::gnmt_like(1, 3), Regime::kMeasured, 1);
  for (const std::int64_t work : {0, 1'000, 10'000'000}) {
    FavoriteMatchingOptions options;
    options.matching_work = options.swap_work = work;
    checked_longest_path(instance, find_favorite_matching(instance.problem(), options));
  }
  CancelFlag cancel;
  cancel.request();
  FavoriteMatchingOptions options;
  options.cancel = &cancel;
  CHECK_THROWS_AS(find_favorite_matching(instance.problem(), options), Cancelled);
}

TEST_CASE("rounding: x = 0.5 ties give a matching, not two favorites or none") {
  const Instance instance = fork(2, 1);
  const MatchingPathProblem problem = instance.problem();
  const std::vector<double> tie = {0.5, 0.5, 1.0};
  const FavoriteMatching strict =
      round_to_matching(problem, tie, {.threshold = 0.5, .complete = false});
  CHECK(!strict.child[0].has_value());
  const FavoriteMatching generous =
      round_to_matching(problem, tie, {.threshold = 0.6, .complete = false});
  CHECK(generous.child[0] == 1U);
  CHECK(generous.parent[2] == std::nullopt);
  const FavoriteMatching complete = round_to_matching(problem, tie);
  CHECK(complete.child[0].has_value());
}

TEST_CASE("rounding: any x gives a matching, and completing it never lengthens a path") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const Instance instance =
        instances::with_times(instances::random_dag(20, 0.3, seed), Regime::kMixed, seed);
    const MatchingPathProblem problem = instance.problem();
    Random random(seed);
    std::vector<double> x;
    for (std::size_t e = 0; e < instance.edges.size(); ++e)
      x.push_back(static_cast<double>(random.below(9)) / 8);
    for (const double threshold : {0.1, 0.5, 0.9}) {
      const FavoriteMatching some =
          round_to_matching(problem, x, {.threshold = threshold, .complete = false});
      const auto matched = oracle::matched_edges(instance, some);
      REQUIRE(matched.has_value());
      for (std::size_t e = 0; e < x.size(); ++e) CHECK((!(*matched)[e] || x[e] < threshold));
      const FavoriteMatching all = round_to_matching(problem, x, {.threshold = threshold});
      CHECK(checked_longest_path(instance, all) <= some.longest_path);
    }
  }
}

}  // namespace
}  // namespace baechi::lp
