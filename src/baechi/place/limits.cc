// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/limits.h"

#include <string>

#include "baechi/base/error.h"

namespace baechi {

void check_threads(unsigned threads) {
  if (threads == 0 || threads > kMostThreads)
    throw InputError("threads must be from 1 to " + std::to_string(kMostThreads) + ", not " +
                     std::to_string(threads));
}

void check_budget(double seconds) {
  if (!(seconds > 0) || seconds > kLongestBudget)
    throw InputError("the budget must be a positive number of seconds, at most a million");
}

void check_lp_threshold(double threshold) {
  if (!(threshold >= 0 && threshold <= kLargestLpThreshold))
    throw InputError("lp_threshold must be from 0 to 0.5, not " + std::to_string(threshold));
}

}  // namespace baechi
