// SPDX-License-Identifier: Apache-2.0
// A bound for pipelines: the work that the devices share, and how long each of them must wait until
// its first operator can start and after its last one has ended. Beyond the paper.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "baechi/base/wide.h"
#include "baechi/bounds/components.h"
#include "baechi/bounds/heads_tails.h"
#include "baechi/bounds/load.h"
#include "baechi/bounds/relaxation.h"

namespace baechi::bounds {

// The weights of all devices, largest first.
std::vector<std::int64_t> weights_of_devices(const Relaxation& relaxed, const LoadWeights& weights);

// How long devices need for weighted `work` at least, when the i-th of those that do some of it
// must wait for heads[i] before it and for tails[i] after it, both ascending: the best number of
// devices counts, of at most as many as there are waits. Absent when none has a weight.
std::optional<Ns> shared_with_waits(WideInt work, std::span<const std::int64_t> devices,
                                    std::span<const Ns> heads, std::span<const Ns> tails);

// Devices have different components, so the i-th device waits at least the i-th smallest head of a
// component before its work, and the i-th smallest tail after it. With the copies of an operator in
// one component, all of a pipeline's devices but one wait for its first stage. `together` are
// operators that share a device, `lumps` what each of these takes. O(operators x types).
Ns fill_drain(const Relaxation& relaxed, const HeadsTails& ends, const Components& together,
              const Lumps& lumps, const LoadWeights& weights);

}  // namespace baechi::bounds
