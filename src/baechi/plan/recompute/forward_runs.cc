// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/recompute/forward_runs.h"

#include <algorithm>
#include <utility>

namespace baechi {

std::vector<DeviceRuns> forward_runs(const CostModel& costs, const SecondRuns& may,
                                     const std::vector<OpId>& sequence, const Placement* placement,
                                     std::size_t num_devices) {
  const OpGraph& graph = costs.graph();
  std::vector<DeviceRuns> devices(num_devices);
  IdVector<OpId, std::size_t> index(graph.num_ops());
  const auto device_of = [&](OpId op) {
    return placement != nullptr ? (*placement)[op] : DeviceId(0);
  };
  for (const OpId op : sequence) {
    if (graph[op].backward || graph.outputs(op).empty()) continue;
    DeviceRuns& device = devices[device_of(op).index()];
    index[op] = device.ops.size();
    device.ops.push_back(op);
    ForwardRun run{.may = may.may(op), .needed = false, .time = {}, .bytes = {}};
    for (const KindId kind : graph.kinds())
      if (const auto time = graph.times(kind)[op]; time.has_value())
        run.time = std::max(run.time, *time);
    if (placement != nullptr) run.time = costs.compute_time(op, device_of(op)).value_or(run.time);
    for (const TensorId tensor : graph.outputs(op)) {
      const auto edges = graph.consumers(tensor);
      const bool backward = std::any_of(edges.begin(), edges.end(),
                                        [&](const Edge& edge) { return graph[edge.to].backward; });
      const bool again = std::any_of(edges.begin(), edges.end(),
                                     [&](const Edge& edge) { return may.may(edge.to); });
      run.needed = run.needed || backward;
      if (backward || again) run.bytes += graph.size(tensor);
    }
    device.runs.push_back(std::move(run));
  }
  for (const OpId op : sequence) {
    if (graph[op].backward || graph.outputs(op).empty()) continue;
    for (const Edge& edge : graph.out_edges(op))
      if (edge.tensor.has_value() && !graph[edge.to].backward && !graph.outputs(edge.to).empty() &&
          device_of(op) == device_of(edge.to))
        devices[device_of(op).index()].runs[index[op]].readers.push_back(index[edge.to]);
  }
  return devices;
}

}  // namespace baechi
