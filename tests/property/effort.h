// SPDX-License-Identifier: Apache-2.0
// How many random instances a property test draws: all of them in optimised builds, a twentieth
// where assertions or sanitizers make each one so much dearer.
#pragma once

#include <cstdint>

namespace baechi::testing {

constexpr std::uint64_t effort(std::uint64_t instances) {
#ifdef NDEBUG
  return instances;
#else
  return instances / 20;
#endif
}

}  // namespace baechi::testing
