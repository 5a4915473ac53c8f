// SPDX-License-Identifier: Apache-2.0
// Decoder-only language models at module grain; beyond the paper. Llama-like, and Mixtral-like with
// experts side by side.
#pragma once

#include <cstdint>

#include "baechi/generate/costing.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

struct LlamaOptions {  // the defaults are Llama 3 8B's
  std::int64_t batch = 1;
  std::int64_t length = 512;  // tokens per sequence
  std::int64_t layers = 32;
  std::int64_t width = 4096;
  std::int64_t heads = 32;
  std::int64_t key_heads = 8;  // keys and values have fewer heads
  std::int64_t feed_forward = 14'336;
  std::int64_t vocabulary = 128'256;
  // Experts per layer, of which every token visits two; 1: an ordinary feed-forward layer.
  std::int64_t experts = 1;
  bool training = false;  // else one forward pass over the tokens
  Costing costing = {.precision = Precision::kFp16};
};

LlamaOptions mixtral_options();  // Mixtral 8x7B's

// Experts get equal shares of the tokens.
OpGraph generate_llama(const LlamaOptions& options);

}  // namespace baechi
