// SPDX-License-Identifier: Apache-2.0
// Which kinds of TensorFlow's operators draw random numbers or keep a state, so that a second run
// would not give the same outputs. Beyond the paper.
#pragma once

#include <string_view>

namespace baechi {

bool has_state_or_chance(std::string_view kind);

}  // namespace baechi
