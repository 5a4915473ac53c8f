// SPDX-License-Identifier: Apache-2.0
// A seeded generator that gives the same numbers on every platform (the standard's distributions
// do not). splitmix64: small, fast, good enough to draw instances and tie-free perturbations.
#pragma once

#include <cstdint>

#include "baechi/base/wide.h"

namespace baechi {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  // Uniform in 0 .. bound-1 (multiply-shift: bias below 2^-32 for bounds that fit 32 bits).
  std::uint64_t below(std::uint64_t bound) {
    return static_cast<std::uint64_t>((static_cast<WideUnsigned>(next()) * bound) >> 64);
  }
  // Uniform in low .. high, both included.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low) + 1));
  }
  // Uniform in [0, 1), 53 random bits.
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  bool chance(double probability) { return unit() < probability; }

 private:
  std::uint64_t state_;
};

}  // namespace baechi
