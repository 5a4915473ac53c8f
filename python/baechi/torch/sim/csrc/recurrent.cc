// SPDX-License-Identifier: Apache-2.0
// The cells of LSTM and GRU, for which PyTorch has fused kernels on CUDA alone.
//
// Gates come as the products of the input and the hidden state, without biases. A workspace keeps
// what the backward needs: for LSTM the activated gates i, f, g, o; for GRU r, z, n, the hidden
// state and its product for n.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "launch.h"

namespace baechi::sim {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

Tensor or_undefined(const MaybeTensor& tensor) { return tensor.value_or(Tensor()); }

Tensor with_bias(const Tensor& gates, const Tensor& bias) {
  return bias.defined() ? gates + bias : gates;
}

// The derivative through a sigmoid or tanh, from its result.
Tensor through_sigmoid(const Tensor& grad, const Tensor& y) { return grad * y * (1 - y); }
Tensor through_tanh(const Tensor& grad, const Tensor& y) { return grad * (1 - y * y); }

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const MaybeTensor& input_bias,
                                             const MaybeTensor& hidden_bias) {
  check_same_device("_thnn_fused_lstm_cell", {input_gates, hidden_gates, cx,
                                              or_undefined(input_bias), or_undefined(hidden_bias)});
  Tensor hy = at::empty_like(cx), cy = at::empty_like(cx);
  Tensor workspace = at::empty(input_gates.sizes(), input_gates.options());
  HostAliases a;
  launch("_thnn_fused_lstm_cell", cx.device().index(), 3 * bytes_of(workspace) + 3 * bytes_of(cx),
         [gi = a.of(input_gates), gh = a.of(hidden_gates), c = a.of(cx),
          bi = a.of(or_undefined(input_bias)), bh = a.of(or_undefined(hidden_bias)),
          h_out = a.of(hy), c_out = a.of(cy), w = a.of(workspace)] {
           const auto gates = (with_bias(gi, bi) + with_bias(gh, bh)).chunk(4, 1);
           const Tensor i = at::sigmoid(gates[0]), f = at::sigmoid(gates[1]);
           const Tensor g = at::tanh(gates[2]), o = at::sigmoid(gates[3]);
           c_out.copy_(f * c + i * g);
           h_out.copy_(o * at::tanh(c_out));
           w.copy_(at::cat({i, f, g, o}, 1));
         });
  return {hy, cy, workspace};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor& grad_hy,
                                                      const MaybeTensor& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  if (!or_undefined(grad_hy).defined() && !or_undefined(grad_cy).defined()) return {};
  Tensor grad_gates = at::empty_like(workspace), grad_cx = at::empty_like(cx), grad_bias;
  if (has_bias) grad_bias = at::empty({workspace.size(1)}, workspace.options());
  HostAliases a;
  launch("_thnn_fused_lstm_cell_backward", cx.device().index(),
         2 * bytes_of(workspace) + 5 * bytes_of(cx),
         [gh = a.of(or_undefined(grad_hy)), gc_in = a.of(or_undefined(grad_cy)), c = a.of(cx),
          c_next = a.of(cy), w = a.of(workspace), gates_out = a.of(grad_gates),
          cx_out = a.of(grad_cx), bias_out = a.of(grad_bias)] {
           const auto gates = w.chunk(4, 1);
           const Tensor &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3];
           const Tensor tanh_c = at::tanh(c_next);
           Tensor grad_c = gc_in, grad_o;
           if (gh.defined()) {
             const Tensor through_h = through_tanh(gh * o, tanh_c);
             grad_c = grad_c.defined() ? grad_c + through_h : through_h;
             grad_o = through_sigmoid(gh * tanh_c, o);
           } else {
             grad_o = at::empty_like(o).zero_();
           }
           gates_out.copy_(at::cat({through_sigmoid(grad_c * g, i), through_sigmoid(grad_c * c, f),
                                    through_tanh(grad_c * i, g), grad_o},
                                   1));
           cx_out.copy_(grad_c * f);
           if (bias_out.defined()) bias_out.copy_(gates_out.sum(0));
         });
  return {grad_gates, grad_cx, grad_bias};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const MaybeTensor& input_bias,
                                    const MaybeTensor& hidden_bias) {
  check_same_device("_thnn_fused_gru_cell", {input_gates, hidden_gates, hx,
                                             or_undefined(input_bias), or_undefined(hidden_bias)});
  Tensor hy = at::empty_like(hx);
  Tensor workspace = at::empty({hx.size(0), 5 * hx.size(1)}, hx.options());
  HostAliases a;
  launch("_thnn_fused_gru_cell", hx.device().index(),
         2 * bytes_of(input_gates) + bytes_of(workspace) + 2 * bytes_of(hx),
         [gi = a.of(input_gates), gh = a.of(hidden_gates), h = a.of(hx),
          bi = a.of(or_undefined(input_bias)), bh = a.of(or_undefined(hidden_bias)),
          h_out = a.of(hy), w = a.of(workspace)] {
           const auto from_input = with_bias(gi, bi).chunk(3, 1);
           const auto from_hidden = with_bias(gh, bh).chunk(3, 1);
           const Tensor r = at::sigmoid(from_hidden[0] + from_input[0]);
           const Tensor z = at::sigmoid(from_hidden[1] + from_input[1]);
           const Tensor n = at::tanh(from_input[2] + r * from_hidden[2]);
           h_out.copy_((h - n) * z + n);
           w.copy_(at::cat({r, z, n, h, from_hidden[2]}, 1));
         });
  return {hy, workspace};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  const std::int64_t width = 3 * grad_hy.size(1);
  const auto options = workspace.options();
  Tensor grad_input = at::empty({grad_hy.size(0), width}, options);
  Tensor grad_hidden = at::empty({grad_hy.size(0), width}, options);
  Tensor grad_hx = at::empty_like(grad_hy), input_bias, hidden_bias;
  if (has_bias) {
    input_bias = at::empty({width}, options);
    hidden_bias = at::empty({width}, options);
  }
  HostAliases a;
  launch("_thnn_fused_gru_cell_backward", grad_hy.device().index(),
         2 * bytes_of(grad_input) + bytes_of(workspace) + 2 * bytes_of(grad_hy),
         [g = a.of(grad_hy), w = a.of(workspace), input_out = a.of(grad_input),
          hidden_out = a.of(grad_hidden), hx_out = a.of(grad_hx), bi = a.of(input_bias),
          bh = a.of(hidden_bias)] {
           const auto kept = w.chunk(5, 1);
           const Tensor &r = kept[0], &z = kept[1], &n = kept[2], &h = kept[3], &hn = kept[4];
           const Tensor grad_n = through_tanh(g * (1 - z), n);
           const Tensor grad_z = through_sigmoid(g * (h - n), z);
           const Tensor grad_r = through_sigmoid(grad_n * hn, r);
           input_out.copy_(at::cat({grad_r, grad_z, grad_n}, 1));
           hidden_out.copy_(at::cat({grad_r, grad_z, grad_n * r}, 1));
           hx_out.copy_(g * z);
           if (bi.defined()) bi.copy_(input_out.sum(0));
           if (bh.defined()) bh.copy_(hidden_out.sum(0));
         });
  return {grad_input, grad_hidden, grad_hx, input_bias, hidden_bias};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace baechi::sim
