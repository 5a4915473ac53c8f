// SPDX-License-Identifier: Apache-2.0
// Starts of a search for residency in other orders, on the same devices. Beyond the paper.
#pragma once

#include <optional>

#include "baechi/plan/residency/residency_choice.h"

namespace baechi {

// When operators run in an order, with all devices as they are.
ResidencyStart start_of(const CostModel& costs, Placement device, DeviceOrder order);
Time end_of(const ResidencyStart& start);  // of its last operator

// Gradients for the store are then made earlier, and others stay for longer. Nothing if an
// operator waits for an update.
std::optional<ResidencyStart> with_updates_last(const ResidencyProblem& problem,
                                                const ResidencyStart& start);

// Where gradients may come in either order, in the other one: those that stay may then be gone
// before large ones are sent.
ResidencyStart with_last_gradients_first(const ResidencyProblem& problem,
                                         const ResidencyStart& start);

}  // namespace baechi
