// SPDX-License-Identifier: Apache-2.0
// Compares what kernels return with what their meta functions say: a setting, on in tests.
#pragma once

#include <string>

namespace baechi::sim {

void set_checked(bool on);

// What differed since the last call, a line each, and every operator once.
std::string take_mismatches();

}  // namespace baechi::sim
