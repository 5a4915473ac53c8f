// SPDX-License-Identifier: Apache-2.0
// Carlier's bound, for unequal devices too: what must happen within a window of the step.
#pragma once

#include "baechi/bounds/heads_tails.h"
#include "baechi/bounds/load.h"
#include "baechi/bounds/relaxation.h"

namespace baechi::bounds {

// For every set S of operators that start at r or later and leave s behind them:
// makespan >= r + work(S) / devices + s, over the sets {b >= r, q >= s} for a few dozen r and all
// s. On equal devices the n smallest heads and tails stand in for r and s.
Ns window(const Relaxation& relaxed, const HeadsTails& ends, const LoadWeights& weights);

}  // namespace baechi::bounds
