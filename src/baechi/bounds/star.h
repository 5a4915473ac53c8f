// SPDX-License-Identifier: Apache-2.0
// One operator and its neighbors on one side: what it costs to have all of them done, each on the
// same device or on another one. Internal to bounds/.
#pragma once

#include <cstdint>
#include <vector>

#include "baechi/bounds/relaxation.h"

namespace baechi::bounds {

// An operator next to the one in hand: all on the way in for heads, all on the way out for tails.
struct Neighbor {
  Ns sent;     // when its tensors are there, were it on another device; kNever if it must not be
  Ns release;  // when it could start, were it on the same device
  Ns k;        // how long it takes there; kNever if it cannot be there
};

// The least moment at which all neighbors can be done: min over those kept local of max(the local
// ones one after the other, the last of the others to be sent). Whoever is sent last is the one to
// keep first: keeping another instead costs work and gains nothing. Keeps its memory from call to
// call.
class Star {
 public:
  Ns solve(std::vector<Neighbor>& neighbors);  // sorts them; kNever when it cannot be

 private:
  std::vector<std::uint32_t> by_release_;
};

}  // namespace baechi::bounds
