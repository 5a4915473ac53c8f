// SPDX-License-Identifier: Apache-2.0
// Studies that Ctrl-C stops answer with what they have by then.
#pragma once

#include <optional>

#include "baechi/base/error.h"

namespace baechi {

// What `work` returns; nothing when it throws Cancelled and there is an answer without it.
template <class Work>
auto unless_cancelled(bool has_answer, const Work& work) -> std::optional<decltype(work())> {
  try {
    return work();
  } catch (const Cancelled&) {
    if (!has_answer) throw;
    return std::nullopt;
  }
}

}  // namespace baechi
