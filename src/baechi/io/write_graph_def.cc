// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/write_graph_def.h"

#include <optional>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/io/graph_def.h"
#include "baechi/io/source_place.h"

namespace baechi {

IdVector<DeviceId, std::string> tensorflow_devices(const ClusterSpec& cluster) {
  int cpus = 0, others = 0;
  IdVector<DeviceId, std::string> names;
  for (const Device& device : cluster.devices)
    names.push_back(device.kind == "cpu" ? "/device:CPU:" + std::to_string(cpus++)
                                         : "/device:GPU:" + std::to_string(others++));
  return names;
}

std::string placed_graph_def(std::string_view bytes, const std::string& place, const OpGraph& graph,
                             const Plan& plan) {
  if (!looks_like_graph_def(bytes))
    throw InputError(place, "only a TensorFlow GraphDef can be written as one");
  const IdVector<DeviceId, std::string> devices = tensorflow_devices(plan.cluster);
  return set_graph_def_devices(bytes, place, [&](std::string_view node) {
    const std::optional<OpId> op = graph.find(node);
    if (!op.has_value())
      throw InputError(place, "node '" + printable(node, 120) + "' is not in the planned graph");
    return devices[plan.schedule.slots[*op].device];
  });
}

}  // namespace baechi
