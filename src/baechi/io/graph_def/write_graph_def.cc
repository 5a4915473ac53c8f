// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph_def/write_graph_def.h"

#include <map>
#include <optional>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/io/graph_def/graph_def.h"
#include "baechi/io/graph_def/graph_def_loops.h"
#include "baechi/io/text/source_place.h"

namespace baechi {

std::string_view framework_kind(const Device& device) {
  return device.kind == "cpu" ? "CPU" : device.kind == "tpu" ? "TPU" : "GPU";
}

IdVector<DeviceId, std::string> tensorflow_devices(const ClusterSpec& cluster) {
  std::map<std::string_view, std::size_t> task_of;
  for (const Device& device : cluster.devices) task_of.try_emplace(device.host, task_of.size());
  const std::string job = task_of.size() > 1 ? "worker" : "localhost";
  std::map<std::pair<std::size_t, std::string_view>, std::size_t> seen;  // by task and kind
  IdVector<DeviceId, std::string> names;
  for (const Device& device : cluster.devices) {
    const std::size_t task = task_of.at(device.host);
    const std::string_view kind = framework_kind(device);
    names.push_back("/job:" + job + "/replica:0/task:" + std::to_string(task) +
                    "/device:" + std::string(kind) + ":" + std::to_string(seen[{task, kind}]++));
  }
  return names;
}

void check_graph_def(std::string_view bytes, const std::string& place) {
  if (!looks_like_graph_def(bytes))
    throw InputError(place, "only a TensorFlow GraphDef can be written as one");
}

std::string placed_graph_def(std::string_view bytes, const std::string& place, const OpGraph& graph,
                             const Plan& plan) {
  check_graph_def(bytes, place);
  const IdVector<DeviceId, std::string> devices = tensorflow_devices(plan.cluster);
  const GraphDefLoops loops = loops_of_graph_def(bytes, place);
  return set_graph_def_devices(bytes, place, [&](std::string_view node) {
    const auto loop = loops.find(node);
    const std::optional<OpId> op = graph.find(loop == loops.end() ? node : loop->second);
    if (!op.has_value())
      throw InputError(place, "node '" + printable(node, 120) + "' is not in the planned graph");
    return devices[plan.schedule.slots[*op].device];
  });
}

}  // namespace baechi
