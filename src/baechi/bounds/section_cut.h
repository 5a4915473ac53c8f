// SPDX-License-Identifier: Apache-2.0
// The cut bound of what lies between two operators of a chain. Beyond the paper. Internal to
// bounds/.
#pragma once

#include "baechi/bounds/relaxation.h"
#include "baechi/bounds/section_chain.h"

namespace baechi::bounds {

// How long it takes at least from the end of the section's first operator to the start of its last
// one; `known` or more. A few hypotheses, each near-linear in the section.
Ns section_cut(const Relaxation& whole, const Section& section, Ns known);

}  // namespace baechi::bounds
