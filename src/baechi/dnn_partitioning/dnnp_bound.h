// SPDX-License-Identifier: Apache-2.0
// A lower bound on the largest load (dnnp-maxload) of any placement, by prices on groups;
// docs/explanation/bounds.md has the proof. Beyond the paper. Internal to dnn_partitioning/.
#pragma once

#include <cstdint>
#include <functional>

#include "baechi/dnn_partitioning/dnnp_instance.h"

namespace baechi::dnnp {

struct BoundEffort {
  std::int64_t work = 0;       // pairs of load and price to look at, about
  std::function<bool()> stop;  // asked between steps
};

// At most `value`, the largest load of some placement: equal to it is a proof that it is the best.
Ns max_load_bound(const Instance& instance, Ns value, const BoundEffort& effort);

}  // namespace baechi::dnnp
