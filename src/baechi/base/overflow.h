// SPDX-License-Identifier: Apache-2.0
// Whole numbers whose sum, difference or product may not fit, and a hint to the processor: what GCC
// and Clang have builtins for. The only file that names these; other compilers take `portable`.
#pragma once

#include <limits>

namespace baechi {

// Each returns whether it overflows; if it does not, `result` is set.
namespace portable {

template <class T>
constexpr bool add_overflows(T a, T b, T& result) {
  using Limits = std::numeric_limits<T>;
  if (b > 0 ? a > Limits::max() - b : a < Limits::min() - b) return true;
  result = a + b;
  return false;
}

template <class T>
constexpr bool subtract_overflows(T a, T b, T& result) {
  using Limits = std::numeric_limits<T>;
  if (b > 0 ? a < Limits::min() + b : a > Limits::max() + b) return true;
  result = a - b;
  return false;
}

template <class T>
constexpr bool multiply_overflows(T a, T b, T& result) {
  using Limits = std::numeric_limits<T>;
  if (a > 0 && b != 0 && (b > 0 ? a > Limits::max() / b : b < Limits::min() / a)) return true;
  if (a < 0 && b != 0 && (b > 0 ? a < Limits::min() / b : b < Limits::max() / a)) return true;
  result = a * b;
  return false;
}

}  // namespace portable

#ifdef __GNUC__  // Clang, too
template <class T>
constexpr bool add_overflows(T a, T b, T& result) {
  return __builtin_add_overflow(a, b, &result);
}
template <class T>
constexpr bool subtract_overflows(T a, T b, T& result) {
  return __builtin_sub_overflow(a, b, &result);
}
template <class T>
constexpr bool multiply_overflows(T a, T b, T& result) {
  return __builtin_mul_overflow(a, b, &result);
}
inline void prefetch(const void* address) { __builtin_prefetch(address); }
#else
using portable::add_overflows, portable::multiply_overflows, portable::subtract_overflows;
inline void prefetch(const void*) {}
#endif

}  // namespace baechi
