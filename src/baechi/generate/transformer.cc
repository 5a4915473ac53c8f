// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/transformer.h"

#include <optional>
#include <string>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/generate/dataflow_ops.h"
#include "baechi/generate/variables.h"

namespace baechi {
namespace {

using namespace generate;

class Transformer {
 public:
  explicit Transformer(const TransformerOptions& options)
      : options_(options),
        g_({.name = "transformer",
            .batch = options.batch,
            .costing = options.costing,
            .gate_gradients = true}),
        variables_(g_) {}

  OpGraph build() && {
    if (options_.shared_embedding)
      shared_ = variables_.trainable("embedding", {options_.vocabulary, options_.width},
                                     Initializer::kUniform);
    const Value global_step = step_counter(g_);
    const Value memory = encode(embed("source"));
    const Value loss = loss_of(decode(embed("target"), memory));
    const Value rate = learning_rate_schedule(g_, global_step, 0);
    g_.differentiate(loss);
    apply_adam(g_, variables_, rate, {.fused = true});
    return std::move(g_).finish();
  }

 private:
  std::int64_t rows() const { return options_.batch * options_.length; }

  // The matrix of words of this name in the current scope, or the one for all.
  Value words(const std::string& name) {
    const Shape shape{options_.vocabulary, options_.width};
    if (!options_.shared_embedding) return variables_.trainable(name, shape, Initializer::kUniform);
    return *shared_;
  }

  Value embed(const std::string& side) {
    const Tape::Scope scope(g_, side);
    const Value ids = placeholder(g_, "ids", {options_.batch, options_.length});
    const Value tokens = gather(g_, words("embedding"), ids);
    const Value scaled = multiply(g_, tokens, constant(g_, "scale"));
    const Value positions = constant(g_, "positions", {options_.length, options_.width});
    return dropout(g_, add(g_, scaled, positions));
  }

  Value encode(Value x) {
    const Value mask = placeholder(g_, "source/mask", {options_.batch, 1, 1, options_.length});
    for (std::int64_t layer = 0; layer < options_.layers; ++layer) {
      const Tape::Scope scope(g_, "encoder/layer_" + std::to_string(layer));
      x = attend("self_attention", x, x, mask);
      x = feed_forward(x);
    }
    return x;
  }

  Value decode(Value x, Value memory) {
    const Value past = constant(g_, "target/mask", {1, 1, options_.length, options_.length});
    const Value mask = placeholder(g_, "memory/mask", {options_.batch, 1, 1, options_.length});
    for (std::int64_t layer = 0; layer < options_.layers; ++layer) {
      const Tape::Scope scope(g_, "decoder/layer_" + std::to_string(layer));
      x = attend("self_attention", x, x, past);
      x = attend("cross_attention", x, memory, mask);
      x = feed_forward(x);
    }
    return x;
  }

  // [batch, length, width] by a matrix, through two dimensions as TensorFlow's dense layers go.
  Value project(const std::string& name, Value x, std::int64_t columns) {
    const Tape::Scope scope(g_, name);
    Shape shape = g_.shape(x);
    const std::int64_t inner = shape.back();
    const Value kernel = variables_.trainable("kernel", {inner, columns}, Initializer::kUniform);
    const Value flat = reshape(g_, x, {rows(), inner});
    const Value product = matmul(g_, flat, kernel);
    shape.back() = columns;
    return reshape(g_, product, shape);
  }

  Value add_bias(const std::string& name, Value x) {
    const Tape::Scope scope(g_, name);
    return bias_add(g_, x, variables_.trainable("bias", {g_.shape(x).back()}, Initializer::kZeros));
  }

  Value split_heads(Value x) {
    const std::int64_t heads = options_.heads;
    const Value parts =
        reshape(g_, x, {options_.batch, options_.length, heads, options_.width / heads});
    return transpose(g_, parts, {0, 2, 1, 3});
  }

  Value attend(const std::string& name, Value x, Value memory, Value mask) {
    const Tape::Scope scope(g_, name);
    const Value query = project("query", x, options_.width);
    const Value key = project("key", memory, options_.width);
    const Value value = project("value", memory, options_.width);
    const Value query_heads = split_heads(query);
    const Value key_heads = split_heads(key);
    const Value value_heads = split_heads(value);
    const Value scaled = multiply(g_, query_heads, constant(g_, "scale"));
    const Value logits = add(g_, matmul(g_, scaled, key_heads, {.b = true}), mask);
    const Value weights = dropout(g_, softmax(g_, logits));
    const Value mixed = transpose(g_, matmul(g_, weights, value_heads), {0, 2, 1, 3});
    const Value merged = reshape(g_, mixed, {options_.batch, options_.length, options_.width});
    return connect(x, project("output", merged, options_.width));
  }

  Value feed_forward(Value x) {
    const Tape::Scope scope(g_, "feed_forward");
    const Value inner = add_bias("in", project("in", x, options_.feed_forward));
    const Value hidden = dropout(g_, relu(g_, inner));
    return connect(x, add_bias("out", project("out", hidden, options_.width)));
  }

  // Residual connection, then normalisation.
  Value connect(Value x, Value y) {
    const Tape::Scope scope(g_, "connect");
    const Value sum = add(g_, x, dropout(g_, y));
    const Value mean = reduce(g_, sum, {.mean = true});
    const Value variance = reduce(g_, squared_difference(g_, sum, mean), {.mean = true});
    const Value centred = subtract(g_, sum, mean);
    const Value stabilised = add(g_, variance, constant(g_, "epsilon"));
    const Value normal = multiply(g_, centred, rsqrt(g_, stabilised));
    const Value scale = variables_.trainable("scale", {options_.width}, Initializer::kOnes);
    const Value bias = variables_.trainable("bias", {options_.width}, Initializer::kZeros);
    return add(g_, multiply(g_, normal, scale), bias);
  }

  Value loss_of(Value x) {
    const Tape::Scope scope(g_, "loss");
    const Value labels = placeholder(g_, "labels", {rows()});
    const Value weights = placeholder(g_, "weights", {rows()});
    const Value flat = reshape(g_, x, {rows(), options_.width});
    const Value logits = matmul(g_, flat, words("projection"), {.b = true});
    const Value losses = sparse_softmax_cross_entropy(g_, logits, labels);
    return reduce(g_, multiply(g_, losses, weights), {.keep = false, .mean = true});
  }

  TransformerOptions options_;
  Tape g_;
  Variables variables_;
  std::optional<Value> shared_;
};

}  // namespace

OpGraph generate_transformer(const TransformerOptions& options) {
  require_positive("batch", options.batch);
  require_positive("length", options.length);
  require_positive("layers", options.layers);
  require_positive("heads", options.heads);
  require_positive("width", options.width);
  require_positive("feed_forward", options.feed_forward);
  require_positive("vocabulary", options.vocabulary);
  if (options.width % options.heads != 0)
    throw InputError("transformer: " + std::to_string(options.heads) +
                     " heads do not divide a width of " + std::to_string(options.width));
  return Transformer(options).build();
}

}  // namespace baechi
