// SPDX-License-Identifier: Apache-2.0
// What ONNX operators give out: element types, shapes, and the small lists of numbers that shapes
// are computed from. Private to io/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "baechi/io/onnx/onnx_model.h"

namespace baechi {

// What is known of a value.
struct OnnxValue {
  OnnxElement element = OnnxElement::kNone;
  std::optional<OnnxShape> shape;
  // Up to 64 whole numbers or floats, when they are known.
  std::optional<OnnxIntegers> integers;
  std::optional<std::vector<float>> numbers;

  // A list that is not as long as the shape says is worth nothing.
  void drop_wrong_lists();
};

// An iterator goes by it to an axis.
inline std::ptrdiff_t onnx_offset(std::size_t axis) { return static_cast<std::ptrdiff_t>(axis); }

// The number of elements; throws InputError where 63 bits do not hold it.
std::int64_t onnx_elements(const OnnxShape& shape);

// The larger one of each pair of sizes, matched from the right; a 1 gives way. Throws InputError
// where sizes differ.
OnnxShape onnx_broadcast(const OnnxShape& a, const OnnxShape& b);

// One node with what is known of its inputs (null: left out). Rules set the outputs.
class OnnxOperands {
 public:
  OnnxOperands(const OnnxNode& node, std::span<const OnnxValue* const> inputs)
      : node_(node), inputs_(inputs), outputs_(node.outputs.size()) {}

  const OnnxNode& node() const { return node_; }
  std::size_t num_inputs() const { return inputs_.size(); }
  std::size_t num_outputs() const { return outputs_.size(); }
  const OnnxShape* shape(std::size_t input) const;
  const OnnxIntegers* integers(std::size_t input) const;
  const std::vector<float>* numbers(std::size_t input) const;
  OnnxElement element(std::size_t input) const;

  // Of attributes; numbers so large that sums of them would not fit are cut.
  std::int64_t integer(std::string_view name, std::int64_t otherwise) const;
  const OnnxIntegers* list(std::string_view name) const;
  std::string_view text(std::string_view name) const;
  // A list that is an attribute in old versions of an operator and an input in new ones.
  const OnnxIntegers* list_or_input(std::string_view name, std::size_t input) const;

  // `axis` counted from the front. Throws InputError when the rank has no such axis.
  static std::size_t axis(std::int64_t axis, std::size_t rank);

  void set(std::size_t output, OnnxElement element, OnnxShape shape);
  void set_element(std::size_t output, OnnxElement element);
  // The numbers are kept when they are as many as the shape has elements, and few.
  void set_integers(std::size_t output, OnnxElement element, OnnxShape shape,
                    OnnxIntegers integers);
  void like(std::size_t output, std::size_t input);
  std::vector<OnnxValue>& outputs() { return outputs_; }
  const std::vector<OnnxValue>& outputs() const { return outputs_; }

 private:
  const OnnxNode& node_;
  std::span<const OnnxValue* const> inputs_;
  std::vector<OnnxValue> outputs_;
};

using OnnxShapeRule = void (*)(OnnxOperands&);
struct OnnxShapeEntry {
  std::string_view op;
  OnnxShapeRule rule;
};
// The rules by family; each sorted by name.
std::span<const OnnxShapeEntry> onnx_elementwise_rules();
std::span<const OnnxShapeEntry> onnx_layout_rules();
std::span<const OnnxShapeEntry> onnx_choice_rules();
std::span<const OnnxShapeEntry> onnx_window_rules();
std::span<const OnnxShapeEntry> onnx_matrix_rules();

// Sets what can be told of the outputs; leaves open what cannot. Throws InputError for inputs that
// the operator cannot have.
void infer_onnx_outputs(OnnxOperands& operands);

}  // namespace baechi
