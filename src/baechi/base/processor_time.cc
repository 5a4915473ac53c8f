// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/processor_time.h"

#include <ctime>

namespace baechi {

std::chrono::nanoseconds processor_time_of_thread() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace baechi
