// SPDX-License-Identifier: Apache-2.0
#include "baechi/cost/cost_model.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "baechi/base/error.h"

namespace baechi {
namespace {

using Times = IdVector<OpId, std::optional<Time>>;

Time scaled(Time time, Speed speed) {
  if (speed == kFullSpeed) return time;
  return Time(scale_up(time.count(), kFullSpeed.count(), speed.count(), "compute time"));
}

// The times of a device class when the graph's own table does not serve as it is.
std::unique_ptr<const Times> class_table(const OpGraph& graph, std::optional<KindId> kind,
                                         std::optional<KindId> any, Speed speed) {
  auto times = std::make_unique<Times>(graph.num_ops());
  for (const OpId op : graph.ops()) {
    std::optional<Time> time;
    if (kind.has_value()) time = graph.times(*kind)[op];
    if (!time.has_value() && any.has_value()) time = graph.times(*any)[op];
    if (time.has_value()) (*times)[op] = scaled(*time, speed);
  }
  return times;
}

}  // namespace

CostModel::CostModel(const OpGraph& graph, const Cluster& cluster)
    : graph_(&graph), cluster_(&cluster) {
  std::vector<std::pair<std::string_view, Speed>> classes;
  const std::optional<KindId> any = graph.find_kind(kAnyKind);
  for (const DeviceId device : cluster.devices()) {
    const std::pair<std::string_view, Speed> key{cluster[device].kind, cluster[device].speed};
    const auto at = std::find(classes.begin(), classes.end(), key);
    class_of_.push_back(DeviceClassId(static_cast<std::size_t>(at - classes.begin())));
    if (at != classes.end()) continue;
    classes.push_back(key);
    const std::optional<KindId> kind = graph.find_kind(key.first);
    if (key.second == kFullSpeed && (!kind.has_value() || !any.has_value()) && (kind || any)) {
      class_times_.push_back(&graph.times(kind.has_value() ? *kind : *any));
    } else {
      owned_.push_back(class_table(graph, kind, any, key.second));
      class_times_.push_back(owned_.back().get());
    }
  }

  for (const OpId op : graph.ops()) {
    if (!graph[op].pin.has_value()) continue;
    const std::optional<DeviceId> device = cluster.find(*graph[op].pin);
    if (!device.has_value())
      throw InputError("operator '" + std::string(graph[op].name) + "' is pinned to device '" +
                       std::string(*graph[op].pin) + "', which the cluster does not have");
    if (!has_pins_) pins_.resize(graph.num_ops());
    has_pins_ = true;
    pins_[op] = device;
  }
}

bool CostModel::group_may_run(GroupId group, DeviceId device) const {
  const std::span<const OpId> members = graph_->members(group);
  return std::all_of(members.begin(), members.end(), [&](OpId op) { return may_run(op, device); });
}

}  // namespace baechi
