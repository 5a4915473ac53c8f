// SPDX-License-Identifier: Apache-2.0
#include "baechi/schedule/plan.h"

namespace baechi {

PlacedGraph placed_graph_of(const Plan& plan, const OpGraph& graph) {
  const std::size_t num_devices = plan.cluster.devices.size();
  return as_executed({placement_of(plan.schedule), order_of(plan.schedule, graph, num_devices)},
                     plan.order, graph, num_devices);
}

}  // namespace baechi
