// SPDX-License-Identifier: Apache-2.0
// What a choice of what is away is given before single readers. Beyond the paper.
#include <algorithm>

#include "baechi/plan/residency/residency_choice.h"

namespace baechi {

bool ResidencyPrefer::is_away(const OpGraph& graph, TensorId tensor, std::optional<OpId> reader,
                              Bytes there, bool otherwise) const {
  if (!reader.has_value()) return otherwise;
  const std::pair where(tensor, *reader);
  const auto at = std::ranges::lower_bound(given, where, {}, &GivenGap::where);
  if (at != given.end() && at->where() == where) return at->away;
  if (otherwise || waits >= 1) return otherwise;
  Bytes takes = graph[*reader].temporary + graph.output_bytes(*reader);
  for (const Edge& edge : graph.in_edges(*reader))
    if (edge.tensor.has_value()) takes += graph.size(*edge.tensor);
  return static_cast<double>(takes.count()) > waits * static_cast<double>(there.count());
}

}  // namespace baechi
