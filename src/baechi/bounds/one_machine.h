// SPDX-License-Identifier: Apache-2.0
// The least time in which one device can do what must be done on it.
#pragma once

#include <vector>

#include "baechi/bounds/heads_tails.h"
#include "baechi/bounds/relaxation.h"

namespace baechi::bounds {

struct HeadTailJob {
  Ns b, k, q;
};

// Jackson's preemptive schedule: the best makespan of jobs with heads and tails on one device that
// may interrupt them, hence a lower bound when it may not. O(jobs log jobs).
Ns preemptive_one_machine(std::vector<HeadTailJob> jobs);

// max over the components of min over the types of preemptive_one_machine.
Ns one_device_each(const Relaxation& relaxed, const HeadsTails& ends,
                   const IdVector<OpId, UnitId>& component, std::size_t num_components);

}  // namespace baechi::bounds
