// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/llama.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/generate/dataflow_ops.h"
#include "baechi/generate/modules.h"

namespace baechi {
namespace {

using namespace generate;

constexpr std::int64_t kExpertsPerToken = 2;

class Llama {
 public:
  explicit Llama(const LlamaOptions& options)
      : options_(options),
        g_({.name = options.experts > 1 ? "moe" : "llama",
            .batch = options.batch,
            .costing = options.costing}),
        modules_(g_, options.training) {}

  OpGraph build() && {
    const Value ids = placeholder(g_, "input_ids", {options_.batch, options_.length});
    Value x = modules_.embedding("embed_tokens", ids, options_.vocabulary, options_.width);
    for (std::int64_t layer = 0; layer < options_.layers; ++layer) {
      const Tape::Scope scope(g_, "layers/" + std::to_string(layer));
      x = attention(x);
      x = feed_forward(x);
    }
    x = normalise("norm", x);
    const Value logits = modules_.linear("lm_head", x, options_.vocabulary, false);
    if (options_.training) {
      const Value labels = placeholder(g_, "labels", {options_.batch, options_.length});
      modules_.train(modules_.add({.name = "loss",
                                   .kind = "CrossEntropyLoss",
                                   .inputs = {logits, labels},
                                   .outputs = {Shape{}},
                                   .flops = 11 * elements(g_.shape(logits))}));
    }
    return std::move(g_).finish();
  }

 private:
  Value normalise(const std::string& name, Value x) {
    return modules_.norm(name, "RMSNorm", x, options_.width);
  }

  Value residual(const std::string& name, Value x, Value y) {
    return modules_.elementwise(name, "Add", {x, y}, 1);
  }

  Value attention(Value x) {
    const std::int64_t keys_width = options_.width / options_.heads * options_.key_heads;
    const Value normal = normalise("input_layernorm", x);
    const Tape::Scope scope(g_, "self_attn");
    const Value query = modules_.linear("q_proj", normal, options_.width, false);
    const Value key = modules_.linear("k_proj", normal, keys_width, false);
    const Value value = modules_.linear("v_proj", normal, keys_width, false);
    const Value turned_query = modules_.elementwise("rotary_q", "RotaryEmbedding", {query}, 3);
    const Value turned_key = modules_.elementwise("rotary_k", "RotaryEmbedding", {key}, 3);
    // Scores and mixture, each a product over pairs of positions; fused, so no score is stored.
    const Value mixed =
        modules_.add({.name = "attention",
                      .kind = "ScaledDotProductAttention",
                      .inputs = {turned_query, turned_key, value},
                      .outputs = {g_.shape(query)},
                      .flops = (Bytes(4) * elements(g_.shape(query)) * options_.length).count()});
    const Value output = modules_.linear("o_proj", mixed, options_.width, false);
    return residual("residual", x, output);
  }

  // down(silu(gate(x)) * up(x))
  Value gated(Value x) {
    const Value gate = modules_.linear("gate_proj", x, options_.feed_forward, false);
    const Value up = modules_.linear("up_proj", x, options_.feed_forward, false);
    const Value product = modules_.elementwise("act_fn", "SiLU", {gate, up}, kTranscendental + 1);
    return modules_.linear("down_proj", product, options_.width, false);
  }

  Value feed_forward(Value x) {
    const Value normal = normalise("post_attention_layernorm", x);
    if (options_.experts > 1) return residual("moe/residual", x, mixture(normal));
    const Tape::Scope scope(g_, "mlp");
    return residual("residual", x, gated(normal));
  }

  Value mixture(Value x) {
    const Tape::Scope scope(g_, "moe");
    const std::int64_t experts = options_.experts;
    const std::int64_t visits = kExpertsPerToken * options_.batch * options_.length;
    const Value scores = modules_.linear("gate", x, experts, false);
    const Shape share{(visits + experts - 1) / experts, options_.width};
    const std::vector<Value> parts =
        modules_.add_all({.name = "dispatch",
                          .kind = "Dispatch",
                          .inputs = {x, scores},
                          .outputs = std::vector<Shape>(static_cast<std::size_t>(experts), share)});
    std::vector<Value> answers;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Tape::Scope expert(g_, "experts/" + std::to_string(i));
      answers.push_back(gated(parts[i]));
    }
    answers.push_back(scores);
    return modules_.add({.name = "combine",
                         .kind = "Combine",
                         .inputs = answers,
                         .outputs = {g_.shape(x)},
                         .flops = 2 * visits * options_.width});
  }

  LlamaOptions options_;
  Tape g_;
  Modules modules_;
};

}  // namespace

LlamaOptions mixtral_options() {
  return {.layers = 32,
          .width = 4096,
          .heads = 32,
          .key_heads = 8,
          .feed_forward = 14'336,
          .vocabulary = 32'000,
          .experts = 8};
}

OpGraph generate_llama(const LlamaOptions& options) {
  require_positive("batch", options.batch);
  require_positive("length", options.length);
  require_positive("layers", options.layers);
  require_positive("width", options.width);
  require_positive("heads", options.heads);
  require_positive("key_heads", options.key_heads);
  require_positive("feed_forward", options.feed_forward);
  require_positive("vocabulary", options.vocabulary);
  if (options.width % options.heads != 0 || options.heads % options.key_heads != 0)
    throw InputError("llama: heads must divide the width, and key_heads the heads");
  if (options.experts != 1 && options.experts < kExpertsPerToken)
    throw InputError("llama: experts must be 1, or at least 2");
  return Llama(options).build();
}

}  // namespace baechi
