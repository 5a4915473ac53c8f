// SPDX-License-Identifier: Apache-2.0
// Sparse K = L D L^T for symmetric quasi-definite K (a permuted [A B; B^T -C] with A, C positive
// definite), which has such a factorisation in every elimination order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "baechi/lp/elimination_order.h"

namespace baechi::lp {

class SparseLdl {
 public:
  // Analyses the pattern once: order, elimination tree, column counts.
  SparseLdl(std::uint32_t size, std::span<const MatrixEntry> entries);

  // Multiplications of one factorisation, and entries of L. Known before any memory is spent on L.
  double work() const { return work_; }
  std::size_t fill() const { return column_begin_.back(); }

  // A pivot has its diagonal's sign; one that cancels to rounding error loses it, and its unknown
  // is left at 0: an inexact solution that the next iteration's residuals make up for. diagonal[i]
  // by row; off_diagonal[e] for the constructor's entry e, repeats are added up.
  void factor(std::span<const double> diagonal, std::span<const double> off_diagonal);

  // Overwrites b with the solution of K x = b.
  void solve(std::span<double> b);

 private:
  void analyse_tree();

  std::vector<std::uint32_t> order_;  // position -> row
  // The upper triangle of the permuted K, by column: rows above the diagonal.
  std::vector<std::uint32_t> upper_begin_, upper_row_;
  std::vector<std::uint32_t> slot_;    // entry -> its place in upper_row_
  std::vector<std::uint32_t> parent_;  // elimination tree; a root is its own parent
  std::vector<std::size_t> column_begin_;
  double work_ = 0;

  std::vector<double> upper_, inverse_pivot_, l_, row_values_, permuted_;
  std::vector<std::uint32_t> l_row_;
};

}  // namespace baechi::lp
