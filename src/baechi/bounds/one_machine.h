// SPDX-License-Identifier: Apache-2.0
// The least time in which one device can do what must be done on it.
#pragma once

#include <vector>

#include "baechi/bounds/heads_tails.h"
#include "baechi/bounds/relaxation.h"

namespace baechi::bounds {

struct HeadTailJob {  // not before `head`, and the step lasts `tail` longer
  Ns head, time, tail;
};

// Jackson's preemptive schedule: the best makespan of jobs with heads and tails on one device that
// may interrupt them, hence a lower bound when it may not. O(jobs log jobs). Keeps its memory from
// call to call.
class PreemptiveMachine {
 public:
  Ns makespan(std::vector<HeadTailJob>& jobs);  // sorts them by head

 private:
  std::vector<HeadTailJob> open_;  // a heap, the longest tail on top; `time` is what is left to do
};

// max over the components of min over the types of the makespan on a preemptive machine.
Ns one_device_each(const Relaxation& relaxed, const HeadsTails& ends,
                   const IdVector<OpId, UnitId>& component, std::size_t num_components);

}  // namespace baechi::bounds
