// SPDX-License-Identifier: Apache-2.0
// Sizes for the dimensions that an ONNX model leaves open. Private to io/.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "baechi/io/onnx/onnx_model.h"

namespace baechi {

class OnnxDimensions {
 public:
  using Sizes = std::map<std::string, std::int64_t, std::less<>>;

  // `batch` is for what `sizes` does not name. Throws InputError when `graph` has none of a name in
  // `sizes`: "file: reason". Graph and sizes must outlive this.
  OnnxDimensions(const OnnxGraph& graph, const std::string& place, const Sizes& sizes,
                 std::optional<std::int64_t> batch);

  OnnxShape of_input(const std::vector<OnnxDimension>& dimensions) const;

  // Of a value inside the graph. Its exporter has made up names for what it could not follow:
  // products of sizes, counts of results. Only the names of inputs, and the first axis where it has
  // no name, are the batch.
  OnnxShape of_value(const std::vector<OnnxDimension>& dimensions) const;

 private:
  std::optional<std::int64_t> given(const OnnxDimension& dimension) const;

  const Sizes& sizes_;
  const std::optional<std::int64_t> batch_;
  std::unordered_set<std::string_view> of_inputs_;
};

}  // namespace baechi
