// SPDX-License-Identifier: Apache-2.0
// What a device needs to run the whole graph by itself, one operator after the other; beyond the
// paper.
#pragma once

#include <optional>
#include <span>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

struct SequentialPeak {
  Bytes bytes;
  std::optional<OpId> op;  // the first operator during which the peak is held
};

// `order` holds every operator once, parents first. `keep_all`: outputs stay until the step ends.
SequentialPeak sequential_peak(const OpGraph& graph, std::span<const OpId> order,
                               bool keep_all = false);

}  // namespace baechi
