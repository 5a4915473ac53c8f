// SPDX-License-Identifier: Apache-2.0
// Convolution: PyTorch picks its CPU kernel by device, so other devices bring their own.
#include <ATen/core/Tensor.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <torch/library.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "fallback.h"

namespace baechi::sim {
namespace {

using at::Tensor;
using Sizes = std::vector<std::int64_t>;

std::tuple<Tensor> convolution(const Tensor& input, const Tensor& weight,
                               const std::optional<Tensor>& bias, const Sizes& stride,
                               const Sizes& padding, const Sizes& dilation, bool transposed,
                               const Sizes& output_padding, std::int64_t groups) {
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

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", boxed<&convolution, true>());
  m.impl("convolution_backward_overrideable", boxed<&convolution_backward, true>());
}

}  // namespace baechi::sim
