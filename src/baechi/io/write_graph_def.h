// SPDX-License-Identifier: Apache-2.0
// A plan as TensorFlow takes it: the model's own GraphDef with a device on every node.
#pragma once

#include <string>
#include <string_view>

#include "baechi/base/id.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// TensorFlow's names of the devices: those of kind "cpu" are "/device:CPU:0", ..., all others
// "/device:GPU:0", ..., each counted in the order of the cluster.
IdVector<DeviceId, std::string> tensorflow_devices(const ClusterSpec& cluster);

// `bytes` is the GraphDef that `graph` was read from; everything but the devices of its nodes stays
// as it is. Throws InputError when it is none, or of another graph.
std::string placed_graph_def(std::string_view bytes, const std::string& place, const OpGraph& graph,
                             const Plan& plan);

}  // namespace baechi
