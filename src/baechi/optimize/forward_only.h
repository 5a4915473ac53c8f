// SPDX-License-Identifier: Apache-2.0
// Forward-operator-based placement (Paper 3.1.3): when memory suffices, only forward operators are
// placed, and backward operators follow them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "baechi/cost/cost_model.h"
#include "baechi/optimize/contraction.h"
#include "baechi/optimize/optimized.h"

namespace baechi {

enum class MemorySuffices : std::uint8_t {
  // The cluster has room for all that could ever be held at once, wherever a placer puts it: the
  // small graph assumes that worst case, so what fits there, fits.
  kForAllAnywhere,
  // The paper's: one device has room for the whole graph, operator after operator. The small graph
  // has the memory of the forward pass, and what is found for it need not fit.
  kForOneDevice,
};

struct ForwardOnlyOptions {
  MemorySuffices suffices = MemorySuffices::kForAllAnywhere;  // else the graph is left alone
  double memory_share = 1.0;  // kForAllAnywhere: of the cluster's memory, the part to count with
};

// A graph of the forward operators alone. Each takes the time of the backward operators that follow
// it, too, and its tensors count twice (a gradient comes back for each). With kForAllAnywhere its
// memory is the most that a device could hold because of it and its followers, in any order: all
// their outputs and all received copies until the step ends. So the backward pass of a plan of the
// small graph that fits, fits. When memory does not suffice, or a follower could not run where it
// has to, nothing is changed and the note says why. `whole` is the graph that one device has to
// hold, if it is not this one.
//
// A backward operator follows its forward operator; without one, a forward operator of its group,
// else whoever the first of its parents follows, else of its children.
struct ForwardOnly {
  std::optional<Contracted> small;  // absent: the graph stays as it is
  std::string note;
};
ForwardOnly find_forward_only(const CostModel& costs, const ForwardOnlyOptions& options,
                              const CostModel* whole = nullptr);

Optimized forward_only(const CostModel& costs, const ForwardOnlyOptions& options = {});

}  // namespace baechi
