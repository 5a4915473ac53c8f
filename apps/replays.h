// SPDX-License-Identifier: Apache-2.0
// What the subcommands that replay a plan share.
#pragma once

#include <optional>
#include <string>

#include "apps/command_line.h"
#include "baechi/base/id.h"
#include "baechi/schedule/execution_order.h"
#include "baechi/schedule/plan.h"

namespace baechi::cli {

// --order: as another executor would run the plan.
void add_order_option(OptionSet& set, std::optional<ExecutionOrder>& order);

// A step of micro-batches has its planned order only.
void refuse_order(const Plan& plan, std::optional<ExecutionOrder> order);

// The first device that peaks above its capacity, if one does, and what to say of it.
std::optional<DeviceId> first_over(const Plan& plan);
std::string over_words(const Plan& plan, DeviceId device);

}  // namespace baechi::cli
