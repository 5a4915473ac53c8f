// SPDX-License-Identifier: Apache-2.0
// The star bound: how early an operator can start and how long the step goes on after it, when an
// input is either computed on the same device, one after the other, or sent there.
#pragma once

#include <span>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/bounds/relaxation.h"

namespace baechi::bounds {

// By operator and device type, [op * types + type]; kNever where the operator cannot be.
struct HeadsTails {
  std::vector<Ns> b;  // no plan starts it earlier
  std::vector<Ns> q;  // in no plan the step ends sooner after it has finished
};

// In no plan `to` starts sooner than so long after `from` has ended.
struct Distance {
  OpId from, to;
  Ns least;
};

// Operators of one component share a device. Pass the units, or coarser sets that a hypothesis
// forces together. `distances` sharpen both. O(types^2 (operators + edges) log degree).
HeadsTails star(const Relaxation& relaxed, const IdVector<OpId, UnitId>& component,
                std::span<const Distance> distances = {});

// max over the operators of min over the types of b + k + q.
Ns longest(const Relaxation& relaxed, const HeadsTails& ends);

// The same without communication: the longest chain of shortest times.
Ns longest_path(const Relaxation& relaxed);

}  // namespace baechi::bounds
