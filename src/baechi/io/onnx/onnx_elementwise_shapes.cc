// SPDX-License-Identifier: Apache-2.0
// Operators whose outputs have the shape of their inputs, broadcast or reduced.
#include <algorithm>
#include <array>
#include <functional>
#include <string>

#include "baechi/base/error.h"
#include "baechi/base/overflow.h"
#include "baechi/io/onnx/onnx_shapes.h"

namespace baechi {
namespace {

void same(OnnxOperands& op) { op.like(0, 0); }

// Numbers that shapes may be computed from pass through unchanged.
void pass_on(OnnxOperands& op) {
  op.like(0, 0);
  if (const OnnxIntegers* const values = op.integers(0); values && op.shape(0) != nullptr)
    op.set_integers(0, op.element(0), *op.shape(0), *values);
}

void cast(OnnxOperands& op) {
  const auto to = static_cast<OnnxElement>(op.integer("to", 0));
  pass_on(op);
  op.set_element(0, to);
  if (to != OnnxElement::kInt32 && to != OnnxElement::kInt64 && op.num_outputs() > 0)
    op.outputs()[0].integers.reset();
}

void cast_like(OnnxOperands& op) {
  op.like(0, 0);
  op.set_element(0, op.element(1));
}

void like_of_type(OnnxOperands& op) {
  op.like(0, 0);
  const auto wanted = static_cast<OnnxElement>(op.integer("dtype", 0));
  if (wanted != OnnxElement::kNone) op.set_element(0, wanted);
}

void truth_like(OnnxOperands& op) {
  op.like(0, 0);
  op.set_element(0, OnnxElement::kBool);
}

void dropout(OnnxOperands& op) {
  op.like(0, 0);
  op.like(1, 0);
  op.set_element(1, OnnxElement::kBool);
}

// Mean and spread are kept per position in front of `axis`.
void layer_normalization(OnnxOperands& op) {
  op.like(0, 0);
  const OnnxShape* const x = op.shape(0);
  if (x == nullptr) return;
  OnnxShape kept = *x;
  for (std::size_t i = OnnxOperands::axis(op.integer("axis", -1), x->size()); i < kept.size(); ++i)
    kept[i] = 1;
  op.set(1, OnnxElement::kFloat, kept);
  op.set(2, OnnxElement::kFloat, kept);
}

// The same, with the sum of input and residual as the last output.
void skip_layer_normalization(OnnxOperands& op) {
  op.like(0, 0);
  op.like(3, 0);
}

void batch_normalization(OnnxOperands& op) {
  op.like(0, 0);
  op.like(1, 3);
  op.like(2, 4);
}

void quantize(OnnxOperands& op) {
  op.like(0, 0);
  const OnnxElement zero_point = op.element(2);
  const auto wanted = static_cast<OnnxElement>(op.integer("output_dtype", 0));
  op.set_element(0, wanted != OnnxElement::kNone       ? wanted
                    : zero_point != OnnxElement::kNone ? zero_point
                                                       : OnnxElement::kUint8);
}

void dequantize(OnnxOperands& op) {
  op.like(0, 0);
  op.set_element(0, op.element(1));
}

void dynamic_quantize(OnnxOperands& op) {
  op.like(0, 0);
  op.set_element(0, OnnxElement::kUint8);
  op.set(1, OnnxElement::kFloat, {});
  op.set(2, OnnxElement::kUint8, {});
}

bool broadcast_inputs(const OnnxOperands& op, OnnxShape& result) {
  for (std::size_t i = 0; i < op.num_inputs(); ++i) {
    if (op.shape(i) == nullptr) return false;
    result = onnx_broadcast(result, *op.shape(i));
  }
  return true;
}

void broadcast(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  OnnxShape shape;
  if (broadcast_inputs(op, shape)) op.set(0, op.element(0), shape);
}

// Arithmetic on lists of sizes. One list may be a single number.
template <class Arithmetic>
void compute(OnnxOperands& op, const Arithmetic& arithmetic) {
  broadcast(op);
  if (op.num_inputs() != 2 || op.num_outputs() == 0) return;
  const OnnxIntegers *const a = op.integers(0), *const b = op.integers(1);
  if (a == nullptr || b == nullptr || a->empty() || b->empty()) return;
  if (a->size() != b->size() && a->size() != 1 && b->size() != 1) return;
  OnnxIntegers result(std::max(a->size(), b->size()));
  for (std::size_t i = 0; i < result.size(); ++i)
    if (!arithmetic(a->size() == 1 ? a->front() : (*a)[i], b->size() == 1 ? b->front() : (*b)[i],
                    result[i]))
      return;
  if (const auto shape = op.outputs()[0].shape; shape.has_value())
    op.set_integers(0, op.element(0), *shape, std::move(result));
}

using Number = std::int64_t;
void add(OnnxOperands& op) {
  compute(op, [](Number a, Number b, Number& c) { return !add_overflows(a, b, c); });
}
void subtract(OnnxOperands& op) {
  compute(op, [](Number a, Number b, Number& c) { return !subtract_overflows(a, b, c); });
}
void multiply(OnnxOperands& op) {
  compute(op, [](Number a, Number b, Number& c) { return !multiply_overflows(a, b, c); });
}
void divide(OnnxOperands& op) {
  compute(op, [](Number a, Number b, Number& c) {
    if (b == 0 || b == -1) return false;
    c = a / b;
    return true;
  });
}
void modulo(OnnxOperands& op) {
  compute(op, [](Number a, Number b, Number& c) {
    if (b <= 0 || a < 0) return false;
    c = a % b;
    return true;
  });
}
void smallest(OnnxOperands& op) {
  compute(op, [](Number a, Number b, Number& c) {
    c = std::min(a, b);
    return true;
  });
}
void largest(OnnxOperands& op) {
  compute(op, [](Number a, Number b, Number& c) {
    c = std::max(a, b);
    return true;
  });
}

void compare(OnnxOperands& op) {
  broadcast(op);
  op.set_element(0, OnnxElement::kBool);
}

// Of sizes: exporters ask which ones are -1.
void equal(OnnxOperands& op) {
  compute(op, [](Number a, Number b, Number& c) {
    c = a == b ? 1 : 0;
    return true;
  });
  op.set_element(0, OnnxElement::kBool);
}

// The condition comes first.
void where(OnnxOperands& op) {
  broadcast(op);
  op.set_element(0, op.element(1));
  const OnnxIntegers *const which = op.integers(0), *const yes = op.integers(1),
                            *const no = op.integers(2);
  if (!which || !yes || !no || op.num_outputs() == 0 || !op.outputs()[0].shape.has_value()) return;
  const std::size_t size = std::max({which->size(), yes->size(), no->size()});
  const auto fits = [&](const OnnxIntegers* list) {
    return list->size() == 1 || list->size() == size;
  };
  if (which->empty() || !fits(which) || !fits(yes) || !fits(no)) return;
  const auto at = [](const OnnxIntegers& list, std::size_t i) {
    return list[list.size() == 1 ? 0 : i];
  };
  OnnxIntegers result;
  for (std::size_t i = 0; i < size; ++i)
    result.push_back(at(*which, i) != 0 ? at(*yes, i) : at(*no, i));
  const OnnxShape shape = *op.outputs()[0].shape;
  op.set_integers(0, op.element(1), shape, std::move(result));
}

void reduce(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const OnnxShape* const x = op.shape(0);
  const bool has_axes =
      op.list("axes") != nullptr || (op.num_inputs() > 1 && op.shape(1) != nullptr);
  const OnnxIntegers* const axes = op.list_or_input("axes", 1);
  if (x == nullptr || (has_axes && axes == nullptr)) return;
  const bool all = axes == nullptr || axes->empty();
  if (all && op.integer("noop_with_empty_axes", 0) != 0) return op.like(0, 0);
  std::vector<bool> reduced(x->size(), all);
  if (!all)
    for (const std::int64_t axis : *axes) reduced[OnnxOperands::axis(axis, x->size())] = true;
  OnnxShape result;
  for (std::size_t i = 0; i < x->size(); ++i) {
    if (!reduced[i]) result.push_back((*x)[i]);
    if (reduced[i] && op.integer("keepdims", 1) != 0) result.push_back(1);
  }
  op.set(0, op.element(0), result);
}

void reduce_product(OnnxOperands& op) {
  reduce(op);
  const OnnxIntegers* const values = op.integers(0);
  if (values == nullptr || op.num_outputs() == 0) return;
  const auto shape = op.outputs()[0].shape;
  if (!shape.has_value() || onnx_elements(*shape) != 1) return;
  Number product = 1;
  for (const Number value : *values)
    if (multiply_overflows(product, value, product)) return;
  op.set_integers(0, op.element(0), *shape, {product});
}

void arg_reduce(OnnxOperands& op) {
  const OnnxShape* const x = op.shape(0);
  op.set_element(0, OnnxElement::kInt64);
  if (x == nullptr) return;
  OnnxShape result = *x;
  const std::size_t axis = OnnxOperands::axis(op.integer("axis", 0), x->size());
  if (op.integer("keepdims", 1) != 0)
    result[axis] = 1;
  else
    result.erase(result.begin() + static_cast<std::ptrdiff_t>(axis));
  op.set(0, OnnxElement::kInt64, result);
}

constexpr std::array<OnnxShapeEntry, 116> kElementwiseRules{{
    {"Abs", same},
    {"Acos", same},
    {"Acosh", same},
    {"Add", add},
    {"And", compare},
    {"ArgMax", arg_reduce},
    {"ArgMin", arg_reduce},
    {"Asin", same},
    {"Asinh", same},
    {"Atan", same},
    {"Atanh", same},
    {"BatchNormalization", batch_normalization},
    {"Bernoulli", like_of_type},
    {"BiasGelu", same},
    {"BitShift", broadcast},
    {"BitwiseAnd", broadcast},
    {"BitwiseNot", same},
    {"BitwiseOr", broadcast},
    {"BitwiseXor", broadcast},
    {"Cast", cast},
    {"CastLike", cast_like},
    {"Ceil", same},
    {"Celu", same},
    {"Clip", same},
    {"Cos", same},
    {"Cosh", same},
    {"CumProd", same},
    {"CumSum", same},
    {"DequantizeLinear", dequantize},
    {"Div", divide},
    {"Dropout", dropout},
    {"DynamicQuantizeLinear", dynamic_quantize},
    {"Elu", same},
    {"Equal", equal},
    {"Erf", same},
    {"Exp", same},
    {"EyeLike", like_of_type},
    {"FastGelu", same},
    {"Floor", same},
    {"Gelu", same},
    {"Greater", compare},
    {"GreaterOrEqual", compare},
    {"GroupNormalization", same},
    {"HardSigmoid", same},
    {"HardSwish", same},
    {"Hardmax", same},
    {"Identity", pass_on},
    {"InstanceNormalization", same},
    {"IsInf", truth_like},
    {"IsNaN", truth_like},
    {"LRN", same},
    {"LayerNormalization", layer_normalization},
    {"LeakyRelu", same},
    {"Less", compare},
    {"LessOrEqual", compare},
    {"Log", same},
    {"LogSoftmax", same},
    {"LpNormalization", same},
    {"Max", largest},
    {"Mean", broadcast},
    {"MeanVarianceNormalization", same},
    {"Min", smallest},
    {"Mish", same},
    {"Mod", modulo},
    {"Mul", multiply},
    {"Neg", same},
    {"Not", truth_like},
    {"Or", compare},
    {"PRelu", same},
    {"Pow", broadcast},
    {"QuantizeLinear", quantize},
    {"QuickGelu", same},
    {"RMSNormalization", layer_normalization},
    {"RandomNormalLike", like_of_type},
    {"RandomUniformLike", like_of_type},
    {"Reciprocal", same},
    {"ReduceL1", reduce},
    {"ReduceL2", reduce},
    {"ReduceLogSum", reduce},
    {"ReduceLogSumExp", reduce},
    {"ReduceMax", reduce},
    {"ReduceMean", reduce},
    {"ReduceMin", reduce},
    {"ReduceProd", reduce_product},
    {"ReduceSum", reduce},
    {"ReduceSumSquare", reduce},
    {"Relu", same},
    {"ReverseSequence", same},
    {"RotaryEmbedding", same},
    {"Round", same},
    {"Scatter", same},
    {"ScatterElements", same},
    {"ScatterND", same},
    {"Selu", same},
    {"Shrink", same},
    {"Sigmoid", same},
    {"Sign", same},
    {"SimplifiedLayerNormalization", layer_normalization},
    {"Sin", same},
    {"Sinh", same},
    {"SkipLayerNormalization", skip_layer_normalization},
    {"SkipSimplifiedLayerNormalization", skip_layer_normalization},
    {"Softmax", same},
    {"Softplus", same},
    {"Softsign", same},
    {"Sqrt", same},
    {"Sub", subtract},
    {"Sum", broadcast},
    {"Swish", same},
    {"Tan", same},
    {"Tanh", same},
    {"TensorScatter", same},
    {"ThresholdedRelu", same},
    {"Trilu", same},
    {"Where", where},
    {"Xor", compare},
}};

}  // namespace

std::span<const OnnxShapeEntry> onnx_elementwise_rules() { return kElementwiseRules; }

}  // namespace baechi
