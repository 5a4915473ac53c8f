// SPDX-License-Identifier: Apache-2.0
// 128-bit integers for exact intermediate products: the compiler's own, and TwoWords where it has
// none, as MSVC.
#pragma once

#include <compare>
#include <concepts>
#include <cstdint>
#include <type_traits>

namespace baechi {

// In two's complement, wrapping around. What baechi needs of an integer, at compile time, too.
template <bool kSigned>
class TwoWords {
  using Word = std::uint64_t;
  using High = std::conditional_t<kSigned, std::int64_t, Word>;

 public:
  constexpr TwoWords() = default;
  template <std::integral T>
  constexpr TwoWords(T value)  // NOLINT(google-explicit-constructor): as between integers
      : high_(value < T{0} ? ~Word{0} : 0), low_(static_cast<Word>(value)) {}

  template <std::integral T>
  explicit constexpr operator T() const {
    return static_cast<T>(low_);
  }

  constexpr TwoWords operator~() const { return {~high_, ~low_}; }
  constexpr TwoWords operator-() const { return ~*this + 1; }

  friend constexpr TwoWords operator+(TwoWords a, TwoWords b) {
    const Word low = a.low_ + b.low_;
    return {a.high_ + b.high_ + (low < a.low_ ? 1 : 0), low};
  }
  friend constexpr TwoWords operator-(TwoWords a, TwoWords b) { return a + ~b + 1; }
  friend constexpr TwoWords operator*(TwoWords a, TwoWords b) {
    TwoWords product = multiplied(a.low_, b.low_);
    product.high_ += a.low_ * b.high_ + a.high_ * b.low_;
    return product;
  }
  friend constexpr TwoWords operator/(TwoWords a, TwoWords b) {
    const TwoWords<false> quotient = quotient_of(a.magnitude(), b.magnitude());
    const TwoWords signless{quotient.high_, quotient.low_};
    return a.negative() != b.negative() ? -signless : signless;
  }
  friend constexpr TwoWords operator%(TwoWords a, TwoWords b) { return a - a / b * b; }
  friend constexpr TwoWords operator|(TwoWords a, TwoWords b) {
    return {a.high_ | b.high_, a.low_ | b.low_};
  }
  friend constexpr TwoWords operator<<(TwoWords a, int by) {
    if (by == 0) return a;
    if (by >= 64) return {a.low_ << (by - 64), 0};
    return {a.high_ << by | a.low_ >> (64 - by), a.low_ << by};
  }
  friend constexpr TwoWords operator>>(TwoWords a, int by) {
    if (by == 0) return a;
    const auto high = static_cast<High>(a.high_);  // brings its sign
    const Word sign = a.negative() ? ~Word{0} : 0;
    if (by >= 64) return {sign, static_cast<Word>(high >> (by - 64))};
    return {static_cast<Word>(high >> by), a.high_ << (64 - by) | a.low_ >> by};
  }

  constexpr TwoWords& operator+=(TwoWords b) { return *this = *this + b; }
  constexpr TwoWords& operator-=(TwoWords b) { return *this = *this - b; }
  constexpr TwoWords& operator*=(TwoWords b) { return *this = *this * b; }
  constexpr TwoWords& operator++() { return *this += 1; }

  friend constexpr bool operator==(TwoWords a, TwoWords b) = default;
  friend constexpr std::strong_ordering operator<=>(TwoWords a, TwoWords b) {
    if (a.high_ != b.high_) return static_cast<High>(a.high_) <=> static_cast<High>(b.high_);
    return a.low_ <=> b.low_;
  }

 private:
  template <bool>
  friend class TwoWords;

  constexpr TwoWords(Word high, Word low) : high_(high), low_(low) {}

  constexpr bool negative() const { return kSigned && high_ >> 63 != 0; }
  constexpr TwoWords<false> magnitude() const {
    const TwoWords value = negative() ? -*this : *this;
    return {value.high_, value.low_};
  }

  static constexpr TwoWords multiplied(Word a, Word b) {
    constexpr Word kHalf = 0xffffffff;
    const Word a_low = a & kHalf, a_high = a >> 32, b_low = b & kHalf, b_high = b >> 32;
    const Word low = a_low * b_low;
    const Word middle = a_high * b_low + (low >> 32);  // no overflow: (2^32 - 1) 2^32 at most
    const Word other = a_low * b_high + (middle & kHalf);
    return {a_high * b_high + (middle >> 32) + (other >> 32), other << 32 | (low & kHalf)};
  }

  // Bit by bit, if not in one word.
  static constexpr TwoWords<false> quotient_of(TwoWords<false> a, TwoWords<false> b) {
    if (a.high_ == 0 && b.high_ == 0) return TwoWords<false>(a.low_ / b.low_);
    TwoWords<false> quotient, rest;
    for (int bit = 127; bit >= 0; --bit) {
      const bool carries = rest.high_ >> 63 != 0;
      rest = rest << 1 | TwoWords<false>(static_cast<Word>(a >> bit) & 1);
      quotient = quotient << 1;
      if (!carries && rest < b) continue;
      rest -= b;
      ++quotient;
    }
    return quotient;
  }

  Word high_ = 0, low_ = 0;
};

#ifdef __SIZEOF_INT128__
__extension__ using WideInt = __int128;
__extension__ using WideUnsigned = unsigned __int128;
#else
using WideInt = TwoWords<true>;
using WideUnsigned = TwoWords<false>;
#endif

}  // namespace baechi
