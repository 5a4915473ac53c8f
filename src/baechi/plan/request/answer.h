// SPDX-License-Identifier: Apache-2.0
// What comes back: a plan, or a reason why there is none that a user can act on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// No plan: which operator, how many bytes, and what would do.
struct Unplaceable {
  std::optional<OpId> op;  // the operator, or first of its group, that found no room
  Bytes short_by;
  bool proved = false;                      // by arithmetic, or because every placement was tried
  std::string reason;                       // one sentence
  std::optional<Bytes> smallest_capacity;   // equal on all devices, that a plan was found for
  std::optional<std::size_t> more_devices;  // devices in all, adding ones like the largest
  bool advice_cut_short = false;            // the budget was too short to find either
  std::vector<MethodOutcome> methods;
  // The step of a plan with recomputation that does fit, if one was looked for and found.
  std::optional<Time> step_with_recomputation = {};
  // The same where a host keeps what may be away, and what it has to hold.
  std::optional<Time> step_with_host = {};
  Bytes host_needs = {};

  std::string in_words() const;  // reason and suggestions
};

using PlanResult = std::variant<Plan, Unplaceable>;

struct MethodTime {
  std::string method;
  std::int64_t nanoseconds;
};
struct PlanTimes {  // how long it took; kept out of the plan, which depends on input alone
  std::vector<MethodTime> methods;
  std::vector<Time> passes;  // of the Graph Optimizer, CPU time
};

}  // namespace baechi
