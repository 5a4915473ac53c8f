// SPDX-License-Identifier: Apache-2.0
// Time in integer nanoseconds and memory in integer bytes, as types. Sums and products are checked:
// what does not fit in 63 bits throws InputError, since only absurd input can get there.
#pragma once

#include <compare>
#include <cstdint>

#include "baechi/base/overflow.h"

namespace baechi {

[[noreturn]] void throw_overflow(const char* quantity);

// A checked 64-bit count of one unit. `Self` is the derived quantity (CRTP), so that a Time and a
// Bytes never mix.
template <class Self>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(std::int64_t count) : count_(count) {}
  constexpr std::int64_t count() const { return count_; }

  friend constexpr auto operator<=>(Quantity, Quantity) = default;

  friend constexpr Self operator+(Self a, Self b) {
    std::int64_t sum = 0;
    if (add_overflows(a.count(), b.count(), sum)) throw_overflow(Self::kName);
    return Self(sum);
  }
  friend constexpr Self operator-(Self a, Self b) {
    std::int64_t difference = 0;
    if (subtract_overflows(a.count(), b.count(), difference)) throw_overflow(Self::kName);
    return Self(difference);
  }
  friend constexpr Self operator*(Self a, std::int64_t factor) {
    std::int64_t product = 0;
    if (multiply_overflows(a.count(), factor, product)) throw_overflow(Self::kName);
    return Self(product);
  }
  friend constexpr Self operator*(std::int64_t factor, Self a) { return a * factor; }
  constexpr Self& operator+=(Self other) { return self() = self() + other; }
  constexpr Self& operator-=(Self other) { return self() = self() - other; }

 private:
  constexpr Self& self() { return static_cast<Self&>(*this); }
  std::int64_t count_ = 0;
};

class Time : public Quantity<Time> {  // integer nanoseconds
 public:
  static constexpr const char* kName = "time";
  using Quantity::Quantity;
};

class Bytes : public Quantity<Bytes> {  // integer bytes
 public:
  static constexpr const char* kName = "memory";
  using Quantity::Quantity;
};

constexpr Time nanoseconds(std::int64_t n) { return Time(n); }
constexpr Time microseconds(std::int64_t n) { return Time(n) * 1'000; }
constexpr Time milliseconds(std::int64_t n) { return Time(n) * 1'000'000; }
constexpr Bytes kibibytes(std::int64_t n) { return Bytes(n) * 1024; }
constexpr Bytes mebibytes(std::int64_t n) { return kibibytes(n) * 1024; }
constexpr Bytes gibibytes(std::int64_t n) { return mebibytes(n) * 1024; }

// ceil(value * numerator / denominator), exact in 128 bits and checked at the end.
// Requires value, numerator >= 0 and denominator > 0.
std::int64_t scale_up(std::int64_t value, std::int64_t numerator, std::int64_t denominator,
                      const char* quantity);

}  // namespace baechi
