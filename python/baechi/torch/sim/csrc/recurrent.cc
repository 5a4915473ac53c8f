// SPDX-License-Identifier: Apache-2.0
// The cells of LSTM and GRU, for which PyTorch has fused kernels on CUDA alone.
//
// Gates come as the products of the input and the hidden state, without biases. A workspace keeps
// what the backward needs: for LSTM the activated gates i, f, g, o; for GRU r, z, n, the hidden
// state and its product for n.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sum.h>
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

// The derivative through a sigmoid or tanh, from its result.
Tensor through_sigmoid(const Tensor& grad, const Tensor& y) { return grad * y * (1 - y); }
Tensor through_tanh(const Tensor& grad, const Tensor& y) { return grad * (1 - y * y); }

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const MaybeTensor& input_bias,
                                             const MaybeTensor& hidden_bias) {
  const auto gates =
      (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const Tensor i = at::sigmoid(gates[0]), f = at::sigmoid(gates[1]);
  const Tensor g = at::tanh(gates[2]), o = at::sigmoid(gates[3]);
  const Tensor cy = f * cx + i * g;
  return {o * at::tanh(cy), cy, at::cat({i, f, g, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor& maybe_grad_hy,
                                                      const MaybeTensor& maybe_grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  const Tensor grad_hy = or_undefined(maybe_grad_hy), grad_cy = or_undefined(maybe_grad_cy);
  if (!grad_hy.defined() && !grad_cy.defined()) return {};
  const auto gates = workspace.chunk(4, 1);
  const Tensor &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3];
  const Tensor tanh_c = at::tanh(cy);
  Tensor grad_c = grad_cy, grad_o;
  if (grad_hy.defined()) {
    const Tensor through_h = through_tanh(grad_hy * o, tanh_c);
    grad_c = grad_c.defined() ? grad_c + through_h : through_h;
    grad_o = through_sigmoid(grad_hy * tanh_c, o);
  } else {
    grad_o = at::zeros_like(o);
  }
  const Tensor grad_gates =
      at::cat({through_sigmoid(grad_c * g, i), through_sigmoid(grad_c * cx, f),
               through_tanh(grad_c * i, g), grad_o},
              1);
  return {grad_gates, grad_c * f, has_bias ? grad_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const MaybeTensor& input_bias,
                                    const MaybeTensor& hidden_bias) {
  const auto from_input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto from_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor r = at::sigmoid(from_hidden[0] + from_input[0]);
  const Tensor z = at::sigmoid(from_hidden[1] + from_input[1]);
  const Tensor n = at::tanh(from_input[2] + r * from_hidden[2]);
  return {(hx - n) * z + n, at::cat({r, z, n, hx, from_hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  const auto kept = workspace.chunk(5, 1);
  const Tensor &r = kept[0], &z = kept[1], &n = kept[2], &h = kept[3], &hn = kept[4];
  const Tensor grad_n = through_tanh(grad_hy * (1 - z), n);
  const Tensor grad_z = through_sigmoid(grad_hy * (h - n), z);
  const Tensor grad_r = through_sigmoid(grad_n * hn, r);
  const Tensor grad_input = at::cat({grad_r, grad_z, grad_n}, 1);
  const Tensor grad_hidden = at::cat({grad_r, grad_z, grad_n * r}, 1);
  return {grad_input, grad_hidden, grad_hy * z, has_bias ? grad_input.sum(0) : Tensor(),
          has_bias ? grad_hidden.sum(0) : Tensor()};
}

template <auto kFunction, bool kSizesToo = false>
torch::CppFunction cell() {
  return torch::CppFunction::makeFromBoxedFunction<&by<&Unboxed<kFunction>::kernel, kSizesToo>>();
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", cell<&lstm_cell>());
  m.impl("_thnn_fused_lstm_cell_backward_impl", cell<&lstm_cell_backward>());
  m.impl("_thnn_fused_gru_cell", cell<&gru_cell, true>());  // PyTorch has no meta function
  m.impl("_thnn_fused_gru_cell_backward", cell<&gru_cell_backward, true>());
}

}  // namespace baechi::sim
