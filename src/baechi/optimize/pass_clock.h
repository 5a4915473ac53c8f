// SPDX-License-Identifier: Apache-2.0
// Fills in a pass's statistics. Paper 3.1.1 - 3.1.3.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <utility>

#include "baechi/graph/op_graph.h"
#include "baechi/optimize/optimized.h"

namespace baechi {

class PassClock {
 public:
  PassClock(std::string_view pass, const PassStatistics::Size& before)
      : pass_(pass), before_(before), start_(std::clock()) {}
  PassClock(std::string_view pass, const OpGraph& before) : PassClock(pass, size_of(before)) {}

  PassStatistics stop(const PassStatistics::Size& after, std::string note) const {
    constexpr std::int64_t kNanosecondsPerTick = 1'000'000'000 / CLOCKS_PER_SEC;
    return {{std::string(pass_), before_, after, std::move(note)},
            Time((std::clock() - start_) * kNanosecondsPerTick)};
  }
  PassStatistics stop(const OpGraph& after, std::string note) const {
    return stop(size_of(after), std::move(note));
  }

 private:
  std::string_view pass_;
  PassStatistics::Size before_;
  std::clock_t start_;
};

}  // namespace baechi
