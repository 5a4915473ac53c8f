// SPDX-License-Identifier: Apache-2.0
// Compares what kernels return with what their meta functions say: a setting, on in tests.
#pragma once

#include <cstdint>
#include <string>

namespace baechi::sim {

void set_checked(bool on);

// What differed since the last call, a line each, and every operator once.
std::string take_mismatches();

// How many different operators have been compared.
std::int64_t num_checked();

}  // namespace baechi::sim
