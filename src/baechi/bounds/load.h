// SPDX-License-Identifier: Apache-2.0
// Bounds from the work that the devices share, by weighted duality: for any weights y of a
// nanosecond and prices u of a byte per device,
//   makespan >= (sum over units of min over devices (y k + u held) - sum of u capacity) / sum of y.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "baechi/base/wide.h"
#include "baechi/bounds/relaxation.h"

namespace baechi::bounds {

inline constexpr std::int64_t kPricedBytes = std::int64_t{1} << 20;

struct LoadWeights {                // by type; integers, so that the bound is exact
  std::vector<std::int64_t> y;      // at most 2^20
  std::vector<std::int64_t> price;  // of kPricedBytes bytes
};

// What goes to one device as a whole.
struct Lumps {
  std::size_t size = 0;
  std::vector<Ns> k;               // [lump * types + type]
  std::vector<std::int64_t> held;  // [lump]: bytes at one moment, to be added up over lumps
  std::vector<std::int64_t> need;  // [lump]: bytes that a device must have to take the lump at all
};
Lumps lumps(const Relaxation& relaxed, const IdVector<OpId, UnitId>& component,
            std::size_t num_components);

// Of a device of each type, summed up; and a quotient rounded up, 0 when not positive.
std::int64_t total_weight(const Relaxation& relaxed, const LoadWeights& weights);
Ns ceil_divide(WideInt dividend, WideInt divisor);

// Good weights, found by ascending the dual; any would do.
LoadWeights balance(const Relaxation& relaxed, const Lumps& lumps);

// What all lumps cost at least, each where its time and its bytes together are cheapest, times
// kPricedBytes; absent where one of them has no device.
std::optional<WideInt> least_cost(const Lumps& lumps, const LoadWeights& weights);

Ns load(const Relaxation& relaxed, const Lumps& lumps, const LoadWeights& weights);

}  // namespace baechi::bounds
