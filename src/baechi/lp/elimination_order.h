// SPDX-License-Identifier: Apache-2.0
// A fill-reducing elimination order for sparse symmetric matrices.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace baechi::lp {

// The off-diagonal entry in rows `first` and `second`; either order, repeats allowed.
using MatrixEntry = std::pair<std::uint32_t, std::uint32_t>;

// Approximate minimum degree on a quotient graph: eliminating a variable turns its neighbours into
// an element, which stands for the clique of their new entries without storing it. Returns the
// variables in order of elimination; deterministic.
std::vector<std::uint32_t> elimination_order(std::uint32_t size,
                                             std::span<const MatrixEntry> entries);

}  // namespace baechi::lp
