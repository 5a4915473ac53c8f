// SPDX-License-Identifier: Apache-2.0
// Forward-operator-based placement (Paper 3.1.3): when memory suffices, only forward operators are
// placed, and backward operators follow them.
#pragma once

#include <optional>
#include <string>

#include "baechi/cost/cost_model.h"
#include "baechi/optimize/contraction.h"
#include "baechi/optimize/optimized.h"

namespace baechi {

struct ForwardOnlyOptions {
  // Leave the graph alone unless this part of the cluster's memory has room for all that could
  // ever be held at once, wherever a placer puts it: the small graph assumes that worst case.
  double memory_share = 1.0;
};

// A graph of the forward operators alone. Each takes the time of the backward operators that follow
// it, too, its tensors count twice (a gradient comes back for each), and its memory is the most
// that a device could hold because of it and its followers, in any order: all their outputs and all
// received copies until the step ends. So the backward pass of a plan of the small graph that fits,
// fits. When memory does not suffice for that, or a follower could not run where it has to, nothing
// is changed and the note says why.
//
// A backward operator follows its forward operator; without one, a forward operator of its group,
// else whoever the first of its parents follows, else of its children.
struct ForwardOnly {
  std::optional<Contracted> small;  // absent: the graph stays as it is
  std::string note;
};
ForwardOnly find_forward_only(const CostModel& costs, const ForwardOnlyOptions& options);

Optimized forward_only(const CostModel& costs, const ForwardOnlyOptions& options = {});

}  // namespace baechi
