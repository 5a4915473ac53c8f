// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/unet.h"

#include <string>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/generate/dataflow_ops.h"
#include "baechi/generate/modules.h"

namespace baechi {
namespace {

using namespace generate;

class Unet {
 public:
  explicit Unet(const UnetOptions& options)
      : options_(options),
        g_({.name = "unet", .batch = options.batch, .costing = options.costing}),
        modules_(g_, options.training) {}

  OpGraph build() && {
    const std::int64_t side = options_.image;
    Value x = placeholder(g_, "images", {options_.batch, side, side, 3});
    std::vector<Value> across;
    std::int64_t channels = options_.channels;
    x = double_conv("down/0", x, channels);
    for (std::int64_t level = 1; level <= options_.layers; ++level) {
      across.push_back(x);
      channels *= 2;
      x = double_conv("down/" + std::to_string(level), halve(level, x), channels);
    }
    for (std::int64_t level = options_.layers; level >= 1; --level) {
      channels /= 2;
      x = up(level, x, across.back(), channels);
      across.pop_back();
    }
    const Value logits = conv("out", x, options_.classes, 1, true);
    if (options_.training) {
      const Value labels = placeholder(g_, "labels", {options_.batch, side, side});
      modules_.train(modules_.add({.name = "loss",
                                   .kind = "CrossEntropyLoss",
                                   .inputs = {logits, labels},
                                   .outputs = {Shape{}},
                                   .flops = 11 * elements(g_.shape(logits))}));
    }
    return std::move(g_).finish();
  }

 private:
  Value conv(const std::string& name, Value x, std::int64_t channels, std::int64_t window,
             bool bias) {
    Shape shape = g_.shape(x);
    const std::int64_t per_output = window * window * shape[3];
    shape[3] = channels;
    return modules_.add({.name = name,
                         .kind = "Conv2d",
                         .inputs = {x},
                         .outputs = {shape},
                         .flops = (Bytes(2) * elements(shape) * per_output).count(),
                         .parameters = per_output * channels + (bias ? channels : 0)});
  }

  Value double_conv(const std::string& name, Value x, std::int64_t channels) {
    const Tape::Scope scope(g_, name);
    for (const std::string i : {"0", "1"}) {
      x = conv("conv" + i, x, channels, 3, false);
      x = modules_.norm("norm" + i, "BatchNorm2d", x, 2 * channels);
      x = modules_.elementwise("relu" + i, "ReLU", {x}, 1);
    }
    return x;
  }

  Value halve(std::int64_t level, Value x) {
    Shape shape = g_.shape(x);
    const std::int64_t flops = elements(shape);
    shape[1] /= 2;
    shape[2] /= 2;
    return modules_.add({.name = "down/" + std::to_string(level) + "/pool",
                         .kind = "MaxPool2d",
                         .inputs = {x},
                         .outputs = {shape},
                         .flops = flops});
  }

  // Doubles the image, puts what came across beside it, and convolves both.
  Value up(std::int64_t level, Value x, Value across, std::int64_t channels) {
    const std::string name = "up/" + std::to_string(level);
    Shape shape = g_.shape(across);
    shape[3] = channels;
    const std::int64_t inner = g_.shape(x)[3];
    const Value doubled = modules_.add({.name = name + "/conv_transpose",
                                        .kind = "ConvTranspose2d",
                                        .inputs = {x},
                                        .outputs = {shape},
                                        .flops = (Bytes(2) * elements(shape) * inner).count(),
                                        .parameters = 4 * inner * channels + channels});
    shape[3] += g_.shape(across)[3];
    const Value both = modules_.add(
        {.name = name + "/cat", .kind = "Concat", .inputs = {across, doubled}, .outputs = {shape}});
    return double_conv(name, both, channels);
  }

  UnetOptions options_;
  Tape g_;
  Modules modules_;
};

}  // namespace

OpGraph generate_unet(const UnetOptions& options) {
  require_positive("batch", options.batch);
  require_positive("layers", options.layers);
  require_positive("channels", options.channels);
  require_positive("classes", options.classes);
  require_positive("image", options.image);
  if (options.layers > 10 || options.image % (std::int64_t{1} << options.layers) != 0)
    throw InputError("unet: an image of " + std::to_string(options.image) +
                     " pixels a side cannot be halved " + std::to_string(options.layers) +
                     " times (at most 10)");
  return Unet(options).build();
}

}  // namespace baechi
