// SPDX-License-Identifier: Apache-2.0
// Operators that PyTorch treats differently on devices than on the CPU: dropout draws from the
// device's generator, attention takes the memory-saving kernel, histc counts integers.
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

#include "launch.h"

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

Tensor histc(const Tensor& self, std::int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  Tensor result = at::empty({bins}, self.options());
  HostAliases aliases;
  launch("histc", self.device().index(), bytes_of(self) + bytes_of(result),
         [x = aliases.of(self), y = aliases.of(result), bins, min, max] {
           const bool real = at::isFloatingType(x.scalar_type());
           y.copy_(at::histc(real ? x : x.to(at::kDouble), bins, min, max));
         });
  return result;
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
    std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Attention attention(const Tensor& query, const Tensor& key, const Tensor& value,
                    const std::optional<Tensor>& bias, double dropout, bool causal, bool,
                    std::optional<double> scale) {
  const Tensor mask = bias.value_or(Tensor());
  check_same_device("scaled_dot_product_attention", {query, key, value, mask});
  const std::int64_t batch = query.size(0), heads = query.size(1), length = query.size(2);
  // The layout of the CPU kernel's results: (batch, length, heads, width) seen transposed.
  Tensor output = at::empty({batch, length, heads, value.size(3)}, query.options()).transpose(1, 2);
  const auto sum_type = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Tensor log_sum =
      at::empty({batch, length, heads}, query.options().dtype(sum_type)).transpose(1, 2);
  HostAliases a;
  launch("scaled_dot_product_attention", query.device().index(),
         bytes_of(query) + bytes_of(key) + bytes_of(value) + bytes_of(mask) + bytes_of(output),
         [q = a.of(query), k = a.of(key), v = a.of(value), m = a.of(mask), y = a.of(output),
          l = a.of(log_sum), dropout, causal, scale] {
           const auto [out, sum] = at::_scaled_dot_product_flash_attention_for_cpu(
               q, k, v, dropout, causal, m.defined() ? std::optional(m) : std::nullopt, scale);
           y.copy_(out);
           l.copy_(sum);
         });
  return {output, log_sum, {}, {}, length, key.size(2), {}, {}, {}};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& bias, std::array<bool, 4>, const Tensor& output, const Tensor& log_sum,
    const Tensor&, const Tensor&, std::int64_t, std::int64_t, double dropout, bool causal,
    const Tensor&, const Tensor&, std::optional<double> scale) {
  Tensor grad_query = at::empty_like(query), grad_key = at::empty_like(key);
  Tensor grad_value = at::empty_like(value);
  HostAliases a;
  launch("scaled_dot_product_attention_backward", query.device().index(),
         2 * (bytes_of(query) + bytes_of(key) + bytes_of(value)) + 2 * bytes_of(output),
         [g = a.of(grad), q = a.of(query), k = a.of(key), v = a.of(value), m = a.of(bias),
          y = a.of(output), l = a.of(log_sum), gq = a.of(grad_query), gk = a.of(grad_key),
          gv = a.of(grad_value), dropout, causal, scale] {
           const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
               g, q, k, v, y, l, dropout, causal, m.defined() ? std::optional(m) : std::nullopt,
               scale);
           gq.copy_(dq);
           gk.copy_(dk);
           gv.copy_(dv);
         });
  return {grad_query, grad_key, grad_value, Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_dropout", dropout);
  m.impl("histc", histc);
  m.impl("_fused_sdp_choice", attention_choice);
  m.impl("_scaled_dot_product_fused_attention_overrideable", attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", attention_backward);
}

}  // namespace baechi::sim

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &baechi::sim::attention_choice)
}  // namespace at::native
