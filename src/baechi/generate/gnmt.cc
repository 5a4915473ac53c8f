// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/gnmt.h"

#include <string>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/generate/dataflow_ops.h"
#include "baechi/generate/variables.h"

namespace baechi {
namespace {

using namespace generate;

struct LstmState {
  Value c, h;
};

std::string numbered(const std::string& name, std::int64_t i) { return name + std::to_string(i); }

// TensorFlow's BasicLSTMCell under a dropout wrapper.
class LstmCell {
 public:
  LstmCell(Tape& g, Variables& variables, std::string name, std::int64_t inputs, std::int64_t units)
      : g_(&g),
        name_(std::move(name)),
        kernel_(variables.trainable(name_ + "/kernel", {inputs + units, 4 * units},
                                    Initializer::kUniform)),
        bias_(variables.trainable(name_ + "/bias", {4 * units}, Initializer::kUniform)) {}

  // The new state; the output is its h, thinned by dropout.
  std::pair<Value, LstmState> step(std::int64_t t, std::vector<Value> inputs,
                                   const LstmState& state) const {
    Tape& g = *g_;
    const Tape::Scope scope(g, name_ + numbered("/t", t));
    inputs.push_back(state.h);
    const Value gates = bias_add(g, matmul(g, concat(g, inputs, 1), kernel_), bias_);
    const std::vector<Value> parts = split(g, gates, 4, 1);  // input, candidate, forget, output
    const Value forget = sigmoid(g, add(g, parts[2], constant(g, "forget_bias")));
    const Value input = sigmoid(g, parts[0]);
    const Value candidate = tanh(g, parts[1]);
    const Value kept = multiply(g, state.c, forget);
    const Value c = add(g, kept, multiply(g, input, candidate));
    const Value squashed = tanh(g, c);
    const Value h = multiply(g, squashed, sigmoid(g, parts[3]));
    return {dropout(g, h), {c, h}};
  }

  LstmState zero_state(std::int64_t batch, std::int64_t units) const {
    const Tape::Scope scope(*g_, name_);
    const auto zeros = [&](const char* name) {
      return g_->add({.name = name, .kind = "Fill", .outputs = {{batch, units}}});
    };
    const Value c = zeros("zeros_c");
    return {c, zeros("zeros_h")};
  }

 private:
  Tape* g_;
  std::string name_;
  Value kernel_, bias_;
};

class Gnmt {
 public:
  explicit Gnmt(const GnmtOptions& options)
      : options_(options),
        g_({.name = "gnmt", .batch = options.batch, .costing = options.costing}),
        variables_(g_) {}

  OpGraph build() && {
    const Value global_step = step_counter(g_);
    encode();
    build_decoder();
    const std::vector<Value> decoded = decode();
    const Value loss = options_.project_at_once ? loss_at_once(decoded) : loss_by_step(decoded);
    const Value rate = learning_rate_schedule(g_, global_step, 4);
    g_.differentiate(loss);
    apply_adam(g_, variables_, rate, {.fused = false, .clip = true});
    return std::move(g_).finish();
  }

 private:
  std::vector<Value> inputs_by_step(const std::string& name) {
    const Value all = placeholder(g_, name, {options_.length, options_.batch});
    const Tape::Scope scope(g_, name);
    return unstack(g_, all);
  }

  Value embed(Value table, Value ids, const std::string& name, std::int64_t t) {
    const Tape::Scope scope(g_, name + numbered("/t", t));
    return gather(g_, table, ids);
  }

  // Residual connections from the third layer on.
  Value layer_output(std::int64_t layer, Value output, Value input, const std::string& scope_name) {
    const Tape::Scope scope(g_, scope_name);
    return layer >= 2 ? add(g_, output, input, "residual") : identity(g_, output, "output");
  }

  void encode() {
    const std::vector<Value> source = inputs_by_step("source");
    const Value table = variables_.trainable(
        "enc/embedding", {options_.vocabulary, options_.hidden}, Initializer::kUniform);
    std::vector<LstmCell> cells;
    for (std::int64_t layer = 0; layer < options_.layers; ++layer) {
      cells.emplace_back(g_, variables_, numbered("enc/cell_", layer), options_.hidden,
                         options_.hidden);
      states_.push_back(cells.back().zero_state(options_.batch, options_.hidden));
    }
    for (std::int64_t t = 0; t < options_.length; ++t) {
      Value x = embed(table, source[static_cast<std::size_t>(t)], "enc/embedding", t);
      for (std::int64_t layer = 0; layer < options_.layers; ++layer)
        x = run_cell(cells, layer, t, {x}, "enc");
      encoded_.push_back(x);
    }
  }

  // Runs one layer for one step on `inputs`, of which the first is the residual one.
  Value run_cell(const std::vector<LstmCell>& cells, std::int64_t layer, std::int64_t t,
                 const std::vector<Value>& inputs, const std::string& side) {
    const auto i = static_cast<std::size_t>(layer);
    const auto [output, state] = cells[i].step(t, inputs, states_[i]);
    states_[i] = state;
    return layer_output(layer, output, inputs.front(),
                        side + numbered("/cell_", layer) + numbered("/t", t));
  }

  void build_decoder() {
    const std::int64_t hidden = options_.hidden;
    table_ =
        variables_.trainable("dec/embedding", {options_.vocabulary, hidden}, Initializer::kUniform);
    for (std::int64_t layer = 0; layer < options_.layers; ++layer)
      decoder_.emplace_back(g_, variables_, numbered("dec/cell_", layer), 2 * hidden, hidden);
    const Value memory_kernel = variables_.trainable("attention/memory_layer/kernel",
                                                     {hidden, hidden}, Initializer::kUniform);
    query_kernel_ = variables_.trainable("attention/query_layer/kernel", {hidden, hidden},
                                         Initializer::kUniform);
    v_ = variables_.trainable("attention/v", {hidden}, Initializer::kUniform);
    output_kernel_ = variables_.trainable("projection/kernel", {hidden, options_.vocabulary},
                                          Initializer::kUniform);
    output_bias_ =
        variables_.trainable("projection/bias", {options_.vocabulary}, Initializer::kUniform);
    const Tape::Scope scope(g_, "attention");
    memory_ = stack(g_, encoded_, 1);
    keys_ = matmul(g_, *memory_, memory_kernel);
    mask_ = placeholder(g_, "mask", {options_.batch, options_.length});
  }

  // Bahdanau attention: v . tanh(keys + query), softmax over the source, a mixture of the memory.
  Value attend(std::int64_t t, Value query_input) {
    const std::int64_t batch = options_.batch, length = options_.length, hidden = options_.hidden;
    const Tape::Scope scope(g_, numbered("attention/t", t));
    const Value query = matmul(g_, query_input, *query_kernel_);
    const Value row = reshape(g_, query, {batch, 1, hidden}, "ExpandDims");
    const Value energy = tanh(g_, add(g_, *keys_, row));
    const Value score = reduce(g_, multiply(g_, *v_, energy), {.keep = false});
    const Value weights = softmax(g_, masked(g_, *mask_, score));
    const Value weight_rows = reshape(g_, weights, {batch, 1, length}, "ExpandDims_1");
    return reshape(g_, matmul(g_, weight_rows, *memory_), {batch, hidden}, "Squeeze");
  }

  Value step_loss(std::int64_t t, Value x, Value labels, Value weights) {
    const Tape::Scope scope(g_, numbered("projection/t", t));
    const Value logits = bias_add(g_, matmul(g_, x, *output_kernel_), *output_bias_);
    const Value losses = sparse_softmax_cross_entropy(g_, logits, labels);
    return reduce(g_, multiply(g_, losses, weights), {.keep = false});
  }

  // The decoder's outputs by step.
  std::vector<Value> decode() {
    const std::vector<Value> target = inputs_by_step("target_in");
    Value context = g_.add({.name = "dec/zeros_context",
                            .kind = "Fill",
                            .outputs = {{options_.batch, options_.hidden}}});
    std::vector<Value> decoded;
    for (std::int64_t t = 0; t < options_.length; ++t) {
      Value x = embed(*table_, target[static_cast<std::size_t>(t)], "dec/embedding", t);
      for (std::int64_t layer = 0; layer < options_.layers; ++layer) {
        x = run_cell(decoder_, layer, t, {x, context}, "dec");
        if (layer == 0) context = attend(t, x);
      }
      decoded.push_back(x);
    }
    return decoded;
  }

  Value loss_by_step(const std::vector<Value>& decoded) {
    const std::vector<Value> labels = inputs_by_step("target_out"),
                             weights = inputs_by_step("target_weights");
    std::vector<Value> losses;
    for (std::size_t t = 0; t < decoded.size(); ++t)
      losses.push_back(step_loss(static_cast<std::int64_t>(t), decoded[t], labels[t], weights[t]));
    const Tape::Scope scope(g_, "loss");
    const Value sum = add_n(g_, losses);
    return multiply(g_, sum, constant(g_, "scale"));
  }

  Value loss_at_once(const std::vector<Value>& decoded) {
    const std::int64_t words = options_.length * options_.batch;
    const Value labels = placeholder(g_, "target_out", {options_.length, options_.batch});
    const Value weights = placeholder(g_, "target_weights", {words});
    const Tape::Scope scope(g_, "projection");
    const Value x = reshape(g_, stack(g_, decoded, 0), {words, options_.hidden});
    const Value logits = bias_add(g_, matmul(g_, x, *output_kernel_), *output_bias_);
    const Value losses =
        sparse_softmax_cross_entropy(g_, logits, reshape(g_, labels, {words}, "Labels"));
    const Value sum = reduce(g_, multiply(g_, losses, weights), {.keep = false});
    return multiply(g_, sum, constant(g_, "scale"));
  }

  GnmtOptions options_;
  Tape g_;
  Variables variables_;
  std::vector<LstmState> states_;  // by layer; the decoder starts from the encoder's last
  std::vector<Value> encoded_;     // by step
  std::vector<LstmCell> decoder_;
  std::optional<Value> table_, query_kernel_, v_, output_kernel_, output_bias_;
  std::optional<Value> memory_, keys_, mask_;
};

}  // namespace

OpGraph generate_gnmt(const GnmtOptions& options) {
  require_positive("batch", options.batch);
  require_positive("length", options.length);
  if (options.layers < 2)  // the first decoder layer's attention is read by the second
    throw InputError("gnmt: layers must be at least 2, not " + std::to_string(options.layers));
  require_positive("hidden", options.hidden);
  require_positive("vocabulary", options.vocabulary);
  return Gnmt(options).build();
}

}  // namespace baechi
