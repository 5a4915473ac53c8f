// SPDX-License-Identifier: Apache-2.0
// The hub bound: whoever exchanges large tensors with a hub works on its device or keeps that
// device's queue busy. Beyond the paper.
#pragma once

#include "baechi/bounds/components.h"
#include "baechi/bounds/heads_tails.h"
#include "baechi/bounds/relaxation.h"

namespace baechi::bounds {

// By flows out of the component whose tensors take longest. 0 where transfers do not queue, and
// where no more than `known` can come of it. Linear but for the flows, whose work is limited.
Ns hub(const Relaxation& relaxed, const HeadsTails& ends, const Components& together, Ns known);

}  // namespace baechi::bounds
