// SPDX-License-Identifier: Apache-2.0
// How many random instances a property test draws: all of them in optimised builds, a twentieth or
// another share where assertions or sanitizers make each one so much dearer. And how many a
// measurement draws.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace baechi::testing {

constexpr std::uint64_t effort(std::uint64_t instances, [[maybe_unused]] std::uint64_t share = 20) {
#ifdef NDEBUG
  return instances;
#else
  return instances / share;
#endif
}

// What BAECHI_INSTANCES says, for tests that print figures and run with --no-skip only.
inline std::uint64_t instances(std::uint64_t otherwise) {
  const char* text = std::getenv("BAECHI_INSTANCES");
  return text != nullptr ? std::stoull(text) : otherwise;
}

}  // namespace baechi::testing
