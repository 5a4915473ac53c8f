// SPDX-License-Identifier: Apache-2.0
// U-Net at module grain: images down and up again, with connections across; beyond the paper. What
// goes across lives long: a graph whose memory is in its tensors.
#pragma once

#include <cstdint>

#include "baechi/generate/costing.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

struct UnetOptions {
  std::int64_t batch = 4;
  std::int64_t image = 512;  // pixels of a side; divisible by 2^layers
  std::int64_t layers = 4;   // how often the image is halved
  std::int64_t channels = 64;
  std::int64_t classes = 2;
  bool training = true;
  Costing costing = {};
};

OpGraph generate_unet(const UnetOptions& options);

}  // namespace baechi
