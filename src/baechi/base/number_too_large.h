// SPDX-License-Identifier: Apache-2.0
// What the checked quantities of base/units.h throw, told apart from other wrong input.
#pragma once

#include "baechi/base/error.h"

namespace baechi {

// A sum or product does not fit in 63 bits. It says nothing about whether a plan exists.
class NumberTooLarge : public InputError {
 public:
  using InputError::InputError;
};

}  // namespace baechi
