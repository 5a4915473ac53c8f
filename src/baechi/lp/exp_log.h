// SPDX-License-Identifier: Apache-2.0
// exp and log from additions and multiplications alone, so that every platform gets the same bits
// (the C library's differ in the last one) and the compiler can inline them. Relative error of exp
// and absolute error of log below 1e-9: they steer a heuristic whose result is certified apart.
#pragma once

#include <bit>
#include <cstdint>

namespace baechi::lp {

// e^x for x <= 0; below -700 the result is rounded up to e^-700, still a normal number.
inline double exp_nonpositive(double x) {
  constexpr double kLog2e = 1.4426950408889634, kLn2 = 0.6931471805599453;
  constexpr double kRoundToInteger =
      0x1.8p52;  // adding it leaves the nearest integer in the low bits
  x = x < -700 ? -700 : x;
  const double shifted = x * kLog2e + kRoundToInteger;
  const double t = (x * kLog2e - (shifted - kRoundToInteger)) * kLn2;  // |t| <= ln(2) / 2
  const double series =
      1 + t * (1 + t * (1.0 / 2 +
                        t * (1.0 / 6 +
                             t * (1.0 / 24 +
                                  t * (1.0 / 120 +
                                       t * (1.0 / 720 + t * (1.0 / 5040 + t * (1.0 / 40320))))))));
  const auto exponent = std::bit_cast<std::uint64_t>(shifted) << 52;  // two's complement, low bits
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(series) + exponent);
}

// ln(x) for normal x > 0.
inline double log_positive(double x) {
  constexpr double kLn2 = 0.6931471805599453;
  constexpr std::uint64_t kSqrtHalfBits = 0x3fe6a09e667f3bcd;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  // Split x = m 2^k with m in [sqrt(1/2), sqrt(2)).
  const std::uint64_t above = bits - kSqrtHalfBits;
  const auto k = static_cast<double>(static_cast<std::int64_t>(above) >> 52);
  const double m = std::bit_cast<double>(kSqrtHalfBits + (above & 0x000fffffffffffff));
  const double s = (m - 1) / (m + 1), q = s * s;  // |s| < 0.172
  const double series =
      2 * s * (1 + q * (1.0 / 3 + q * (1.0 / 5 + q * (1.0 / 7 + q * (1.0 / 9 + q * (1.0 / 11))))));
  return k * kLn2 + series;
}

}  // namespace baechi::lp
