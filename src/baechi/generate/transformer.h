// SPDX-License-Identifier: Apache-2.0
// The Transformer, base size, as the paper trains it: without weight sharing (Paper 5).
#pragma once

#include <cstdint>

#include "baechi/generate/costing.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

struct TransformerOptions {
  std::int64_t batch = 64;
  std::int64_t length = 50;  // of source and target
  std::int64_t layers = 6;   // of the encoder, and of the decoder
  std::int64_t width = 512;
  std::int64_t heads = 8;  // divides the width
  std::int64_t feed_forward = 2048;
  std::int64_t vocabulary = 30'000;
  bool shared_embedding = false;  // one matrix for source, target and output; the paper has three
  Costing costing = {};
};

// One training step as a TensorFlow graph: normalisation after each residual connection, dropout,
// Adam, gated gradients.
OpGraph generate_transformer(const TransformerOptions& options);

}  // namespace baechi
