// SPDX-License-Identifier: Apache-2.0
// What the operators of an ONNX model are called: nodes may share a name, or have none.
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "baechi/io/onnx/onnx.h"

namespace baechi {
namespace {

// Gives every name once; a name that is taken gets a number.
class UniqueNames {
 public:
  std::string take(std::string name) {
    if (taken_.insert(name).second) return name;
    std::size_t& number = numbers_[name];
    while (true) {
      number = std::max<std::size_t>(number + 1, 2);
      std::string numbered = name + "#" + std::to_string(number);
      if (taken_.insert(numbered).second) return numbered;
    }
  }

 private:
  std::unordered_set<std::string> taken_;
  std::unordered_map<std::string, std::size_t> numbers_;
};

}  // namespace

OnnxOperatorNames onnx_operator_names(const OnnxGraph& graph) {
  OnnxOperatorNames names;
  UniqueNames unique;
  for (const OnnxNode& node : graph.nodes) {
    const auto output =
        std::ranges::find_if(node.outputs, [](std::string_view name) { return !name.empty(); });
    names.nodes.push_back(unique.take(std::string(!node.name.empty()             ? node.name
                                                  : output != node.outputs.end() ? *output
                                                                                 : node.op)));
  }
  std::unordered_set<std::string_view> initializers;
  for (const OnnxTensor& tensor : graph.initializers) initializers.insert(tensor.name);
  for (const OnnxValueType& input : graph.inputs)
    names.inputs.push_back(
        initializers.contains(input.name) ? std::string() : unique.take(std::string(input.name)));
  return names;
}

}  // namespace baechi
