// SPDX-License-Identifier: Apache-2.0
// TensorFlow's GraphDef, read and patched by its wire format: neither TensorFlow nor libprotobuf is
// needed (Paper 4.1 generates its graphs inside TensorFlow). Private to io/: callers use
// read_graph.h and write_graph.h.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "baechi/graph/op_graph.h"
#include "baechi/io/profile/model_costs.h"

namespace baechi {

// A saved_model.pb, which holds a graph of calls and no weights.
bool looks_like_saved_model(std::string_view bytes);

// The first field is a node with a name and an operation.
bool looks_like_graph_def(std::string_view bytes);

// One operator per node, in the order of the file, and one per loop of Enter, Merge and Switch,
// named after its LoopCond. Sizes come from `_output_shapes`, which as_graph_def(add_shapes=True)
// writes. Colocated are what `_class` says and everything that touches one variable. An operator is
// backward if TensorFlow's name for gradients says so, or if it uses the outputs of one that is.
// Throws InputError "file: node 'NAME': reason", or "file: byte N: reason" for what is no GraphDef.
OpGraph parse_graph_def(std::string_view bytes, const std::string& place,
                        std::string_view graph_name, const ModelCosts& costs);

// The same GraphDef, but the device of every node is device_of(name of the node). All other bytes
// of the nodes, and everything besides the nodes, stay as they are.
std::string set_graph_def_devices(
    std::string_view bytes, const std::string& place,
    const std::function<std::string(std::string_view node)>& device_of);

}  // namespace baechi
