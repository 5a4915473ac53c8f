// SPDX-License-Identifier: Apache-2.0
// GNMT as the paper trains it (Paper 5): Google's neural machine translation, unrolled.
#pragma once

#include <cstdint>

#include "baechi/generate/costing.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

struct GnmtOptions {
  std::int64_t batch = 128;
  std::int64_t length = 40;  // of source and target: the number of steps that are unrolled
  std::int64_t layers = 4;   // of the encoder, and of the decoder; at least 2
  std::int64_t hidden = 512;
  std::int64_t vocabulary = 30'000;
  // All steps are projected onto the vocabulary at once, as the paper's published model does it:
  // the projection has one gradient then. Else step by step, with a gradient for each.
  bool project_at_once = false;
  Costing costing = {};
};

// One training step as a TensorFlow graph: LSTM encoder and decoder, Bahdanau attention on the
// decoder's first layer, residual connections from the third layer on, dropout, clipping by global
// norm, Adam operator by operator.
OpGraph generate_gnmt(const GnmtOptions& options);

}  // namespace baechi
