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

// What frameworks call a device's kind: "CPU" for "cpu", "TPU" for "tpu", "GPU" for all others: to
// them an a100 and a t4 are both GPUs.
std::string_view framework_kind(const Device& device);

// TensorFlow's names of the devices: "/job:localhost/replica:0/task:0/device:GPU:1". With several
// hosts the job is "worker" and every host a task, in the order in which the cluster first names
// them. Devices are numbered by framework_kind(), on each host from 0, in the cluster's order.
IdVector<DeviceId, std::string> tensorflow_devices(const ClusterSpec& cluster);

// Throws InputError when `bytes`, read from `place`, are plainly no GraphDef.
void check_graph_def(std::string_view bytes, const std::string& place);

// `bytes` is the GraphDef that `graph` was read from; everything but the devices of its nodes stays
// as it is. Throws InputError when it is none, or of another graph.
std::string placed_graph_def(std::string_view bytes, const std::string& place, const OpGraph& graph,
                             const Plan& plan);

}  // namespace baechi
