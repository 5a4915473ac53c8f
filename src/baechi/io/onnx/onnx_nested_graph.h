// SPDX-License-Identifier: Apache-2.0
// The graphs inside an ONNX node (If, Loop, Scan), seen from outside. Private to io/.
#pragma once

#include <string_view>
#include <unordered_set>
#include <vector>

#include "baechi/base/units.h"
#include "baechi/io/onnx/onnx_model.h"

namespace baechi {

class OnnxNestedGraph {
 public:
  explicit OnnxNestedGraph(const OnnxNode& node);

  // What they read of the values around them, each name once.
  const std::vector<std::string_view>& captured() const { return captured_; }
  // Their own initializers and constants.
  Bytes held() const { return held_; }

 private:
  using Scope = std::vector<const std::unordered_set<std::string_view>*>;

  void add(const OnnxGraph& graph, Scope scope);
  void hold(const OnnxTensor& tensor);
  void use(std::string_view name, const Scope& scope);

  std::vector<std::string_view> captured_;
  std::unordered_set<std::string_view> seen_;
  Bytes held_;
};

}  // namespace baechi
