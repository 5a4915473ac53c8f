// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/inception_v3.h"

#include <string>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/generate/dataflow_ops.h"
#include "baechi/generate/variables.h"

namespace baechi {
namespace {

using namespace generate;

constexpr Window kPixel{.same = true};
constexpr Window k3x3{.height = 3, .width = 3, .same = true};
constexpr Window k5x5{.height = 5, .width = 5, .same = true};
constexpr Window k1x7{.height = 1, .width = 7, .same = true};
constexpr Window k7x1{.height = 7, .width = 1, .same = true};
constexpr Window k1x3{.height = 1, .width = 3, .same = true};
constexpr Window k3x1{.height = 3, .width = 1, .same = true};
constexpr Window kHalve{.height = 3, .width = 3, .stride = 2};  // valid: whole windows only

struct ConvLayer {  // of a branch: one convolution with all that follows it
  std::int64_t channels;
  Window window = kPixel;
};

class InceptionV3 {
 public:
  explicit InceptionV3(const InceptionV3Options& options)
      : options_(options),
        g_({.name = "inception-v3",
            .batch = options.batch,
            .costing = options.costing,
            .gate_gradients = true}),
        variables_(g_) {}

  OpGraph build() && {
    const std::int64_t side = options_.image;
    const Value images = placeholder(g_, "images", {options_.batch, side, side, 3});
    labels_ = placeholder(g_, "labels", {options_.batch});
    const Value global_step = step_counter(g_);
    Value x = mixed_6(mixed_5(stem(images)));
    if (options_.auxiliary) losses_.push_back(auxiliary_loss(x));
    x = mixed_7(x);
    losses_.push_back(classify(x, "Logits", end_of_image(x)));
    const Value total = add_n(g_, losses_, "total_loss");
    const Value rate = learning_rate_schedule(g_, global_step, 1);
    g_.differentiate(total);
    apply_rms_prop(g_, variables_, rate);
    g_.add_sink({.name = "summary/MergeSummary",
                 .kind = "MergeSummary",
                 .inputs = summaries_,
                 .kernel = false});
    return std::move(g_).finish();
  }

 private:
  // Weights under weight decay, whose loss joins the total.
  Value decayed_weights(const Shape& shape) {
    const Value weights = variables_.trainable("weights", shape, Initializer::kTruncatedNormal);
    const Tape::Scope scope(g_, "weights/Regularizer");
    const Value scale = constant(g_, "scale");
    losses_.push_back(multiply(g_, scale, l2_loss(g_, weights), "l2_regularizer"));
    histogram(weights);
    return weights;
  }

  void moving_average(const std::string& name, Initializer initializer, Value batch_value) {
    const Variable average = variables_.untrained(name, g_.shape(batch_value), initializer);
    const Tape::Scope scope(g_, "AssignMovingAvg");
    const Value decay = constant(g_, "decay");
    const Value change = subtract(g_, *average.read, batch_value);
    variables_.assign(average, "AssignSub", "AssignSubVariableOp", multiply(g_, change, decay));
  }

  Value conv(const std::string& name, Value x, const ConvLayer& layer) {
    const Tape::Scope scope(g_, name);
    const Value weights =
        decayed_weights({layer.window.height, layer.window.width, g_.shape(x)[3], layer.channels});
    const Value convolved = conv2d(g_, x, weights, layer.window);
    Value normalised = convolved;
    {
      const Tape::Scope inner(g_, "BatchNorm");
      const Value beta = variables_.trainable("beta", {layer.channels}, Initializer::kZeros);
      const BatchNorm norm =
          fused_batch_norm(g_, convolved, constant(g_, "Const", {layer.channels}), beta);
      moving_average("moving_mean", Initializer::kZeros, norm.mean);
      moving_average("moving_variance", Initializer::kOnes, norm.variance);
      normalised = norm.output;
    }
    return relu(g_, normalised);
  }

  // Convolutions one after the other: "Branch_1/Conv2d_0", ...
  Value branch(std::size_t index, Value x, const std::vector<ConvLayer>& layers) {
    const Tape::Scope scope(g_, "Branch_" + std::to_string(index));
    for (std::size_t i = 0; i < layers.size(); ++i)
      x = conv("Conv2d_" + std::to_string(i), x, layers[i]);
    return x;
  }

  Value pooled_branch(std::size_t index, Value x, std::int64_t channels) {
    const Tape::Scope scope(g_, "Branch_" + std::to_string(index));
    return conv("Conv2d_0", avg_pool(g_, x, k3x3), {channels});
  }

  Value halving_pool(std::size_t index, Value x) {
    const Tape::Scope scope(g_, "Branch_" + std::to_string(index));
    return max_pool(g_, x, kHalve);
  }

  // A branch whose last step is two convolutions side by side.
  Value forked_branch(std::size_t index, Value x, const std::vector<ConvLayer>& layers) {
    x = branch(index, x, layers);
    const Tape::Scope scope(g_, "Branch_" + std::to_string(index));
    const Value wide = conv("Conv2d_1x3", x, {384, k1x3});
    const Value tall = conv("Conv2d_3x1", x, {384, k3x1});
    return concat(g_, std::vector<Value>{wide, tall}, 3);
  }

  Value join(const std::vector<Value>& branches) {
    const Value joined = concat(g_, branches, 3);
    summarize(joined);
    return joined;
  }

  Value stem(Value x) {
    x = conv("Conv2d_1a_3x3", x, {32, kHalve});
    x = conv("Conv2d_2a_3x3", x, {32, {.height = 3, .width = 3}});
    x = conv("Conv2d_2b_3x3", x, {64, k3x3});
    x = max_pool(g_, x, kHalve);
    x = conv("Conv2d_3b_1x1", x, {80});
    x = conv("Conv2d_4a_3x3", x, {192, {.height = 3, .width = 3}});
    return max_pool(g_, x, kHalve);
  }

  Value mixed_5(Value x) {  // 35 x 35
    for (const auto& [name, pooled] :
         {std::pair{"Mixed_5b", 32}, std::pair{"Mixed_5c", 64}, std::pair{"Mixed_5d", 64}}) {
      const Tape::Scope scope(g_, name);
      x = join({branch(0, x, {{64}}), branch(1, x, {{48}, {64, k5x5}}),
                branch(2, x, {{64}, {96, k3x3}, {96, k3x3}}), pooled_branch(3, x, pooled)});
    }
    return x;
  }

  Value mixed_6(Value x) {  // 17 x 17
    {
      const Tape::Scope scope(g_, "Mixed_6a");
      x = join({branch(0, x, {{384, kHalve}}), branch(1, x, {{64}, {96, k3x3}, {96, kHalve}}),
                halving_pool(2, x)});
    }
    for (const auto& [name, n] : {std::pair{"Mixed_6b", 128}, std::pair{"Mixed_6c", 160},
                                  std::pair{"Mixed_6d", 160}, std::pair{"Mixed_6e", 192}}) {
      const Tape::Scope scope(g_, name);
      x = join({branch(0, x, {{192}}), branch(1, x, {{n}, {n, k1x7}, {192, k7x1}}),
                branch(2, x, {{n}, {n, k7x1}, {n, k1x7}, {n, k7x1}, {192, k1x7}}),
                pooled_branch(3, x, 192)});
    }
    return x;
  }

  Value mixed_7(Value x) {  // 8 x 8
    {
      const Tape::Scope scope(g_, "Mixed_7a");
      x = join({branch(0, x, {{192}, {320, kHalve}}),
                branch(1, x, {{192}, {192, k1x7}, {192, k7x1}, {192, kHalve}}),
                halving_pool(2, x)});
    }
    for (const char* name : {"Mixed_7b", "Mixed_7c"}) {
      const Tape::Scope scope(g_, name);
      x = join({branch(0, x, {{320}}), forked_branch(1, x, {{384}}),
                forked_branch(2, x, {{448}, {384, k3x3}}), pooled_branch(3, x, 192)});
    }
    return x;
  }

  Window end_of_image(Value x) const { return {.height = g_.shape(x)[1], .width = g_.shape(x)[2]}; }

  Value auxiliary_loss(Value x) {
    const Tape::Scope scope(g_, "AuxLogits");
    x = conv("Conv2d_1b_1x1", avg_pool(g_, x, {.height = 5, .width = 5, .stride = 3}), {128});
    Window whole = end_of_image(x);
    x = conv("Conv2d_2a_5x5", x, {768, whole});
    const Value loss = classify(x, "Conv2d_2b_1x1", std::nullopt);
    return multiply(g_, loss, constant(g_, "weight"));
  }

  // Pools what is left of the image, and the mean cross entropy of a linear classifier on it.
  Value classify(Value x, const std::string& name, std::optional<Window> pool) {
    const Tape::Scope scope(g_, name);
    if (pool.has_value()) x = dropout(g_, avg_pool(g_, x, *pool));
    const std::int64_t width = g_.shape(x)[3];
    const Value features = reshape(g_, x, {options_.batch, width}, "Squeeze");
    const Value weights = decayed_weights({width, options_.classes});
    const Value biases = variables_.trainable("biases", {options_.classes}, Initializer::kZeros);
    const Value logits = bias_add(g_, matmul(g_, features, weights), biases);
    const Value losses = sparse_softmax_cross_entropy(g_, logits, *labels_);
    return reduce(g_, losses, {.keep = false, .mean = true});
  }

  void histogram(Value x) {
    const Value tag = constant(g_, "summary/tag");
    summaries_.push_back(g_.add({.name = "summary/HistogramSummary",
                                 .kind = "HistogramSummary",
                                 .inputs = {tag, x},
                                 .outputs = {Shape{}}}));
  }

  // The histogram of an end point, and how many of its values are zero.
  void summarize(Value x) {
    histogram(x);
    const Tape::Scope scope(g_, "summary/sparsity");
    const Value zero = constant(g_, "zero");
    const Value equal = g_.add({.name = "Equal",
                                .kind = "Equal",
                                .inputs = {x, zero},
                                .outputs = {g_.shape(x)},
                                .flops = elements(g_.shape(x))});
    const Value axes = constant(g_, "Const", {4});
    const Value mean = g_.add({.name = "Mean",
                               .kind = "Mean",
                               .inputs = {equal, axes},
                               .outputs = {Shape{}},
                               .flops = elements(g_.shape(x))});
    const Value tag = constant(g_, "tag");
    summaries_.push_back(g_.add({.name = "ScalarSummary",
                                 .kind = "ScalarSummary",
                                 .inputs = {tag, mean},
                                 .outputs = {Shape{}},
                                 .kernel = false}));
  }

  InceptionV3Options options_;
  Tape g_;
  Variables variables_;
  std::optional<Value> labels_;
  std::vector<Value> losses_, summaries_;
};

}  // namespace

OpGraph generate_inception_v3(const InceptionV3Options& options) {
  require_positive("batch", options.batch);
  require_positive("classes", options.classes);
  const std::int64_t smallest = options.auxiliary ? 107 : 75;
  if (options.image < smallest)
    throw InputError("inception-v3: the image must have at least " + std::to_string(smallest) +
                     " pixels a side, not " + std::to_string(options.image));
  return InceptionV3(options).build();
}

}  // namespace baechi
