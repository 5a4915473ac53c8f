// SPDX-License-Identifier: Apache-2.0
// Matrix products, attention and recurrent layers.
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/io/onnx/onnx_shapes.h"

namespace baechi {
namespace {

using Shape = OnnxShape;

void multiply_matrices(OnnxOperands& op, std::size_t right, OnnxElement element) {
  op.set_element(0, element);
  const Shape *const left = op.shape(0), *const other = op.shape(right);
  if (left == nullptr || other == nullptr || left->empty() || other->empty()) return;
  Shape a = *left, b = *other;
  if (a.size() == 1) a.insert(a.begin(), 1);
  if (b.size() == 1) b.push_back(1);
  // ONNX Runtime's FusedMatMul: the first axis belongs behind the batch.
  if (op.integer("transBatchA", 0) != 0) std::rotate(a.begin(), a.begin() + 1, a.end() - 1);
  if (op.integer("transBatchB", 0) != 0) std::rotate(b.begin(), b.begin() + 1, b.end() - 1);
  if (op.integer("transA", 0) != 0) std::swap(a[a.size() - 1], a[a.size() - 2]);
  if (op.integer("transB", 0) != 0) std::swap(b[b.size() - 1], b[b.size() - 2]);
  if (a.back() != b[b.size() - 2])
    throw InputError("it multiplies rows of " + std::to_string(a.back()) + " with columns of " +
                     std::to_string(b[b.size() - 2]));
  Shape result = onnx_broadcast(Shape(a.begin(), a.end() - 2), Shape(b.begin(), b.end() - 2));
  if (left->size() > 1) result.push_back(a[a.size() - 2]);
  if (other->size() > 1) result.push_back(b.back());
  op.set(0, element, result);
}

void mat_mul(OnnxOperands& op) { multiply_matrices(op, 1, op.element(0)); }
void mat_mul_integer(OnnxOperands& op) { multiply_matrices(op, 1, OnnxElement::kInt32); }
void mat_mul_integer_to_float(OnnxOperands& op) { multiply_matrices(op, 1, OnnxElement::kFloat); }
void q_linear_mat_mul(OnnxOperands& op) { multiply_matrices(op, 3, op.element(7)); }

// Weights of few bits in blocks: [..., K] by K x N, both named by attributes.
void mat_mul_n_bits(OnnxOperands& op) {
  op.like(0, 0);
  const Shape* const x = op.shape(0);
  if (x == nullptr || x->empty()) return;
  Shape result = *x;
  result.back() = op.integer("N", 0);
  op.set(0, op.element(0), result);
}

// Labels behind "..." are matched from the right.
void einsum(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  std::string equation;
  for (const char c : op.text("equation"))
    if (c != ' ') equation += c;
  const std::size_t arrow = equation.find("->");
  if (arrow == equation.npos) return;
  std::unordered_map<char, std::int64_t> sizes;
  Shape ellipsis;
  std::string_view operands = std::string_view(equation).substr(0, arrow);
  for (std::size_t i = 0; i < op.num_inputs(); ++i) {
    const std::size_t comma = std::min(operands.find(','), operands.size());
    const std::string_view labels = operands.substr(0, comma);
    operands.remove_prefix(std::min(comma + 1, operands.size()));
    const Shape* const x = op.shape(i);
    if (x == nullptr) return;
    const std::size_t dots = std::min(labels.find("..."), labels.size());
    const std::size_t behind = dots == labels.size() ? 0 : labels.size() - dots - 3;
    if (x->size() < dots + behind || (dots == labels.size() && x->size() != dots))
      throw InputError("its equation names other axes than its inputs have");
    for (std::size_t axis = 0; axis < dots; ++axis) sizes[labels[axis]] = (*x)[axis];
    for (std::size_t axis = 0; axis < behind; ++axis)
      sizes[labels[labels.size() - 1 - axis]] = (*x)[x->size() - 1 - axis];
    ellipsis = onnx_broadcast(ellipsis, Shape(x->begin() + static_cast<std::ptrdiff_t>(dots),
                                              x->end() - static_cast<std::ptrdiff_t>(behind)));
  }
  Shape result;
  for (std::string_view out = std::string_view(equation).substr(arrow + 2); !out.empty();) {
    const bool dots = out.starts_with("...");
    if (dots) result.insert(result.end(), ellipsis.begin(), ellipsis.end());
    if (!dots) result.push_back(sizes.contains(out.front()) ? sizes.at(out.front()) : 1);
    out.remove_prefix(dots ? 3 : 1);
  }
  op.set(0, op.element(0), result);
}

// X is [sequence, batch, features] (the first two swapped with layout 1).
void recurrent(OnnxOperands& op) {
  for (std::size_t i = 0; i < op.num_outputs(); ++i) op.set_element(i, op.element(0));
  const Shape* const x = op.shape(0);
  const std::int64_t hidden = op.integer("hidden_size", 0);
  if (x == nullptr || x->size() != 3 || hidden <= 0) return;
  const std::int64_t directions = op.text("direction") == "bidirectional" ? 2 : 1;
  const bool batch_first = op.integer("layout", 0) != 0;
  const std::int64_t steps = x->at(batch_first ? 1 : 0), batch = x->at(batch_first ? 0 : 1);
  op.set(0, op.element(0),
         batch_first ? Shape{batch, steps, directions, hidden}
                     : Shape{steps, directions, batch, hidden});
  for (std::size_t i = 1; i < 3; ++i)
    op.set(i, op.element(0),
           batch_first ? Shape{batch, directions, hidden} : Shape{directions, batch, hidden});
}

// A tensor of keys or values as [batch, heads, sequence, size], from that or from
// [batch, sequence, heads x size].
std::optional<Shape> by_heads(const OnnxOperands& op, std::size_t input, std::int64_t heads) {
  const Shape* const x = op.shape(input);
  if (x == nullptr || x->size() < 3 || x->size() > 4) return std::nullopt;
  if (x->size() == 4) return *x;
  if (heads <= 0) return std::nullopt;
  return Shape{x->at(0), heads, x->at(1), x->at(2) / heads};
}

// Of ONNX Runtime: [batch, sequence, features] by [features, queries + keys + values], all heads
// side by side. Outputs: the result, present keys and values (behind the past ones, input 4).
void packed_attention(OnnxOperands& op) {
  for (std::size_t i = 0; i < op.num_outputs(); ++i) op.set_element(i, op.element(0));
  const Shape *const x = op.shape(0), *const w = op.shape(1), *const past = op.shape(4);
  if (x == nullptr || x->size() != 3 || w == nullptr || w->size() != 2) return;
  const OnnxIntegers* const sizes = op.list("qkv_hidden_sizes");
  const std::int64_t hidden =
      sizes != nullptr && sizes->size() == 3 ? sizes->back() : w->back() / 3;
  op.set(0, op.element(0), {x->at(0), x->at(1), hidden});
  const std::int64_t heads = std::max<std::int64_t>(1, op.integer("num_heads", 1));
  const std::int64_t before = past != nullptr && past->size() == 5 ? past->at(3) : 0;
  op.set(1, op.element(0), {2, x->at(0), heads, before + x->at(1), hidden / heads});
}

// Outputs: the result, present keys and values (behind the past ones, inputs 4 and 5), the scores.
void attention(OnnxOperands& op) {
  if (!op.node().domain.empty()) return packed_attention(op);
  for (std::size_t i = 0; i < op.num_outputs(); ++i) op.set_element(i, op.element(0));
  const std::int64_t q_heads = op.integer("q_num_heads", 0), heads = op.integer("kv_num_heads", 0);
  const std::optional<Shape> q = by_heads(op, 0, q_heads);
  std::optional<Shape> k = by_heads(op, 1, heads), v = by_heads(op, 2, heads);
  if (!q.has_value() || !k.has_value() || !v.has_value()) return;
  for (const auto& [present, past] : {std::pair{&*k, 4}, std::pair{&*v, 5}})
    if (const Shape* const before = op.shape(static_cast<std::size_t>(past));
        before != nullptr && before->size() == 4)
      present->at(2) += before->at(2);
  if (op.shape(0)->size() == 4)
    op.set(0, op.element(0), {q->at(0), q->at(1), q->at(2), v->at(3)});
  else
    op.set(0, op.element(0), {q->at(0), q->at(2), onnx_elements({q->at(1), v->at(3)})});
  op.set(1, op.element(0), *k);
  op.set(2, op.element(0), *v);
  op.set(3, op.element(0), {q->at(0), q->at(1), q->at(2), k->at(2)});
}

// Of ONNX Runtime: queries as [batch, sequence, heads x size].
void multi_head_attention(OnnxOperands& op) {
  for (std::size_t i = 0; i < op.num_outputs(); ++i) op.set_element(i, op.element(0));
  const Shape *const q = op.shape(0), *const v = op.shape(2);
  if (q == nullptr || q->size() != 3) return;
  Shape result = *q;
  if (v != nullptr && v->size() == 3 && op.node().op == "MultiHeadAttention")
    result.back() = v->back();
  op.set(0, op.element(0), result);
}

constexpr std::array<OnnxShapeEntry, 16> kMatrixRules{{
    {"Attention", attention},
    {"DynamicQuantizeMatMul", mat_mul},
    {"Einsum", einsum},
    {"FusedGemm", mat_mul},
    {"FusedMatMul", mat_mul},
    {"GRU", recurrent},
    {"Gemm", mat_mul},
    {"GroupQueryAttention", multi_head_attention},
    {"LSTM", recurrent},
    {"MatMul", mat_mul},
    {"MatMulInteger", mat_mul_integer},
    {"MatMulIntegerToFloat", mat_mul_integer_to_float},
    {"MatMulNBits", mat_mul_n_bits},
    {"MultiHeadAttention", multi_head_attention},
    {"QLinearMatMul", q_linear_mat_mul},
    {"RNN", recurrent},
}};

}  // namespace

std::span<const OnnxShapeEntry> onnx_matrix_rules() { return kMatrixRules; }

}  // namespace baechi
