// SPDX-License-Identifier: Apache-2.0
#include "baechi/lp/sparse_ldl.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "baechi/base/random.h"

namespace baechi::lp {
namespace {

std::vector<MatrixEntry> random_entries(std::uint32_t size, std::size_t count, Random& random) {
  std::vector<MatrixEntry> entries;
  while (entries.size() < count) {
    const auto a = static_cast<std::uint32_t>(random.below(size));
    const auto b = static_cast<std::uint32_t>(random.below(size));
    if (a != b) entries.emplace_back(a, b);
  }
  return entries;
}

// A grid, numbered row by row: eliminating in that order fills the band.
std::vector<MatrixEntry> grid(std::uint32_t side) {
  std::vector<MatrixEntry> entries;
  for (std::uint32_t i = 0; i < side * side; ++i) {
    if (i % side + 1 < side) entries.emplace_back(i, i + 1);
    if (i + side < side * side) entries.emplace_back(i, i + side);
  }
  return entries;
}

TEST_CASE("sparse ldl: solves random quasi-definite systems, repeated entries included") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const auto size = static_cast<std::uint32_t>(random.between(1, 40));
    const auto entries =
        size == 1 ? std::vector<MatrixEntry>{} : random_entries(size, size * 2, random);
    std::vector<double> values, diagonal(size);
    std::vector<std::vector<double>> dense(size, std::vector<double>(size, 0));
    for (const auto& [a, b] : entries) {
      values.push_back(random.unit() - 0.5);
      dense[a][b] += values.back();
      dense[b][a] += values.back();
    }
    // Diagonally dominant with both signs: quasi-definite under any permutation.
    for (std::uint32_t i = 0; i < size; ++i) {
      double sum = 1;
      for (const double entry : dense[i]) sum += std::abs(entry);
      dense[i][i] = diagonal[i] = random.chance(0.5) ? sum : -sum;
    }
    SparseLdl ldl(size, entries);
    for (int again = 0; again < 2; ++again) {  // the analysis is reused
      ldl.factor(diagonal, values);
      std::vector<double> expected(size), b(size, 0);
      for (double& x : expected) x = random.unit() - 0.5;
      for (std::uint32_t i = 0; i < size; ++i)
        for (std::uint32_t j = 0; j < size; ++j) b[i] += dense[i][j] * expected[j];
      ldl.solve(b);
      for (std::uint32_t i = 0; i < size; ++i) CHECK(std::abs(b[i] - expected[i]) < 1e-10);
    }
  }
}

TEST_CASE("elimination order: a permutation that keeps trees and grids sparse") {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    auto order = elimination_order(50, random_entries(50, 120, random));
    std::ranges::sort(order);
    std::vector<std::uint32_t> all(50);
    std::iota(all.begin(), all.end(), 0U);
    CHECK(order == all);
  }
  std::vector<MatrixEntry> tree;
  for (std::uint32_t i = 1; i < 1000; ++i) tree.emplace_back((i - 1) / 3, i);
  CHECK(SparseLdl(1000, tree).fill() == tree.size());  // no fill at all

  // Row by row, a 40 x 40 grid fills about 40^3 = 64,000 entries.
  CHECK(SparseLdl(1600, grid(40)).fill() < 20'000);
  CHECK(elimination_order(0, {}).empty());
}

}  // namespace
}  // namespace baechi::lp
