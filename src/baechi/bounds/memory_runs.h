// SPDX-License-Identifier: Apache-2.0
// A bound for what does not fit one device: sections of the longest chain, in runs on one device
// each that fit it, and what must cross between the runs or leaves one and comes back. Beyond the
// paper.
#pragma once

#include "baechi/bounds/components.h"
#include "baechi/bounds/heads_tails.h"
#include "baechi/bounds/relaxation.h"

namespace baechi::bounds {

// `together` are operators that share a device. 0 where every device has room for everything, and
// where devices are of more than a few types. kNever when no plan fits. O((operators + edges) x
// types^3), a few times.
Ns memory_runs(const Relaxation& relaxed, const Components& together, const HeadsTails& ends);

}  // namespace baechi::bounds
