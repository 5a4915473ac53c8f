// SPDX-License-Identifier: Apache-2.0
// The operators of a GraphDef once their inputs are found, and the work they do. Private to io/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/io/graph_def/graph_def_nodes.h"

namespace baechi {

using GraphDefSizes = std::vector<std::int64_t>;  // of the dimensions, all known

struct GraphDefInput {
  OpId from;
  std::uint32_t port;
  bool control;
};

struct GraphDefOperator {
  GraphDefNode node;
  std::vector<GraphDefInput> inputs;
  std::vector<GraphDefSizes> shapes;  // of the outputs
  std::int64_t flops = 0;
};
using GraphDefOperators = IdVector<OpId, GraphDefOperator>;

std::int64_t element_count(const GraphDefSizes& sizes);

// The shape of an input; nullptr for a control input and where no shape is known.
const GraphDefSizes* input_sizes(const GraphDefOperators& operators, const GraphDefOperator& op,
                                 std::size_t index);

// False for the framework's bookkeeping: nothing runs on a device.
bool runs_a_kernel(std::string_view operation);

// Two floating-point operations per multiply-add; one per element of everything else.
std::int64_t flops_of(const GraphDefOperators& operators, const GraphDefOperator& op);

}  // namespace baechi
