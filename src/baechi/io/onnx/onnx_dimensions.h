// SPDX-License-Identifier: Apache-2.0
// Sizes for the dimensions that an ONNX model leaves open. Private to io/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "baechi/io/onnx/onnx_model.h"
#include "baechi/io/profile/model_costs.h"

namespace baechi {

class OnnxDimensions {
 public:
  // The batch is for what the costs' dimensions do not name. Throws InputError when `graph` has none
  // of such a name: "file: reason". Graph and costs must outlive this.
  OnnxDimensions(const OnnxGraph& graph, const std::string& place, const ModelCosts& costs);

  OnnxShape of_input(const std::vector<OnnxDimension>& dimensions) const;

  // Of a value inside the graph. Its exporter has made up names for what it could not follow:
  // products of sizes, counts of results. Only the names of inputs, and the first axis where it has
  // no name, are the batch.
  OnnxShape of_value(const std::vector<OnnxDimension>& dimensions) const;

 private:
  std::optional<std::int64_t> given(const OnnxDimension& dimension) const;

  const ModelCosts& costs_;
  const std::optional<std::int64_t> batch_;
  std::unordered_set<std::string_view> of_inputs_;
};

}  // namespace baechi
