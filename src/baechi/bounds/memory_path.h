// SPDX-License-Identifier: Apache-2.0
// The memory path bound: a chain of operators whose memory needs m devices changes device at least
// m - 1 times.
#pragma once

#include "baechi/bounds/relaxation.h"

namespace baechi::bounds {

// The best over a few chains: the longest by time, by memory, and by mixtures of the two. Linear.
Ns memory_path(const Relaxation& relaxed);

}  // namespace baechi::bounds
