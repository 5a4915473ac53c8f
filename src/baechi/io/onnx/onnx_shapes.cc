// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/onnx/onnx_shapes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/base/units.h"

namespace baechi {
namespace {

constexpr std::int64_t kHuge = kMostOnnxSize;  // as good as "to the end"

bool has_integers(OnnxElement element) {
  return element == OnnxElement::kInt32 || element == OnnxElement::kInt64 ||
         element == OnnxElement::kBool;
}

}  // namespace

std::int64_t onnx_elements(const OnnxShape& shape) {
  Bytes elements(1);
  for (const std::int64_t size : shape) elements = elements * size;
  return elements.count();
}

void OnnxValue::drop_wrong_lists() {
  const auto is_wrong = [&](std::size_t length) {
    return !shape.has_value() || onnx_elements(*shape) != static_cast<std::int64_t>(length);
  };
  if (integers.has_value() && is_wrong(integers->size())) integers.reset();
  if (numbers.has_value() && is_wrong(numbers->size())) numbers.reset();
}

OnnxShape onnx_broadcast(const OnnxShape& a, const OnnxShape& b) {
  const OnnxShape& longer = a.size() >= b.size() ? a : b;
  const OnnxShape& shorter = a.size() >= b.size() ? b : a;
  OnnxShape result = longer;
  for (std::size_t i = 0; i < shorter.size(); ++i) {
    std::int64_t& size = result[longer.size() - 1 - i];
    const std::int64_t other = shorter[shorter.size() - 1 - i];
    if (size != other && size != 1 && other != 1)
      throw InputError("its inputs have sizes " + std::to_string(size) + " and " +
                       std::to_string(other) + " where they should be equal");
    if (size == 1) size = other;
  }
  return result;
}

const OnnxShape* OnnxOperands::shape(std::size_t input) const {
  if (input >= inputs_.size() || inputs_[input] == nullptr) return nullptr;
  return inputs_[input]->shape.has_value() ? &*inputs_[input]->shape : nullptr;
}

const OnnxIntegers* OnnxOperands::integers(std::size_t input) const {
  if (input >= inputs_.size() || inputs_[input] == nullptr) return nullptr;
  return inputs_[input]->integers.has_value() ? &*inputs_[input]->integers : nullptr;
}

const std::vector<float>* OnnxOperands::numbers(std::size_t input) const {
  if (input >= inputs_.size() || inputs_[input] == nullptr) return nullptr;
  return inputs_[input]->numbers.has_value() ? &*inputs_[input]->numbers : nullptr;
}

OnnxElement OnnxOperands::element(std::size_t input) const {
  if (input >= inputs_.size() || inputs_[input] == nullptr) return OnnxElement::kNone;
  return inputs_[input]->element;
}

std::int64_t OnnxOperands::integer(std::string_view name, std::int64_t otherwise) const {
  const OnnxAttribute* const attribute = node_.find(name);
  if (attribute == nullptr || !attribute->integer.has_value()) return otherwise;
  return std::clamp(*attribute->integer, -kHuge, kHuge);
}

const OnnxIntegers* OnnxOperands::list(std::string_view name) const {
  const OnnxAttribute* const attribute = node_.find(name);
  return attribute == nullptr || attribute->integers.empty() ? nullptr : &attribute->integers;
}

std::string_view OnnxOperands::text(std::string_view name) const {
  const OnnxAttribute* const attribute = node_.find(name);
  return attribute == nullptr ? std::string_view() : attribute->text;
}

const OnnxIntegers* OnnxOperands::list_or_input(std::string_view name, std::size_t input) const {
  const OnnxIntegers* const listed = list(name);
  return listed != nullptr ? listed : integers(input);
}

std::size_t OnnxOperands::axis(std::int64_t axis, std::size_t rank) {
  const auto size = static_cast<std::int64_t>(rank);
  if (axis < -size || axis >= size)
    throw InputError("there is no axis " + std::to_string(axis) + " of " + std::to_string(rank));
  return static_cast<std::size_t>(axis < 0 ? axis + size : axis);
}

void OnnxOperands::set(std::size_t output, OnnxElement element, OnnxShape shape) {
  if (output >= outputs_.size()) return;
  if (shape.size() > kMostOnnxDimensions)
    throw InputError("an output would have more than 64 dimensions");
  for (const std::int64_t size : shape)
    if (size < 0 || size > kMostOnnxSize)
      throw InputError("an output would have a dimension of " + std::to_string(size));
  outputs_[output].element = element;
  outputs_[output].shape = std::move(shape);
}

void OnnxOperands::set_element(std::size_t output, OnnxElement element) {
  if (output < outputs_.size()) outputs_[output].element = element;
}

void OnnxOperands::set_integers(std::size_t output, OnnxElement element, OnnxShape shape,
                                OnnxIntegers integers) {
  constexpr std::size_t kMost = 64;
  set(output, element, std::move(shape));
  if (output >= outputs_.size() || !has_integers(element) || integers.size() > kMost) return;
  outputs_[output].integers = std::move(integers);
  outputs_[output].drop_wrong_lists();
}

void OnnxOperands::like(std::size_t output, std::size_t input) {
  if (const OnnxShape* const same = shape(input))
    set(output, element(input), *same);
  else
    set_element(output, element(input));
}

void infer_onnx_outputs(OnnxOperands& operands) {
  const std::string_view domain = operands.node().domain;
  if (!domain.empty() && domain != "com.microsoft") return;  // another's operator of that name
  for (const auto rules : {onnx_elementwise_rules(), onnx_layout_rules(), onnx_choice_rules(),
                           onnx_window_rules(), onnx_matrix_rules()}) {
    const auto at = std::ranges::lower_bound(rules, operands.node().op, {}, &OnnxShapeEntry::op);
    if (at == rules.end() || at->op != operands.node().op) continue;
    at->rule(operands);
    return;
  }
}

}  // namespace baechi
