// SPDX-License-Identifier: Apache-2.0
// Operators that PyTorch treats differently on devices than on the CPU: dropout draws from the
// device's generator, attention takes the memory-saving kernel, histc counts integers, bags of
// embeddings keep more for the backward, convolutions bring their own kernel, and the cells of LSTM
// and GRU are fused.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_embedding_bag.h>
#include <ATen/ops/_embedding_bag_forward_only.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/_thnn_differentiable_gru_cell_backward.h>
#include <ATen/ops/_thnn_differentiable_lstm_cell_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "fallback.h"

namespace baechi::sim {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Sizes = std::vector<std::int64_t>;

std::tuple<Tensor, Tensor> dropout(const Tensor& input, double p, std::optional<bool> train) {
  const auto mask_options = input.options().dtype(at::kBool);
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, mask_options)};
  const double kept = 1 - p;
  Tensor mask = at::empty_like(input, mask_options).bernoulli_(kept);
  return {input.mul(mask).mul_(kept == 0 ? 0.0 : 1 / kept), mask};
}

// The CPU's counts no integers.
std::tuple<Tensor> histc(const Tensor& self, std::int64_t bins, const at::Scalar& min,
                         const at::Scalar& max) {
  const bool real = at::isFloatingType(self.scalar_type());
  return at::histc(real ? self : self.to(at::kDouble), bins, min, max);
}

std::int64_t attention_choice(const Tensor& query, const Tensor& key, const Tensor& value,
                              const MaybeTensor& mask, double dropout, bool causal,
                              std::optional<double> scale, bool grouped) {
  const auto choice =
      at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, causal, scale, grouped);
  const bool fused = choice == static_cast<std::int64_t>(at::SDPBackend::flash_attention);
  return static_cast<std::int64_t>(fused ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

using Attention =
    std::tuple<Tensor, Tensor, Tensor, Tensor, std::int64_t, std::int64_t, Tensor, Tensor, Tensor>;

MaybeTensor mask_of(const MaybeTensor& bias) {
  return bias && bias->defined() ? bias : std::nullopt;
}

Attention attention(const Tensor& query, const Tensor& key, const Tensor& value,
                    const MaybeTensor& bias, double dropout, bool causal, bool,
                    std::optional<double> scale) {
  const auto [output, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(
      query, key, value, dropout, causal, mask_of(bias), scale);
  // The helpers are those of a GPU: lengths that vary, the state of a random generator.
  return {output, log_sum, {}, {}, query.size(2), key.size(2), {}, {}, {}};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& bias, const c10::List<bool>&, const Tensor& output, const Tensor& log_sum,
    const Tensor&, const Tensor&, std::int64_t, std::int64_t, double dropout, bool causal,
    const Tensor&, const Tensor&, std::optional<double> scale) {
  const auto mask = mask_of(bias);
  // As the CPU's forward lays it out.
  Tensor sums = log_sum.transpose(1, 2).contiguous().transpose(1, 2);
  if (query.scalar_type() == at::kDouble)  // the meta function says that the sums are float
    sums = std::get<1>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout,
                                                                       causal, mask, scale));
  const auto [grad_query, grad_key, grad_value] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, query, key, value, output,
                                                               sums, dropout, causal, mask, scale);
  // A mask that needs a gradient is never given to this kernel.
  return {grad_query, grad_key, grad_value, Tensor()};
}

// The bag of each index.
Tensor bags_of(const Tensor& indices, const Tensor& offsets, bool includes_last) {
  const Tensor begins = includes_last ? offsets.slice(0, 0, -1) : offsets;
  return at::searchsorted(begins, at::arange(indices.numel(), begins.options()), false, true) - 1;
}

// With zeros where it is too short.
Tensor of_length(const Tensor& tensor, std::int64_t length) {
  Tensor result = at::zeros({length}, tensor.options());
  const std::int64_t known = std::min(length, tensor.numel());
  result.slice(0, 0, known).copy_(tensor.slice(0, 0, known));
  return result;
}

using Bags = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// The helpers for the backward are those of a GPU, which the CPU's may do without.
template <auto kForward>
Bags embedding_bag(const Tensor& weight, const Tensor& indices, const Tensor& offsets, bool scaled,
                   std::int64_t mode, bool sparse, const MaybeTensor& factors, bool includes_last,
                   std::int64_t padding) {
  constexpr std::int64_t kMax = 2;
  const auto [output, bags, sizes, largest] =
      kForward(weight, indices, offsets, scaled, mode, sparse, factors, includes_last, padding);
  return {output, bags_of(indices, offsets, includes_last), of_length(sizes, offsets.numel()),
          mode == kMax ? largest : at::empty({0}, indices.options())};
}

std::tuple<Tensor> convolution(const Tensor& input, const Tensor& weight, const MaybeTensor& bias,
                               const Sizes& stride, const Sizes& padding, const Sizes& dilation,
                               bool transposed, const Sizes& output_padding, std::int64_t groups) {
  return at::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                         groups);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad_output, const Tensor& input, const Tensor& weight, const Sizes& stride,
    const Sizes& padding, const Sizes& dilation, bool transposed, const Sizes& output_padding,
    std::int64_t groups, const c10::List<bool>& mask) {
  const Sizes bias_sizes{transposed ? weight.size(1) * groups : weight.size(0)};
  return at::convolution_backward(
      grad_output, input, weight, mask[2] ? at::OptionalIntArrayRef(bias_sizes) : std::nullopt,
      stride, padding, dilation, transposed, output_padding, groups, {mask[0], mask[1], mask[2]});
}

// The cells of LSTM and GRU. Gates come as the products of the input and the hidden state, without
// biases. A workspace keeps what PyTorch's own derivative reads: for LSTM the sums of gates; for GRU
// those of r and z, what the input and the hidden state give n, and the hidden state.
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
  m.impl("native_dropout", dropout);
  m.impl("histc", boxed<&histc>());
  m.impl("_embedding_bag", boxed<&embedding_bag<&at::_embedding_bag>>());
  m.impl("_embedding_bag_forward_only", boxed<&embedding_bag<&at::_embedding_bag_forward_only>>());
  m.impl("_fused_sdp_choice", attention_choice);
  m.impl("_scaled_dot_product_fused_attention_overrideable", boxed<&attention>());
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", boxed<&attention_backward>());
  m.impl("convolution_overrideable", boxed<&convolution, true>());
  m.impl("convolution_backward_overrideable", boxed<&convolution_backward, true>());
  m.impl("_thnn_fused_lstm_cell", boxed<&lstm_cell>());
  m.impl("_thnn_fused_lstm_cell_backward_impl", boxed<&lstm_cell_backward>());
  m.impl("_thnn_fused_gru_cell", boxed<&gru_cell, true>());  // PyTorch has no meta function
  m.impl("_thnn_fused_gru_cell_backward", boxed<&gru_cell_backward, true>());
}

}  // namespace baechi::sim

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &baechi::sim::attention_choice)
}  // namespace at::native
