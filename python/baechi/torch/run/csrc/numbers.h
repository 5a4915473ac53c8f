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

inline c10::IValue of_integers(Operation operation, std::int64_t a, std::int64_t b) {
  switch (operation) {
    case Operation::kAdd:
      return a + b;
    case Operation::kSub:
      return a - b;
    case Operation::kMul:
      return a * b;
    case Operation::kFloorDiv:
      return floor_div(a, b);
    case Operation::kMod:
      return a - floor_div(a, b) * b;
    case Operation::kNeg:
      return -a;
    case Operation::kMax:
      return std::max(a, b);
    case Operation::kMin:
      return std::min(a, b);
    default:
      TORCH_CHECK(false, "not an operation of integers");
  }
}

inline c10::IValue of_floats(Operation operation, double a, double b) {
  switch (operation) {
    case Operation::kAdd:
      return a + b;
    case Operation::kSub:
      return a - b;
    case Operation::kMul:
      return a * b;
    case Operation::kFloorDiv:
      return std::round((a - floor_mod(a, b)) / b);
    case Operation::kMod:
      return floor_mod(a, b);
    case Operation::kTrueDiv:
      return a / b;
    case Operation::kNeg:
      return -a;
    case Operation::kMax:
      return std::max(a, b);
    case Operation::kMin:
      return std::min(a, b);
    case Operation::kFloat:
      return a;
    default:
      TORCH_CHECK(false, "not an operation of floats");
  }
}

template <class T>
std::optional<bool> compared(Operation operation, T a, T b) {
  switch (operation) {
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
    default:
      return std::nullopt;
  }
}

// A unary operation is given its argument twice.
inline c10::IValue evaluate(Operation operation, const c10::IValue& a, const c10::IValue& b) {
  const c10::Scalar x = a.toScalar(), y = b.toScalar();
  const bool floats = x.isFloatingPoint() || y.isFloatingPoint();
  const auto answer = floats ? compared(operation, x.toDouble(), y.toDouble())
                             : compared(operation, x.toLong(), y.toLong());
  if (answer) return *answer;
  const bool divides = operation == Operation::kTrueDiv || operation == Operation::kFloorDiv ||
                       operation == Operation::kMod;
  TORCH_CHECK(!divides || y.toDouble() != 0, "division by zero");
  if (floats || operation == Operation::kTrueDiv || operation == Operation::kFloat)
    return of_floats(operation, x.toDouble(), y.toDouble());
  return of_integers(operation, x.toLong(), y.toLong());
}

}  // namespace baechi::run
