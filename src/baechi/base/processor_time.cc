// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/processor_time.h"

#include <ctime>

namespace baechi {

std::chrono::nanoseconds processor_time_of_thread() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

namespace {
thread_local std::chrono::nanoseconds::rep begin_of_task = 0;  // in nanoseconds
}  // namespace

ProcessorTimeOfTask::ProcessorTimeOfTask() : begin_of_outer_(begin_of_task) {
  begin_of_task = processor_time_of_thread().count();
}
ProcessorTimeOfTask::~ProcessorTimeOfTask() { begin_of_task = begin_of_outer_.count(); }

std::chrono::nanoseconds ProcessorTimeOfTask::begin() {
  return std::chrono::nanoseconds(begin_of_task);
}

}  // namespace baechi
