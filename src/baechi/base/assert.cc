// SPDX-License-Identifier: Apache-2.0
#include "baechi/base/assert.h"

namespace baechi {

void assertion_failed(const char* condition, const char* why, const char* file, int line) {
  throw InternalError(std::string("internal error: ") + why + " (" + condition + ") at " + file +
                      ":" + std::to_string(line));
}

}  // namespace baechi
