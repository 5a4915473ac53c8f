// SPDX-License-Identifier: Apache-2.0
// A two-tower recommender at module grain; beyond the paper. Two branches that meet at the end, and
// embedding tables that hold nearly all the memory and none of the arithmetic.
#pragma once

#include <cstdint>

#include "baechi/generate/costing.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

struct TwoTowerOptions {
  std::int64_t batch = 4096;
  std::int64_t layers = 4;  // of each tower: width, width / 2, ...
  std::int64_t width = 1024;
  std::int64_t users = 8'000'000;
  std::int64_t items = 4'000'000;
  std::int64_t features = 8;  // further tables per tower, of 200,000 rows
  std::int64_t embedding = 64;
  bool training = true;
  Costing costing = {};
};

OpGraph generate_two_tower(const TwoTowerOptions& options);

}  // namespace baechi
