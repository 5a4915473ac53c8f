// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/onnx/onnx_dimensions.h"

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/io/text/source_place.h"

namespace baechi {
namespace {

using NameSet = std::unordered_set<std::string_view>;

NameSet names_in(const std::vector<OnnxValueType>& values) {
  NameSet names;
  for (const OnnxValueType& value : values)
    if (value.dimensions.has_value())
      for (const OnnxDimension& dimension : *value.dimensions)
        if (!dimension.size.has_value() && !dimension.name.empty()) names.insert(dimension.name);
  return names;
}

}  // namespace

OnnxDimensions::OnnxDimensions(const OnnxGraph& graph, const std::string& place,
                               const ModelCosts& costs)
    : costs_(costs), batch_(batch_of(costs)), of_inputs_(names_in(graph.inputs)) {
  NameSet inside = names_in(graph.values);
  inside.merge(names_in(graph.outputs));
  for (const auto& [name, size] : costs.dimensions)
    if (!of_inputs_.contains(name) && !inside.contains(name)) {
      std::string has;
      for (const auto& other : of_inputs_)
        has += (has.empty() ? "; it has " : ", ") + printable(other, 40);
      throw InputError(place,
                       "the model has no open dimension " + in_quotes(printable(name, 120)) + has);
    }
}

std::optional<std::int64_t> OnnxDimensions::given(const OnnxDimension& dimension) const {
  if (dimension.size.has_value()) return dimension.size;
  const auto named = costs_.dimensions.find(dimension.name);
  return named != costs_.dimensions.end() ? std::optional(named->second) : std::nullopt;
}

OnnxShape OnnxDimensions::of_input(const std::vector<OnnxDimension>& dimensions) const {
  OnnxShape shape;
  for (const OnnxDimension& dimension : dimensions) {
    const std::optional<std::int64_t> size = given(dimension);
    if (!size.has_value() && !batch_.has_value())
      throw InputError(
          dimension.name.empty()
              ? "it has an open dimension: give it with " + batch_to_give(costs_.in_python)
              : "it has the open dimension " + in_quotes(printable(dimension.name, 120)) +
                    ": give it with " + batch_to_give(costs_.in_python) + ", or " +
                    dimension_to_give(dimension.name, costs_.in_python));
    shape.push_back(size.has_value() ? *size : *batch_);
  }
  return shape;
}

OnnxShape OnnxDimensions::of_value(const std::vector<OnnxDimension>& dimensions) const {
  OnnxShape shape;
  for (const OnnxDimension& dimension : dimensions) {
    const bool is_batch =
        dimension.name.empty() ? shape.empty() : of_inputs_.contains(dimension.name);
    const std::optional<std::int64_t> size = given(dimension);
    if (!size.has_value() && !(is_batch && batch_.has_value()))
      throw InputError(
          dimension.name.empty()
              ? "an output has an open dimension that does not follow from its inputs: run "
                "onnx.shape_inference on the model first"
              : "an output has the open dimension " + in_quotes(printable(dimension.name, 120)) +
                    ", which does not follow from its inputs: give it with " +
                    dimension_to_give(dimension.name, costs_.in_python));
    shape.push_back(size.has_value() ? *size : *batch_);
  }
  return shape;
}

}  // namespace baechi
