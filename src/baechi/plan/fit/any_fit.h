// SPDX-License-Identifier: Apache-2.0
// Any placement that fits, when a method's own choices do not: packing, then a walk over placements
// and orders, and on small graphs all of them.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "baechi/base/cancel.h"
#include "baechi/cost/cost_model.h"
#include "baechi/plan/fit/memory_needs.h"
#include "baechi/plan/request/budget.h"
#include "baechi/schedule/execution_order.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

// What the attempts of one request share when their own choices run out of room, and the answer of
// the fall-backs that do not depend on the method.
struct LastResort {
  std::int64_t work = 5'000'000;  // for any plan that fits, in simulated operators
  // Where something fits: for methods' further tries, and for repairs of what they ended with.
  static constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  std::int64_t care = kAny, repairs = kAny;
  std::int64_t care_to_fit = kAny;  // where nothing does yet: for those tries, before repairs
  std::uint64_t seed = 1;
  ExecutionOrder order = ExecutionOrder::kPlanned;
  std::int64_t spent = 0;  // by all of them
  bool searched = false;
  std::vector<std::string> fallbacks = {};  // that were tried, the last with success if `placed`
  std::optional<PlacedGraph> placed = {};
  bool proved = false;  // nothing fits: every placement in every order was ruled out
};

// Searches for any placement that fits, unless that was done before. What is found with some work
// is also found with more.
void search_any_fit(const CostModel& costs, const Units& units, const CancelFlag* cancel,
                    LastResort& resort);

// Whether a placement that fits was found with so many simulated operators, and how many it took.
struct AnyFit {
  bool found = false;
  std::int64_t work = 0;
};
AnyFit find_any_fit(const CostModel& costs, const Units& units, ExecutionOrder order,
                    std::int64_t simulated_ops, const CancelFlag* cancel);

// What a budget leaves for finding any plan that fits, in simulated operators: all of
// it, and what two thousand replays take however small it is (at most two seconds' work).
std::int64_t work_for_fit(const OpGraph& graph, Budget budget);

}  // namespace baechi
