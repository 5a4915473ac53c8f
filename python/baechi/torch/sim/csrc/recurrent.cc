// SPDX-License-Identifier: Apache-2.0
// The cells of LSTM and GRU, for which PyTorch has fused kernels on CUDA alone.
//
// Gates come as the products of the input and the hidden state, without biases. A workspace keeps
// what PyTorch's own derivative reads: for LSTM the sums of gates; for GRU those of r and z, what the
// input and the hidden state give n, and the hidden state.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_thnn_differentiable_gru_cell_backward.h>
#include <ATen/ops/_thnn_differentiable_lstm_cell_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "fallback.h"

namespace baechi::sim {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

Tensor or_undefined(const MaybeTensor& tensor) { return tensor.value_or(Tensor()); }

Tensor with_bias(const Tensor& gates, const MaybeTensor& bias) {
  return or_undefined(bias).defined() ? gates + *bias : gates;
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const MaybeTensor& input_bias,
                                             const MaybeTensor& hidden_bias) {
  const Tensor sums = with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias);
  const auto gates = sums.chunk(4, 1);
  const Tensor i = at::sigmoid(gates[0]), f = at::sigmoid(gates[1]);
  const Tensor g = at::tanh(gates[2]), o = at::sigmoid(gates[3]);
  const Tensor cy = f * cx + i * g;
  return {o * at::tanh(cy), cy, sums};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor& maybe_grad_hy,
                                                      const MaybeTensor& maybe_grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  const Tensor grad_hy = or_undefined(maybe_grad_hy), grad_cy = or_undefined(maybe_grad_cy);
  if (!grad_hy.defined() && !grad_cy.defined()) return {};
  const auto [gates, _, grad_cx, __, ___] = at::_thnn_differentiable_lstm_cell_backward(
      grad_hy, grad_cy, workspace, at::zeros_like(workspace), {}, {}, cx, cy);
  return {gates, grad_cx, has_bias ? gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const MaybeTensor& input_bias,
                                    const MaybeTensor& hidden_bias) {
  const auto from_input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto from_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor r = from_hidden[0] + from_input[0], z = from_hidden[1] + from_input[1];
  const Tensor n = at::tanh(from_input[2] + at::sigmoid(r) * from_hidden[2]);
  return {(hx - n) * at::sigmoid(z) + n, at::cat({r, z, from_input[2], from_hidden[2], hx}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  const auto kept = workspace.chunk(5, 1);
  const Tensor none = at::zeros_like(kept[0]);
  const auto [input, hidden, grad_hx, _, __] = at::_thnn_differentiable_gru_cell_backward(
      grad_hy, at::cat({kept[0], kept[1], kept[2]}, 1), at::cat({none, none, kept[3]}, 1), kept[4],
      {}, {});
  return {input, hidden, grad_hx, has_bias ? input.sum(0) : Tensor(),
          has_bias ? hidden.sum(0) : Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", boxed<&lstm_cell>());
  m.impl("_thnn_fused_lstm_cell_backward_impl", boxed<&lstm_cell_backward>());
  m.impl("_thnn_fused_gru_cell", boxed<&gru_cell, true>());  // PyTorch has no meta function
  m.impl("_thnn_fused_gru_cell_backward", boxed<&gru_cell_backward, true>());
}

}  // namespace baechi::sim
