// SPDX-License-Identifier: Apache-2.0
// Operators that PyTorch treats differently on devices than on the CPU: dropout draws from the
// device's generator, attention takes the memory-saving kernel, histc counts integers, bags of
// embeddings keep more for the backward.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_embedding_bag.h>
#include <ATen/ops/_embedding_bag_forward_only.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>

#include "fallback.h"

namespace baechi::sim {
namespace {

using at::Tensor;

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
                              const std::optional<Tensor>& mask, double dropout, bool causal,
                              std::optional<double> scale, bool grouped) {
  const auto choice =
      at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, causal, scale, grouped);
  const bool fused = choice == static_cast<std::int64_t>(at::SDPBackend::flash_attention);
  return static_cast<std::int64_t>(fused ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

using Attention =
    std::tuple<Tensor, Tensor, Tensor, Tensor, std::int64_t, std::int64_t, Tensor, Tensor, Tensor>;

std::optional<Tensor> mask_of(const std::optional<Tensor>& bias) {
  return bias && bias->defined() ? bias : std::nullopt;
}

Attention attention(const Tensor& query, const Tensor& key, const Tensor& value,
                    const std::optional<Tensor>& bias, double dropout, bool causal, bool,
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
                   std::int64_t mode, bool sparse, const std::optional<Tensor>& factors,
                   bool includes_last, std::int64_t padding) {
  constexpr std::int64_t kMax = 2;
  const auto [output, bags, sizes, largest] =
      kForward(weight, indices, offsets, scaled, mode, sparse, factors, includes_last, padding);
  return {output, bags_of(indices, offsets, includes_last), of_length(sizes, offsets.numel()),
          mode == kMax ? largest : at::empty({0}, indices.options())};
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
}

}  // namespace baechi::sim

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &baechi::sim::attention_choice)
}  // namespace at::native
