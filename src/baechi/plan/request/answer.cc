// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/request/answer.h"

#include "baechi/base/short_text.h"

namespace baechi {

std::string Unplaceable::in_words() const {
  std::string text = reason;
  if (smallest_capacity.has_value())
    text += "; it fits when every device has " + enough_text(*smallest_capacity);
  if (more_devices.has_value())
    text += "; it fits on " + std::to_string(*more_devices) + " devices like the largest";
  if (advice_cut_short) text += "; a longer budget looks for what would fit";
  if (step_with_recomputation.has_value())
    text += "; with recompute auto it fits: a step takes " + short_text(*step_with_recomputation);
  if (step_with_host.has_value())
    text += "; with " + baechi::short_text(host_needs) +
            " of a host's memory it fits (host, residency auto): a step takes " +
            short_text(*step_with_host);
  return text;
}

}  // namespace baechi
