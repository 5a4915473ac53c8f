// SPDX-License-Identifier: Apache-2.0
// Sections: how much time must pass between two operators of one chain for everything that is after
// the one and before the other. One device does all of it, or several share it and its tensors must
// go out and come back. Sections of a chain add up. Beyond the paper.
#pragma once

#include <vector>

#include "baechi/bounds/components.h"
#include "baechi/bounds/heads_tails.h"
#include "baechi/bounds/load.h"
#include "baechi/bounds/relaxation.h"

namespace baechi::bounds {

// Of the longest chain, cut where it is narrow, from short sections to long ones. `together` are
// operators that share a device. O((operators + edges) log operators).
std::vector<Distance> sections(const Relaxation& relaxed, const Components& together,
                               const LoadWeights& weights);

}  // namespace baechi::bounds
