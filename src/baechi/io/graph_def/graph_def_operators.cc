// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph_def/graph_def_operators.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <unordered_map>

#include "baechi/base/overflow.h"
#include "baechi/base/units.h"

namespace baechi {
namespace {

// One FLOP count that does not fit is as good as another.
std::int64_t saturating_product(std::initializer_list<std::int64_t> factors) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 60;
  std::int64_t result = 1;
  for (const std::int64_t factor : factors)
    if (multiply_overflows(result, factor, result) || result > kHuge) return kHuge;
  return result;
}

// The product of all labels' sizes. Labels behind "..." are matched from the right.
std::int64_t einsum_flops(const GraphDefOperators& operators, const GraphDefOperator& op) {
  std::unordered_map<char, std::int64_t> sizes;
  std::int64_t ellipsis = 1;
  std::string_view operands =
      op.node.attributes.equation.substr(0, op.node.attributes.equation.find("->"));
  for (std::size_t index = 0; !operands.empty(); ++index) {
    const std::size_t comma = std::min(operands.find(','), operands.size());
    const std::string_view labels = operands.substr(0, comma);
    operands.remove_prefix(std::min(comma + 1, operands.size()));
    const GraphDefSizes* const shape = input_sizes(operators, op, index);
    if (shape == nullptr) return 0;
    const std::size_t dots = std::min(labels.find("..."), labels.size());
    for (std::size_t i = 0; i < dots && i < shape->size(); ++i) sizes[labels[i]] = (*shape)[i];
    if (dots == labels.size()) continue;
    const std::size_t behind = labels.size() - dots - 3;
    if (shape->size() < dots + behind) return 0;
    for (std::size_t i = 0; i < behind; ++i)
      sizes[labels[labels.size() - 1 - i]] = (*shape)[shape->size() - 1 - i];
    ellipsis = std::max(
        ellipsis, element_count(GraphDefSizes(shape->begin() + static_cast<std::ptrdiff_t>(dots),
                                              shape->end() - static_cast<std::ptrdiff_t>(behind))));
  }
  std::int64_t result = saturating_product({2, ellipsis});
  for (const auto& [label, size] : sizes) result = saturating_product({result, size});
  return result;
}

}  // namespace

std::int64_t element_count(const GraphDefSizes& shape) {
  Bytes elements(1);
  for (const std::int64_t size : shape) elements = elements * size;
  return elements.count();
}

const GraphDefSizes* input_sizes(const GraphDefOperators& operators, const GraphDefOperator& op,
                                 std::size_t index) {
  if (index >= op.inputs.size() || op.inputs[index].control) return nullptr;
  const std::vector<GraphDefSizes>& shapes = operators[op.inputs[index].from].shapes;
  const std::uint32_t port = op.inputs[index].port;
  return port < shapes.size() ? &shapes[port] : nullptr;
}

bool runs_a_kernel(std::string_view operation) {
  static constexpr std::array<std::string_view, 21> kOps{"Const",
                                                         "Enter",
                                                         "Exit",
                                                         "ExpandDims",
                                                         "Identity",
                                                         "IdentityN",
                                                         "Merge",
                                                         "NoOp",
                                                         "Placeholder",
                                                         "PlaceholderWithDefault",
                                                         "PreventGradient",
                                                         "ReadVariableOp",
                                                         "Reshape",
                                                         "Shape",
                                                         "ShapeN",
                                                         "Size",
                                                         "Squeeze",
                                                         "StopGradient",
                                                         "Switch",
                                                         "VarHandleOp",
                                                         "VariableV2"};
  return std::find(kOps.begin(), kOps.end(), operation) == kOps.end();
}

std::int64_t flops_of(const GraphDefOperators& operators, const GraphDefOperator& op) {
  const std::string_view kind = op.node.op;
  const GraphDefSizes* const a = input_sizes(operators, op, 0);
  const GraphDefSizes* const b = input_sizes(operators, op, 1);
  const GraphDefSizes* const out = op.shapes.empty() ? nullptr : &op.shapes[0];
  if (kind == "Einsum") return einsum_flops(operators, op);
  if (kind == "MatMul" || kind.starts_with("BatchMatMul")) {
    if (a == nullptr || a->size() < 2 || out == nullptr) return 0;
    const std::int64_t inner = (*a)[a->size() - (op.node.attributes.transpose_a ? 2 : 1)];
    return saturating_product({2, element_count(*out), inner});
  }
  if (kind.find("Conv") != kind.npos &&
      kind.find('D') != kind.npos) {  // y, its filter, its channels
    const bool to_input = kind.find("BackpropInput") != kind.npos;
    const bool to_filter = kind.find("BackpropFilter") != kind.npos;
    const GraphDefSizes* const y = to_input || to_filter ? input_sizes(operators, op, 2) : out;
    const GraphDefSizes* const filter = to_filter ? out : b;
    if (y != nullptr && filter != nullptr && !filter->empty() && filter->back() > 0) {
      std::int64_t per_output = element_count(*filter) / filter->back();
      if (kind.starts_with("Depthwise") && filter->size() >= 3)
        per_output /= std::max<std::int64_t>(1, (*filter)[filter->size() - 2]);
      return saturating_product({2, element_count(*y), per_output});
    }
  }
  std::int64_t most = 0;
  for (const GraphDefSizes& shape : op.shapes) most = std::max(most, element_count(shape));
  for (std::size_t i = 0; i < op.inputs.size(); ++i)
    if (const GraphDefSizes* shape = input_sizes(operators, op, i))
      most = std::max(most, element_count(*shape));
  return most;
}

}  // namespace baechi
