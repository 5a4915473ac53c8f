// SPDX-License-Identifier: Apache-2.0
// A bound for pipelines: the work that the devices share, and how long each of them must wait until
// its first operator can start and after its last one has ended. Beyond the paper.
#pragma once

#include "baechi/bounds/components.h"
#include "baechi/bounds/heads_tails.h"
#include "baechi/bounds/load.h"
#include "baechi/bounds/relaxation.h"

namespace baechi::bounds {

// Devices have different components, so the i-th device waits at least the i-th smallest head of a
// component before its work, and the i-th smallest tail after it. With the copies of an operator in
// one component, all of a pipeline's devices but one wait for its first stage. `together` are
// operators that share a device, `lumps` what each of these takes. O(operators x types).
Ns fill_drain(const Relaxation& relaxed, const HeadsTails& ends, const Components& together,
              const Lumps& lumps, const LoadWeights& weights);

}  // namespace baechi::bounds
