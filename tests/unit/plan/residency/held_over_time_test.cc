// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/residency/held_over_time.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "baechi/base/random.h"

namespace baechi::testing {
namespace {

TEST_CASE("residency: the account over time answers as a plain list does") {
  Random random(0x4e1d);
  for (int round = 0; round < 200; ++round) {
    const std::size_t size = 1 + random.below(40);
    HeldOverTime account(size);
    std::vector<std::int64_t> held(size);
    const auto fits = [&](std::size_t from, std::size_t to, std::int64_t more, std::int64_t limit) {
      for (std::size_t i = from; i < std::min(to, size); ++i)
        if (held[i] + more > limit) return false;
      return true;
    };
    const std::size_t asked_after = random.below(20);
    for (std::size_t step = 0; step < 40; ++step) {
      const std::size_t from = random.below(size), to = from + random.below(size + 3 - from);
      const std::int64_t bytes = static_cast<std::int64_t>(random.below(30)) - 10;
      account.add(from, to, Bytes(bytes));
      for (std::size_t i = from; i < std::min(to, size); ++i) held[i] += bytes;
      if (step < asked_after) continue;
      const std::int64_t limit = bytes * 3;
      REQUIRE(account.fits(from, to, Bytes(bytes), Bytes(limit)) == fits(from, to, bytes, limit));
      std::size_t start = from;
      while (start < to && !fits(start, to, bytes, limit)) ++start;
      REQUIRE(account.start_fitting(from, to, Bytes(bytes), Bytes(limit)) == start);
    }
  }
}

}  // namespace
}  // namespace baechi::testing
