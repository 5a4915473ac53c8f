// SPDX-License-Identifier: Apache-2.0
// Sparse LDL^T, row by row: row k of L solves a triangular system whose pattern is the subtree of
// the elimination tree that the row's entries reach.
#include "baechi/lp/sparse_ldl.h"

#include <algorithm>
#include <numeric>

namespace baechi::lp {
namespace {

using Index = std::uint32_t;

// Where an entry of the matrix is. (In a function, GCC 13.2 could not compare it.)
struct Place {
  Index column, row, entry;
  auto operator<=>(const Place&) const = default;
};

}  // namespace

SparseLdl::SparseLdl(Index size, std::span<const MatrixEntry> entries)
    : order_(elimination_order(size, entries)),
      upper_begin_(size + 1, 0),
      slot_(entries.size()),
      parent_(size),
      column_begin_(size + 1, 0) {
  std::vector<Index> position(size);
  for (Index at = 0; at < size; ++at) position[order_[at]] = at;

  // Sorted, so that equal places become one slot.
  std::vector<Place> places;
  places.reserve(entries.size());
  for (Index e = 0; e < entries.size(); ++e) {
    const auto [low, high] = std::minmax(position[entries[e].first], position[entries[e].second]);
    places.push_back({high, low, e});
  }
  std::ranges::sort(places);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const bool repeated =
        i > 0 && places[i].column == places[i - 1].column && places[i].row == places[i - 1].row;
    if (!repeated) {
      upper_row_.push_back(places[i].row);
      ++upper_begin_[places[i].column + 1];
    }
    slot_[places[i].entry] = static_cast<Index>(upper_row_.size() - 1);
  }
  std::partial_sum(upper_begin_.begin(), upper_begin_.end(), upper_begin_.begin());
  analyse_tree();
}

void SparseLdl::analyse_tree() {
  const auto size = static_cast<Index>(order_.size());
  std::vector<Index> seen(size);
  std::iota(parent_.begin(), parent_.end(), Index{0});
  for (Index k = 0; k < size; ++k) {
    seen[k] = k;
    for (Index at = upper_begin_[k]; at < upper_begin_[k + 1]; ++at) {
      for (Index i = upper_row_[at]; seen[i] != k; i = parent_[i]) {
        if (parent_[i] == i) parent_[i] = k;
        ++column_begin_[i + 1];
        seen[i] = k;
      }
    }
  }
  for (Index i = 0; i < size; ++i) {
    const auto count = static_cast<double>(column_begin_[i + 1]);
    work_ += count * (count + 2);
  }
  std::partial_sum(column_begin_.begin(), column_begin_.end(), column_begin_.begin());
}

void SparseLdl::factor(std::span<const double> diagonal, std::span<const double> off_diagonal) {
  const auto size = static_cast<Index>(order_.size());
  upper_.assign(upper_row_.size(), 0);
  for (std::size_t e = 0; e < slot_.size(); ++e) upper_[slot_[e]] += off_diagonal[e];
  l_.resize(fill());
  l_row_.resize(fill());
  inverse_pivot_.resize(size);
  row_values_.assign(size, 0);

  std::vector<std::size_t> column_end(column_begin_.begin(), column_begin_.end() - 1);
  std::vector<Index> seen(size), path, pattern(size);
  double* const y = row_values_.data();
  for (Index k = 0; k < size; ++k) {
    // The pattern of row k, in an order that visits children before their ancestors.
    Index top = size;
    seen[k] = k;
    for (Index at = upper_begin_[k]; at < upper_begin_[k + 1]; ++at) {
      y[upper_row_[at]] += upper_[at];
      path.clear();
      for (Index i = upper_row_[at]; seen[i] != k; i = parent_[i]) {
        path.push_back(i);
        seen[i] = k;
      }
      for (; !path.empty(); path.pop_back()) pattern[--top] = path.back();
    }
    const double diagonal_k = diagonal[order_[k]];
    double pivot = diagonal_k;
    for (; top < size; ++top) {
      const Index i = pattern[top];
      const double yi = y[i];
      y[i] = 0;
      const std::size_t end = column_end[i];
      for (std::size_t at = column_begin_[i]; at < end; ++at) y[l_row_[at]] -= l_[at] * yi;
      const double entry = yi * inverse_pivot_[i];
      pivot -= entry * yi;
      l_row_[end] = k;
      l_[end] = entry;
      ++column_end[i];
    }
    inverse_pivot_[k] = pivot * diagonal_k > 1e-16 * diagonal_k * diagonal_k ? 1 / pivot : 0;
  }
}

void SparseLdl::solve(std::span<double> b) {
  const auto size = static_cast<Index>(order_.size());
  permuted_.resize(size);
  for (Index k = 0; k < size; ++k) permuted_[k] = b[order_[k]];
  for (Index k = 0; k < size; ++k)
    for (std::size_t at = column_begin_[k]; at < column_begin_[k + 1]; ++at)
      permuted_[l_row_[at]] -= l_[at] * permuted_[k];
  for (Index k = size; k-- > 0;) {
    double value = permuted_[k] * inverse_pivot_[k];
    for (std::size_t at = column_begin_[k]; at < column_begin_[k + 1]; ++at)
      value -= l_[at] * permuted_[l_row_[at]];
    permuted_[k] = value;
  }
  for (Index k = 0; k < size; ++k) b[order_[k]] = permuted_[k];
}

}  // namespace baechi::lp
