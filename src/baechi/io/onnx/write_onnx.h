// SPDX-License-Identifier: Apache-2.0
// A plan as ONNX tools take it: the model's own bytes with a device on every node.
#pragma once

#include <string>
#include <string_view>

#include "baechi/base/id.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// ONNX Runtime's names of the devices in its layer assignment: "gpu:1", "npu:0" or "cpu".
IdVector<DeviceId, std::string> onnx_runtime_devices(const ClusterSpec& cluster);

// The value of ONNX Runtime's session option "session.layer_assignment_settings" for a model that
// placed_onnx() wrote: "gpu:0(=gpu:0);gpu:1(=gpu:1)".
std::string onnx_runtime_layer_assignment(const Plan& plan);

// Throws InputError when `bytes`, read from `place`, are plainly no ONNX model.
void check_onnx(std::string_view bytes, const std::string& place);

// `bytes` is the model that `graph` was read from. Every node of the main graph gets the metadata
// "layer_ann" (its device as ONNX Runtime names it) and "baechi.device" (as the cluster does), and
// from IR version 11 on the annotation of ONNX's own multi-device execution; everything else stays
// as it is. Throws InputError when the model is another graph's.
std::string placed_onnx(std::string_view bytes, const std::string& place, const OpGraph& graph,
                        const Plan& plan);

}  // namespace baechi
