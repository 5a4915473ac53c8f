// SPDX-License-Identifier: Apache-2.0
// Operators that make tensors, measure them or choose from them. What depends on the data is taken
// at its largest.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/base/overflow.h"
#include "baechi/io/onnx/onnx_shapes.h"

namespace baechi {
namespace {

using Shape = OnnxShape;

void constant(OnnxOperands& op) {
  if (const OnnxAttribute* const value = op.node().find("value"); value && value->tensor) {
    op.set(0, value->tensor->element, value->tensor->shape);
    if (value->tensor->integers.has_value())
      op.set_integers(0, value->tensor->element, value->tensor->shape, *value->tensor->integers);
    if (op.num_outputs() > 0) op.outputs()[0].numbers = value->tensor->numbers;
  } else if (const auto* const one = op.node().find("value_int"); one && one->integer) {
    op.set_integers(0, OnnxElement::kInt64, {}, {*one->integer});
  } else if (const OnnxAttribute* const many = op.node().find("value_ints")) {
    const auto size = static_cast<std::int64_t>(many->integers.size());
    op.set_integers(0, OnnxElement::kInt64, {size}, many->integers);
  } else if (op.node().find("value_float") != nullptr) {
    op.set(0, OnnxElement::kFloat, {});
  } else if (const OnnxAttribute* const floats = op.node().find("value_floats")) {
    op.set(0, OnnxElement::kFloat, {static_cast<std::int64_t>(floats->list_length)});
  } else if (op.node().find("value_string") != nullptr) {
    op.set(0, OnnxElement::kText, {});
  } else if (const OnnxAttribute* const texts = op.node().find("value_strings")) {
    op.set(0, OnnxElement::kText, {static_cast<std::int64_t>(texts->list_length)});
  }
}

void constant_of_shape(OnnxOperands& op) {
  const OnnxAttribute* const value = op.node().find("value");
  const bool given = value != nullptr && value->tensor.has_value();
  const OnnxElement element = given ? value->tensor->element : OnnxElement::kFloat;
  op.set_element(0, element);
  const OnnxIntegers* const sizes = op.integers(0);
  if (sizes == nullptr) return;
  op.set(0, element, *sizes);
  const std::int64_t count = onnx_elements(*sizes);
  if (count <= 64 && given && value->tensor->integers && value->tensor->integers->size() == 1)
    op.set_integers(
        0, element, *sizes,
        OnnxIntegers(static_cast<std::size_t>(count), value->tensor->integers->front()));
}

void random(OnnxOperands& op) {
  if (const OnnxIntegers* const shape = op.list("shape"))
    op.set(0, static_cast<OnnxElement>(op.integer("dtype", 1)), *shape);
}

void range(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const OnnxIntegers *const start = op.integers(0), *const limit = op.integers(1),
                            *const delta = op.integers(2);
  if (!start || !limit || !delta || start->size() != 1 || limit->size() != 1 || delta->size() != 1)
    return;
  const std::int64_t step = delta->front();
  std::int64_t distance = 0;
  if (step == 0 || subtract_overflows(limit->front(), start->front(), distance)) return;
  if (distance == INT64_MIN || step == INT64_MIN) return;
  const bool runs = (distance > 0) == (step > 0);
  const std::int64_t count =
      !runs || distance == 0 ? 0 : (std::abs(distance) - 1) / std::abs(step) + 1;
  op.set(0, op.element(0), {count});
  if (count > 64) return;
  OnnxIntegers values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(start->front() + i * step);
  op.set_integers(0, op.element(0), {count}, std::move(values));
}

void shape_of(OnnxOperands& op) {
  op.set_element(0, OnnxElement::kInt64);
  const Shape* const x = op.shape(0);
  if (x == nullptr) return;
  const auto rank = static_cast<std::int64_t>(x->size());
  const auto bound = [&](std::int64_t index) {
    return std::clamp<std::int64_t>(index < 0 ? index + rank : index, 0, rank);
  };
  const std::int64_t begin = bound(op.integer("start", 0));
  const std::int64_t end = std::max(begin, bound(op.integer("end", rank)));
  op.set_integers(0, OnnxElement::kInt64, {end - begin}, {x->begin() + begin, x->begin() + end});
}

void size_of(OnnxOperands& op) {
  op.set(0, OnnxElement::kInt64, {});
  if (const Shape* const x = op.shape(0))
    op.set_integers(0, OnnxElement::kInt64, {}, {onnx_elements(*x)});
}

void gather(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const Shape *const x = op.shape(0), *const indices = op.shape(1);
  if (x == nullptr || indices == nullptr) return;
  const std::size_t axis = OnnxOperands::axis(op.integer("axis", 0), x->size());
  Shape result(x->begin(), x->begin() + onnx_offset(axis));
  result.insert(result.end(), indices->begin(), indices->end());
  result.insert(result.end(), x->begin() + onnx_offset(axis) + 1, x->end());
  op.set(0, op.element(0), result);
  const OnnxIntegers *const values = op.integers(0), *const which = op.integers(1);
  if (values == nullptr || which == nullptr || x->size() != 1) return;
  OnnxIntegers chosen;
  for (const std::int64_t index : *which)
    chosen.push_back((*values)[OnnxOperands::axis(index, values->size())]);
  op.set_integers(0, op.element(0), result, std::move(chosen));
}

void gather_elements(OnnxOperands& op) {
  op.like(0, 1);
  op.set_element(0, op.element(0));
}

void gather_nd(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const Shape *const x = op.shape(0), *const indices = op.shape(1);
  if (x == nullptr || indices == nullptr || indices->empty()) return;
  const std::int64_t depth = op.integer("batch_dims", 0) + indices->back();
  if (depth < 0 || depth > static_cast<std::int64_t>(x->size()))
    throw InputError("its indices are deeper than the tensor");
  Shape result(indices->begin(), indices->end() - 1);
  result.insert(result.end(), x->begin() + depth, x->end());
  op.set(0, op.element(0), result);
}

void one_hot(OnnxOperands& op) {
  op.set_element(0, op.element(2));
  const Shape* const x = op.shape(0);
  const OnnxIntegers* const depth = op.integers(1);
  if (x == nullptr || depth == nullptr || depth->size() != 1) return;
  Shape result = *x;
  result.insert(
      result.begin() + onnx_offset(OnnxOperands::axis(op.integer("axis", -1), x->size() + 1)),
      depth->front());
  op.set(0, op.element(2), result);
}

void top_k(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  op.set_element(1, OnnxElement::kInt64);
  const Shape* const x = op.shape(0);
  const OnnxIntegers* const k = op.integers(1);
  if (x == nullptr || (k == nullptr && op.node().find("k") == nullptr)) return;
  Shape result = *x;
  result[OnnxOperands::axis(op.integer("axis", -1), x->size())] =
      k != nullptr && k->size() == 1 ? k->front() : op.integer("k", 1);
  op.set(0, op.element(0), result);
  op.set(1, OnnxElement::kInt64, result);
}

// What depends on the data is taken at its largest.
void non_zero(OnnxOperands& op) {
  op.set_element(0, OnnxElement::kInt64);
  if (const Shape* const x = op.shape(0))
    op.set(0, OnnxElement::kInt64, {static_cast<std::int64_t>(x->size()), onnx_elements(*x)});
}

void unique(OnnxOperands& op) {
  const Shape* const x = op.shape(0);
  op.set_element(0, op.element(0));
  if (x == nullptr) return;
  const bool flat = op.node().find("axis") == nullptr;
  const Shape all = flat ? Shape{onnx_elements(*x)} : *x;
  const std::int64_t count =
      flat ? all.front() : (*x)[OnnxOperands::axis(op.integer("axis", 0), x->size())];
  op.set(0, op.element(0), all);
  for (std::size_t i = 1; i < 4; ++i) op.set(i, OnnxElement::kInt64, {count});
}

void compress(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const Shape* const x = op.shape(0);
  if (x == nullptr) return;
  op.set(0, op.element(0), op.node().find("axis") == nullptr ? Shape{onnx_elements(*x)} : *x);
}

// Boxes x classes, at most: three numbers each.
void non_max_suppression(OnnxOperands& op) {
  op.set_element(0, OnnxElement::kInt64);
  const Shape* const scores = op.shape(1);
  if (scores == nullptr || scores->size() != 3) return;
  std::int64_t per_class = scores->at(2);
  if (const OnnxIntegers* const most = op.integers(2); most != nullptr && most->size() == 1)
    per_class = std::clamp<std::int64_t>(most->front(), 0, per_class);
  op.set(0, OnnxElement::kInt64, {onnx_elements({scores->at(0), scores->at(1), per_class}), 3});
}

constexpr std::array<OnnxShapeEntry, 16> kChoiceRules{{
    {"Compress", compress},
    {"Constant", constant},
    {"ConstantOfShape", constant_of_shape},
    {"Gather", gather},
    {"GatherElements", gather_elements},
    {"GatherND", gather_nd},
    {"NonMaxSuppression", non_max_suppression},
    {"NonZero", non_zero},
    {"OneHot", one_hot},
    {"RandomNormal", random},
    {"RandomUniform", random},
    {"Range", range},
    {"Shape", shape_of},
    {"Size", size_of},
    {"TopK", top_k},
    {"Unique", unique},
}};

}  // namespace

std::span<const OnnxShapeEntry> onnx_choice_rules() { return kChoiceRules; }

}  // namespace baechi
