// SPDX-License-Identifier: Apache-2.0
// Inception-V3 as the paper trains it (Paper 5): the image classifier with parallel branches.
#pragma once

#include <cstdint>

#include "baechi/generate/costing.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

struct InceptionV3Options {
  std::int64_t batch = 32;
  std::int64_t image = 299;  // pixels of a side, at least 107 (75 without the auxiliary classifier)
  std::int64_t classes = 1000;
  bool auxiliary = true;  // the second classifier, halfway, that training uses
  Costing costing = {};
};

// One training step as a TensorFlow graph: batch normalisation with moving averages, weight decay,
// summaries, RMSProp, gated gradients.
OpGraph generate_inception_v3(const InceptionV3Options& options);

}  // namespace baechi
