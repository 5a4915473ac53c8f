// SPDX-License-Identifier: Apache-2.0
// Numbers: what programs compute from sizes, as Python computes it.
#pragma once

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace baechi::run {

// In the order of OPERATIONS in executor.py.
enum class Operation {
  kAdd,
  kSub,
  kMul,
  kFloorDiv,
  kMod,
  kTrueDiv,
  kNeg,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kMax,
  kMin,
  kFloat,
};

inline std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

inline double floor_mod(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

inline c10::IValue divided(Operation operation, std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = floor_div(a, b);
  return operation == Operation::kFloorDiv ? quotient : a - quotient * b;
}

inline c10::IValue divided(Operation operation, double a, double b) {
  if (operation == Operation::kTrueDiv) return a / b;
  const double rest = floor_mod(a, b);
  return operation == Operation::kFloorDiv ? std::round((a - rest) / b) : rest;
}

template <class T>
c10::IValue evaluate_as(Operation operation, T a, T b) {
  switch (operation) {
    case Operation::kAdd:
      return a + b;
    case Operation::kSub:
      return a - b;
    case Operation::kMul:
      return a * b;
    case Operation::kFloorDiv:
    case Operation::kMod:
    case Operation::kTrueDiv:
      TORCH_CHECK(b != 0, "division by zero");
      return divided(operation, a, b);
    case Operation::kNeg:
      return -a;
    case Operation::kEq:
      return a == b;
    case Operation::kNe:
      return a != b;
    case Operation::kLt:
      return a < b;
    case Operation::kLe:
      return a <= b;
    case Operation::kGt:
      return a > b;
    case Operation::kGe:
      return a >= b;
    case Operation::kMax:
      return std::max(a, b);
    case Operation::kMin:
      return std::min(a, b);
    case Operation::kFloat:
      return a;
  }
  TORCH_CHECK(false, "not an operation");
}

// A unary operation is given its argument twice.
inline c10::IValue evaluate(Operation operation, const c10::IValue& a, const c10::IValue& b) {
  const c10::Scalar x = a.toScalar(), y = b.toScalar();
  const bool real = x.isFloatingPoint() || y.isFloatingPoint() ||
                    operation == Operation::kTrueDiv || operation == Operation::kFloat;
  return real ? evaluate_as(operation, x.toDouble(), y.toDouble())
              : evaluate_as(operation, x.toLong(), y.toLong());
}

}  // namespace baechi::run
