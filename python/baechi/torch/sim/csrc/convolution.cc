// SPDX-License-Identifier: Apache-2.0
// Convolution: PyTorch picks its CPU kernel by device, so other devices bring their own.
#include <ATen/core/Tensor.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "launch.h"

namespace baechi::sim {
namespace {

// The attributes of one convolution, kept until its kernel runs.
struct Attributes {
  std::vector<std::int64_t> stride, padding, dilation;
  bool transposed;
  std::vector<std::int64_t> output_padding;
  std::int64_t groups;
};

std::int64_t at_dimension(const std::vector<std::int64_t>& values, std::size_t d) {
  return values.size() == 1 ? values[0] : values.at(d);
}

std::vector<std::int64_t> output_sizes(const at::Tensor& input, const at::Tensor& weight,
                                       const Attributes& a) {
  std::vector<std::int64_t> sizes{input.size(0),
                                  a.transposed ? weight.size(1) * a.groups : weight.size(0)};
  for (std::int64_t i = 2; i < input.dim(); ++i) {
    const auto d = static_cast<std::size_t>(i - 2);
    const std::int64_t reach = at_dimension(a.dilation, d) * (weight.size(i) - 1) + 1;
    const std::int64_t padding = 2 * at_dimension(a.padding, d), stride = at_dimension(a.stride, d);
    sizes.push_back(a.transposed ? (input.size(i) - 1) * stride - padding + reach +
                                       at_dimension(a.output_padding, d)
                                 : (input.size(i) + padding - reach) / stride + 1);
  }
  return sizes;
}

// Channels last when an operand is, as on the CPU.
at::MemoryFormat format_of(const at::Tensor& input, const at::Tensor& weight) {
  const auto format = input.suggest_memory_format();
  return format != at::MemoryFormat::Contiguous ? format : weight.suggest_memory_format();
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, std::int64_t groups) {
  const Attributes a{stride.vec(), padding.vec(),        dilation.vec(),
                     transposed,   output_padding.vec(), groups};
  check_same_device("convolution", {input, weight, bias.value_or(at::Tensor())});
  const int device = input.device().index();
  at::Tensor output = at::empty(output_sizes(input, weight, a),
                                input.options().memory_format(format_of(input, weight)));
  HostAliases aliases;
  launch("convolution", device, bytes_of(input) + bytes_of(weight) + bytes_of(output),
         [x = aliases.of(input), w = aliases.of(weight),
          b = bias ? std::optional(aliases.of(*bias)) : std::nullopt, y = aliases.of(output), a] {
           y.copy_(at::convolution(x, w, b, a.stride, a.padding, a.dilation, a.transposed,
                                   a.output_padding, a.groups));
         });
  return output;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, std::int64_t groups, std::array<bool, 3> mask) {
  const Attributes a{stride.vec(), padding.vec(),        dilation.vec(),
                     transposed,   output_padding.vec(), groups};
  check_same_device("convolution_backward", {grad_output, input, weight});
  const int device = input.device().index();
  const auto format = format_of(input, weight);
  const std::int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  at::Tensor grad_input, grad_weight, grad_bias;
  if (mask[0]) grad_input = at::empty(input.sizes(), input.options().memory_format(format));
  if (mask[1]) grad_weight = at::empty(weight.sizes(), weight.options().memory_format(format));
  if (mask[2]) grad_bias = at::empty({channels}, weight.options());
  HostAliases aliases;
  launch("convolution_backward", device,
         2 * (bytes_of(input) + bytes_of(weight)) + bytes_of(grad_output),
         [dy = aliases.of(grad_output), x = aliases.of(input), w = aliases.of(weight),
          dx = aliases.of(grad_input), dw = aliases.of(grad_weight), db = aliases.of(grad_bias),
          channels, mask, a] {
           const at::IntArrayRef bias_sizes(channels);
           const auto [gx, gw, gb] = at::convolution_backward(
               dy, x, w, mask[2] ? at::OptionalIntArrayRef(bias_sizes) : std::nullopt, a.stride,
               a.padding, a.dilation, a.transposed, a.output_padding, a.groups, mask);
           if (mask[0]) dx.copy_(gx);
           if (mask[1]) dw.copy_(gw);
           if (mask[2]) db.copy_(gb);
         });
  return {grad_input, grad_weight, grad_bias};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}

}  // namespace baechi::sim
