// SPDX-License-Identifier: Apache-2.0
// Random numbers: a seed and a counter per device, so that results depend on the order in which
// operators were called, never on when streams ran them.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

namespace baechi::sim {

const at::Generator& default_generator(int device);
at::Generator make_generator(int device);

// A host generator for the next operator that draws from `generator`, which moves on by one.
at::Generator host_generator_for_next_operator(const at::Generator& generator);

}  // namespace baechi::sim
