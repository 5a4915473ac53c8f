// SPDX-License-Identifier: Apache-2.0
// The graph's costs on one cluster (Paper 4.1): what every operator and tensor takes where.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

// Devices on which every operator takes the same time: same kind, same speed.
using DeviceClassId = Id<struct DeviceClassTag>;

// Immutable; refers to the graph and the cluster, which must outlive it.
class CostModel {
 public:
  // Throws InputError when an operator is pinned to a device that the cluster does not have. An
  // operator that no device can run is not an error here but an answer of the placers.
  CostModel(const OpGraph& graph, const Cluster& cluster);
  CostModel(OpGraph&& graph, const Cluster& cluster) = delete;  // they must outlive it
  CostModel(const OpGraph& graph, Cluster&& cluster) = delete;

  const OpGraph& graph() const { return *graph_; }
  const Cluster& cluster() const { return *cluster_; }

  std::size_t num_classes() const { return class_times_.size(); }
  DeviceClassId class_of(DeviceId device) const { return class_of_[device]; }
  // By operator; absent where the class cannot run it.
  const IdVector<OpId, std::optional<Time>>& class_times(DeviceClassId c) const {
    return *class_times_[c];
  }

  // What `op` takes on `device`; absent when it cannot run there.
  std::optional<Time> compute_time(OpId op, DeviceId device) const {
    return (*class_times_[class_of_[device]])[op];
  }
  std::optional<DeviceId> pin(OpId op) const { return has_pins_ ? pins_[op] : std::nullopt; }
  bool has_pins() const { return has_pins_; }
  // It has a compute time there and is not pinned elsewhere. (The rest of its colocation group may
  // still forbid the device.)
  bool may_run(OpId op, DeviceId device) const {
    return compute_time(op, device).has_value() && pin(op).value_or(device) == device;
  }
  // All members of the group may run there.
  bool group_may_run(GroupId group, DeviceId device) const;

  // Requires from != to.
  Time transfer_time(TensorId tensor, DeviceId from, DeviceId to) const {
    return cluster_->link(from, to).transfer_time(graph_->size(tensor));
  }

 private:
  const OpGraph* graph_;
  const Cluster* cluster_;
  IdVector<DeviceId, DeviceClassId> class_of_;
  IdVector<DeviceClassId, const IdVector<OpId, std::optional<Time>>*> class_times_;
  std::vector<std::unique_ptr<const IdVector<OpId, std::optional<Time>>>>
      owned_;  // if not the graph's
  bool has_pins_ = false;
  IdVector<OpId, std::optional<DeviceId>> pins_;  // filled only when has_pins_
};

}  // namespace baechi
