// SPDX-License-Identifier: Apache-2.0
// ONNX models, read by their wire format: neither ONNX nor libprotobuf is needed. Private to io/:
// callers use read_graph.h and write_onnx.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "baechi/graph/op_graph.h"
#include "baechi/io/onnx/onnx_model.h"
#include "baechi/io/profile/model_costs.h"

namespace baechi {

// The first two fields are a model's. A model that is cut off still looks like one.
bool looks_like_onnx(std::string_view bytes);

// The operators that a model becomes, in the graph's order: its inputs, then its nodes.
struct OnnxOperatorNames {
  std::vector<std::string> inputs;  // empty for those that an initializer gives
  std::vector<std::string> nodes;
};
OnnxOperatorNames onnx_operator_names(const OnnxGraph& graph);

// One operator per input and per node of the main graph; nodes that contain graphs (If, Loop) are
// one each. Initializers are permanent memory of the node that reads them; larger ones with several
// readers keep these together, small ones are held by each. Throws InputError
// "file: node 'NAME' (Op): reason", or "file: byte N: reason" for what is no ONNX model.
OpGraph parse_onnx(std::string_view bytes, const std::string& place, std::string_view graph_name,
                   const ModelCosts& costs);

}  // namespace baechi
