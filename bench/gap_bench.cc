// SPDX-License-Identifier: Apache-2.0
// How far every method is from the optimum, which `exact` proves: the tables of
// docs/lab/results/gap.md.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "baechi/bounds/lower_bounds.h"
#include "baechi/place/exact/exact.h"
#include "baechi/plan/planner.h"
#include "bench.h"
#include "small_instance.h"

namespace baechi::bench {
namespace {

constexpr std::uint64_t kPerKind = 200;
constexpr double kRefineBudget = 0.02;

struct Gaps {
  std::string method;
  std::vector<double> gaps;  // value / optimum - 1
  std::size_t missed = 0;    // no plan, though there is one

  void print(const std::string& first_column) {
    std::ranges::sort(gaps);
    double sum = 0;
    std::size_t optimal = 0;
    for (const double gap : gaps) {
      sum += gap;
      if (gap <= 0) ++optimal;
    }
    const auto percent = [](double share) { return 100 * share; };
    const auto count = static_cast<double>(gaps.size());
    std::printf("| %s | %.1f%% | %.1f%% | %.1f%% | %.1f%% | %zu |\n", first_column.c_str(),
                percent(static_cast<double>(optimal) / count), percent(sum / count),
                percent(gaps[gaps.size() * 9 / 10]), percent(gaps.back()), missed);
  }
};

PlanRequest request_for(const std::string& method) {
  PlanRequest request;
  request.method = method;
  request.bounds = request.suggest = false;
  request.budget = kRefineBudget;
  return request;
}

std::optional<Time> reached(const CostModel& costs, const std::string& method) {
  const PlanResult result = make_plan(costs, request_for(method));
  if (const auto* plan = std::get_if<Plan>(&result)) return plan->makespan();
  return std::nullopt;
}

struct Proof {
  Time optimum;
  std::vector<NamedBound> bounds;
};

// Nothing when nothing fits.
std::optional<Proof> prove(const CostModel& costs) {
  const ExactResult found = solve_exactly(costs, {.work = 2'000'000'000});
  if (!found.complete) {
    std::fprintf(stderr, "an instance is too hard for exact\n");
    std::exit(1);
  }
  if (!found.placed.has_value()) return std::nullopt;
  return Proof{found.makespan, lower_bounds(costs)};
}

double gap(Time value, Time optimum) {
  return static_cast<double>(value.count()) / static_cast<double>(optimum.count()) - 1;
}

constexpr const char* kColumns =
    "optimal | mean gap | 9 of 10 within | largest gap | found none |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: |\n";

}  // namespace

void bench_gap() {
  std::vector<Gaps> all;
  for (const char* method : {"m-topo", "m-etf", "m-sct", "chain", "partition", "single", "balanced",
                             "random", "refine", "auto"})
    all.push_back({method, {}, 0});
  Gaps bound{"strongest bound", {}, 0};
  std::string by_kind;
  std::size_t solved = 0, infeasible = 0;
  for (const InstanceKind& kind : instance_kinds()) {
    std::vector<Gaps> of_kind = all;
    for (Gaps& gaps : of_kind) gaps = {gaps.method, {}, 0};
    for (std::uint64_t seed = 0, taken = 0; taken < kPerKind; ++seed) {
      const auto [graph, cluster] = small_instance(kind, 6 + seed % 7, 2 + seed % 2, seed);
      const CostModel costs(graph, cluster);
      const std::optional<Proof> proof = prove(costs);
      if (!proof.has_value()) {
        ++infeasible;
        continue;
      }
      ++taken;
      ++solved;
      bound.gaps.push_back(gap(proof->optimum, proof->bounds.front().value));
      for (Gaps& gaps : of_kind) {
        if (const std::optional<Time> value = reached(costs, gaps.method))
          gaps.gaps.push_back(gap(*value, proof->optimum));
        else
          ++gaps.missed;
      }
    }
    std::printf("\n%s:\n\n| method | %s", std::string(kind.name).c_str(), kColumns);
    for (std::size_t i = 0; i < all.size(); ++i) {
      of_kind[i].print(of_kind[i].method);
      all[i].gaps.insert(all[i].gaps.end(), of_kind[i].gaps.begin(), of_kind[i].gaps.end());
      all[i].missed += of_kind[i].missed;
    }
    std::fflush(stdout);
  }
  std::printf("\nall %zu instances (%zu more in which nothing fits):\n\n| method | %s", solved,
              infeasible, kColumns);
  for (Gaps& gaps : all) gaps.print(gaps.method);
  std::printf("\nthe optimum over the strongest bound:\n\n| bound | %s", kColumns);
  bound.print(bound.method);
}

}  // namespace baechi::bench
