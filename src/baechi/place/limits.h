// SPDX-License-Identifier: Apache-2.0
// The ranges of the numbers that a request may hold: one home for the command, the Python package
// and the documentation. Beyond the paper.
#pragma once

namespace baechi {

inline constexpr unsigned kMostThreads = 1024;
inline constexpr double kLongestBudget = 1e6;  // seconds
// At most one child of an operator has a relaxed variable below one half.
inline constexpr double kLargestLpThreshold = 0.5;

// Throw InputError that names the number and its range.
void check_threads(unsigned threads);
void check_budget(double seconds);
void check_lp_threshold(double threshold);

}  // namespace baechi
