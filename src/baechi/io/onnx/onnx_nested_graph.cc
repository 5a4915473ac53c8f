// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/onnx/onnx_nested_graph.h"

#include <algorithm>

#include "baechi/io/onnx/onnx_work.h"

namespace baechi {

OnnxNestedGraph::OnnxNestedGraph(const OnnxNode& node) {
  for (const OnnxAttribute& attribute : node.attributes)
    for (const OnnxGraph& graph : attribute.graphs) add(graph, {});
}

void OnnxNestedGraph::add(const OnnxGraph& graph, Scope scope) {
  std::unordered_set<std::string_view> own;
  scope.push_back(&own);
  for (const OnnxValueType& input : graph.inputs) own.insert(input.name);
  for (const OnnxTensor& tensor : graph.initializers) {
    own.insert(tensor.name);
    hold(tensor);
  }
  for (const OnnxNode& node : graph.nodes) {
    for (const std::string_view input : node.inputs) use(input, scope);
    for (const OnnxAttribute& attribute : node.attributes) {
      if (node.op == "Constant" && attribute.tensor.has_value()) hold(*attribute.tensor);
      for (const OnnxGraph& inner : attribute.graphs) add(inner, scope);
    }
    own.insert(node.outputs.begin(), node.outputs.end());
  }
  for (const OnnxValueType& output : graph.outputs) use(output.name, scope);
}

void OnnxNestedGraph::hold(const OnnxTensor& tensor) {
  held_ += onnx_bytes({tensor.element, tensor.shape, {}, {}});
}

void OnnxNestedGraph::use(std::string_view name, const Scope& scope) {
  const auto has = [&](const auto* names) { return names->contains(name); };
  if (name.empty() || std::ranges::any_of(scope, has)) return;
  if (seen_.insert(name).second) captured_.push_back(name);
}

}  // namespace baechi
