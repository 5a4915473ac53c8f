// SPDX-License-Identifier: Apache-2.0
// Sets of operators that must share a device. Internal to bounds/.
#pragma once

#include <cstddef>

#include "baechi/base/id.h"
#include "baechi/bounds/heads_tails.h"
#include "baechi/bounds/load.h"
#include "baechi/bounds/relaxation.h"
#include "baechi/graph/union_find.h"

namespace baechi::bounds {

struct Components {
  IdVector<OpId, UnitId> of;
  std::size_t count = 0;
};

// Numbers the sets of a union-find over the units.
Components number(const Relaxation& relaxed, UnionFind& sets);

// Units, and those together that have one and the same device left.
UnionFind forced_together(const Relaxation& relaxed);

// False when the lumps cannot all be on the devices within capacity, or not before `limit`.
// Necessary conditions only: true proves nothing.
bool may_pack(const Relaxation& relaxed, const Lumps& lumps, Ns limit);

// How long a step takes at least if this pair of neighbors is on two devices.
struct CutPair {
  UnitId from, to;
  Ns least;
};
std::vector<CutPair> cut_pairs(const Relaxation& relaxed, const HeadsTails& ends);

}  // namespace baechi::bounds
