// SPDX-License-Identifier: Apache-2.0
// The cut bound: suppose a step took less than v. Then no pair of neighbors whose separation costs
// v may be apart, so whole regions of the graph share a device; if they cannot, the step takes v.
#pragma once

#include <cstddef>
#include <span>

#include "baechi/bounds/components.h"
#include "baechi/bounds/heads_tails.h"
#include "baechi/bounds/relaxation.h"

namespace baechi::bounds {

// At least `known`, a valid bound already; `ends` come from star() with the components of
// forced_together(), and `distances` hold in every plan. Searches by bisection, and on graphs of up
// to a few thousand operators lets each hypothesis sharpen heads and tails, and so itself. kNever
// when it refutes every step. Tries at most so many hypotheses.
Ns cut(const Relaxation& relaxed, const HeadsTails& ends, Ns known,
       std::span<const Distance> distances, std::size_t most_steps = 40);

}  // namespace baechi::bounds
