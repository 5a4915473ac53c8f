// SPDX-License-Identifier: Apache-2.0
// What a call says that refuses its input; "" where it takes it.
#pragma once

#include <string>

#include "baechi/base/error.h"

namespace baechi::testing {

template <typename Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return {};
}

}  // namespace baechi::testing
