// SPDX-License-Identifier: Apache-2.0
// Costs for models that come without any: from shapes, by a roofline on known devices (Paper 4.1
// measures them instead).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/generate/costing.h"

namespace baechi {

struct ModelCosts {
  std::vector<CostedKind> kinds;      // none: models without costs are refused
  std::optional<std::int64_t> batch;  // what stands for a dimension that the model leaves open
};

}  // namespace baechi
