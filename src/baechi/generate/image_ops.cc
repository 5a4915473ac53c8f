// SPDX-License-Identifier: Apache-2.0
// Convolution, pooling and batch normalisation.
#include <algorithm>

#include "baechi/base/assert.h"
#include "baechi/generate/dataflow_ops.h"

namespace baechi::generate {
namespace {

std::int64_t windows_along(std::int64_t size, std::int64_t window, const Window& of) {
  const std::int64_t positions = of.same ? size : size - window + 1;
  BAECHI_ASSERT(positions > 0, "the window is larger than the image");
  return (positions + of.stride - 1) / of.stride;
}

Shape slid(const Shape& image, const Window& window, std::int64_t channels) {
  BAECHI_ASSERT(image.size() == 4, "an image batch has four dimensions");
  return {image[0], windows_along(image[1], window.height, window),
          windows_along(image[2], window.width, window), channels};
}

// What a convolution algorithm may take as scratch space: the unfolded input, up to the limit that
// TensorFlow sets by default for smaller layers.
Bytes workspace(Bytes unfolded) { return std::min(unfolded, mebibytes(64)); }

Value shape_constant(Backward& back, std::int64_t rank) {
  return back.add({.name = "Shape", .kind = "Const", .outputs = {{rank}}, .kernel = false});
}

}  // namespace

Value conv2d(Tape& g, Value x, Value filter, const Window& window) {
  const Shape image = g.shape(x), weights = g.shape(filter);
  BAECHI_ASSERT(weights.size() == 4 && weights[2] == image[3], "filter and image channels differ");
  const Shape shape = slid(image, window, weights[3]);
  const std::int64_t per_output = weights[0] * weights[1] * weights[2];
  const std::int64_t flops = (Bytes(2) * elements(shape) * per_output).count();
  const Bytes scratch = per_output == weights[2]
                            ? Bytes(0)  // 1x1: a matrix product as it is
                            : workspace(g.bytes_of({image[0], shape[1], shape[2], per_output}));
  return g.add({.name = "Conv2D",
                .kind = "Conv2D",
                .inputs = {x, filter},
                .outputs = {shape},
                .flops = flops,
                .temporary = scratch},
               [=](Backward& back) {
                 const std::vector<Value> shapes = back.add_all({.name = "ShapeN",
                                                                 .kind = "ShapeN",
                                                                 .inputs = {x, filter},
                                                                 .outputs = {{4}, {4}},
                                                                 .kernel = false});
                 if (back.wants(x))
                   back.give(x, back.add({.name = "Conv2DBackpropInput",
                                          .kind = "Conv2DBackpropInput",
                                          .inputs = {shapes[0], filter, back.gradient()},
                                          .outputs = {image},
                                          .flops = flops,
                                          .temporary = scratch}));
                 if (back.wants(filter))
                   back.give(filter, back.add({.name = "Conv2DBackpropFilter",
                                               .kind = "Conv2DBackpropFilter",
                                               .inputs = {x, shapes[1], back.gradient()},
                                               .outputs = {weights},
                                               .flops = flops,
                                               .temporary = scratch}));
               });
}

Value max_pool(Tape& g, Value x, const Window& window) {
  const Shape image = g.shape(x), shape = slid(image, window, image[3]);
  return g.add({.name = "MaxPool",
                .kind = "MaxPool",
                .inputs = {x},
                .outputs = {shape},
                .flops = elements(shape) * window.height * window.width},
               [=](Backward& back) {
                 back.give(x, back.add({.name = "MaxPoolGrad",
                                        .kind = "MaxPoolGrad",
                                        .inputs = {x, back.output(), back.gradient()},
                                        .outputs = {image},
                                        .flops = elements(shape) * window.height * window.width}));
               });
}

Value avg_pool(Tape& g, Value x, const Window& window) {
  const Shape image = g.shape(x), shape = slid(image, window, image[3]);
  return g.add({.name = "AvgPool",
                .kind = "AvgPool",
                .inputs = {x},
                .outputs = {shape},
                .flops = elements(shape) * window.height * window.width},
               [=](Backward& back) {
                 back.give(x, back.add({.name = "AvgPoolGrad",
                                        .kind = "AvgPoolGrad",
                                        .inputs = {shape_constant(back, 4), back.gradient()},
                                        .outputs = {image},
                                        .flops = elements(shape) * window.height * window.width}));
               });
}

BatchNorm fused_batch_norm(Tape& g, Value x, Value scale, Value offset) {
  const Shape image = g.shape(x), channels{image.back()};
  // One pass over the input for its moments, one to normalise.
  const std::vector<Value> outputs = g.add_all(
      {.name = "FusedBatchNorm",
       .kind = "FusedBatchNormV3",
       .inputs = {x, scale, offset},
       .outputs = {image, channels, channels, channels, channels},
       .flops = 6 * elements(image),
       .moved = 3 * g.bytes(x)},
      [=](Backward& back) {
        const std::vector<Value> gradients =
            back.add_all({.name = "FusedBatchNormGrad",
                          .kind = "FusedBatchNormGradV3",
                          .inputs = {back.gradient(), x, scale, back.output(3), back.output(4)},
                          .outputs = {image, channels, channels},
                          .flops = 10 * elements(image),
                          .moved = 5 * back.bytes(x)});
        back.give(x, gradients[0]);
        back.give(scale, gradients[1]);
        back.give(offset, gradients[2]);
      });
  return {outputs[0], outputs[1], outputs[2]};
}

}  // namespace baechi::generate
