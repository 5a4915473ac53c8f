// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/onnx/onnx_work.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string_view>
#include <unordered_set>

#include "baechi/base/overflow.h"

namespace baechi {
namespace {

using Shape = OnnxShape;

// One FLOP count that does not fit is as good as another.
std::int64_t flop_product(std::initializer_list<std::int64_t> factors) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 60;
  std::int64_t result = 1;
  for (const std::int64_t factor : factors)
    if (multiply_overflows(result, factor, result) || result > kHuge) return kHuge;
  return result;
}

// Nothing runs on a device.
bool is_bookkeeping(std::string_view op) {
  static constexpr std::array<std::string_view, 9> kOps{"Constant", "Dropout", "Flatten",
                                                        "Identity", "Reshape", "Shape",
                                                        "Size",     "Squeeze", "Unsqueeze"};
  return std::ranges::find(kOps, op) != kOps.end();
}

// Only the chosen part of the first input is read.
bool reads_a_part(std::string_view op) {
  return op == "Gather" || op == "GatherElements" || op == "GatherND" || op == "Slice";
}

const Shape* output_shape(const OnnxOperands& op) {
  if (op.num_outputs() == 0 || !op.outputs()[0].shape.has_value()) return nullptr;
  return &*op.outputs()[0].shape;
}

std::int64_t matrix_flops(const OnnxOperands& op, const Shape& out) {
  const Shape* const a = op.shape(0);
  if (a == nullptr || a->empty()) return 0;
  const bool turned = op.integer("transA", 0) != 0 && a->size() >= 2;
  const bool turned_batch = turned && op.integer("transBatchA", 0) != 0;
  const std::size_t inner = turned_batch ? 0 : a->size() - (turned ? 2 : 1);
  return flop_product({2, onnx_elements(out), (*a)[inner]});
}

// Per output element one multiply-add for every entry of the filter that it sees; for transposed
// ones per input element.
std::int64_t convolution_flops(const OnnxOperands& op, const Shape& out) {
  const bool quantized = op.node().op == "QLinearConv";
  const Shape* const filter = op.shape(quantized ? 3 : 1);
  const bool transposed = op.node().op == "ConvTranspose";
  const Shape* const places = transposed ? op.shape(0) : &out;
  if (filter == nullptr || places == nullptr || filter->empty() || filter->front() == 0) return 0;
  return flop_product({2, onnx_elements(*places), onnx_elements(*filter) / filter->front()});
}

// The product of all labels' sizes.
std::int64_t einsum_flops(const OnnxOperands& op, const Shape& out) {
  std::string_view operands = op.text("equation");
  const std::size_t arrow = operands.find("->");
  if (arrow == operands.npos) return 0;
  const std::string_view kept = operands.substr(arrow);
  operands = operands.substr(0, arrow);
  std::int64_t flops = flop_product({2, onnx_elements(out)});
  std::unordered_set<char> summed;
  for (std::size_t i = 0; i < op.num_inputs(); ++i) {
    const std::size_t comma = std::min(operands.find(','), operands.size());
    std::string labels;
    for (const char c : operands.substr(0, comma))
      if (c != ' ') labels += c;
    operands.remove_prefix(std::min(comma + 1, operands.size()));
    const Shape* const x = op.shape(i);
    if (x == nullptr) return 0;
    const std::size_t dots = std::min(labels.find('.'), labels.size());
    for (std::size_t at = 0; at < labels.size(); ++at) {
      const char label = labels[at];
      const bool behind = at > dots;
      const std::size_t axis = behind ? x->size() - (labels.size() - at) : at;
      if (label == '.' || axis >= x->size()) continue;
      if (kept.find(label) == kept.npos && summed.insert(label).second)
        flops = flop_product({flops, (*x)[axis]});
    }
  }
  return flops;
}

// All gates of all steps: weights [directions, gates x hidden, features] and those of the state.
std::int64_t recurrent_flops(const OnnxOperands& op) {
  const Shape *const x = op.shape(0), *const w = op.shape(1), *const r = op.shape(2);
  if (x == nullptr || w == nullptr || r == nullptr || x->size() != 3) return 0;
  const std::int64_t weights = (Bytes(onnx_elements(*w)) + Bytes(onnx_elements(*r))).count();
  return flop_product({2, x->at(0), x->at(1), weights});
}

// Keys of earlier steps: [batch, heads, steps, size], or both keys and values behind one axis more.
std::int64_t past_steps(const OnnxOperands& op) {
  const std::string_view name = op.node().op;
  const Shape* const past = op.shape(name == "GroupQueryAttention"  ? 3
                                     : name == "MultiHeadAttention" ? 6
                                                                    : 4);
  return past != nullptr && past->size() >= 4 ? (*past)[past->size() - 2] : 0;
}

// Scores and their sum over the values; heads x size is the last axis, or the product of two. With
// ONNX Runtime's weights [features, queries + keys + values] their product comes first.
std::int64_t attention_flops(const OnnxOperands& op, const Shape& out) {
  const Shape *const x = op.shape(0), *const k = op.shape(1);
  if (x == nullptr || k == nullptr || k->size() < 2) return 0;
  const bool has_weights = k->size() == 2 && x->size() == 3;
  if (k->size() == 2 && !has_weights) return 0;
  const std::int64_t steps = has_weights ? x->at(1) : (*k)[k->size() == 4 ? 2 : 1];
  const std::int64_t products = flop_product({4, onnx_elements(out), steps + past_steps(op)});
  return products + (has_weights ? flop_product({2, onnx_elements(*x), k->back()}) : 0);
}

std::int64_t most_elements(const OnnxOperands& op) {
  std::int64_t most = 0;
  for (const OnnxValue& value : op.outputs())
    if (value.shape.has_value()) most = std::max(most, onnx_elements(*value.shape));
  if (reads_a_part(op.node().op)) return most;
  for (std::size_t i = 0; i < op.num_inputs(); ++i)
    if (const Shape* const shape = op.shape(i)) most = std::max(most, onnx_elements(*shape));
  return most;
}

std::int64_t flops_of(const OnnxOperands& op) {
  const std::string_view name = op.node().op;
  const Shape* const out = output_shape(op);
  if (name == "LSTM" || name == "GRU" || name == "RNN") return recurrent_flops(op);
  if (out == nullptr) return most_elements(op);
  if (name == "Einsum") return einsum_flops(op, *out);
  if (name == "MatMulNBits") return flop_product({2, onnx_elements(*out), op.integer("K", 1)});
  if (name.find("MatMul") != name.npos || name.find("Gemm") != name.npos)
    return matrix_flops(op, *out);
  if (name.find("Conv") != name.npos) return convolution_flops(op, *out);
  if (name.ends_with("Attention")) return attention_flops(op, *out);
  return most_elements(op);
}

Precision precision_of(const OnnxOperands& op) {
  for (std::size_t i = 0; i < op.num_inputs(); ++i) {
    if (op.element(i) == OnnxElement::kHalf) return Precision::kFp16;
    if (op.element(i) == OnnxElement::kBfloat16) return Precision::kBf16;
  }
  return Precision::kFp32;
}

}  // namespace

Bytes onnx_bytes(const OnnxValue& value) {
  if (!value.shape.has_value()) return Bytes(0);
  const Bytes bits = Bytes(onnx_elements(*value.shape)) * element_bits(value.element);
  return Bytes(bits.count() / 8 + (bits.count() % 8 != 0 ? 1 : 0));
}

Work onnx_work(const OnnxOperands& op) {
  if (is_bookkeeping(op.node().op)) return {.kernel = false};
  Bytes written, read;
  for (const OnnxValue& value : op.outputs()) written += onnx_bytes(value);
  for (std::size_t i = 0; i < op.num_inputs(); ++i) {
    const Shape* const shape = op.shape(i);
    if (shape == nullptr) continue;
    OnnxValue input{.element = op.element(i), .shape = *shape, .integers = {}, .numbers = {}};
    const Bytes all = onnx_bytes(input);
    read += i == 0 && reads_a_part(op.node().op) ? std::min(all, written) : all;
  }
  return {.flops = flops_of(op),
          .bytes = read + written,
          .kernel = true,
          .precision = precision_of(op)};
}

}  // namespace baechi
