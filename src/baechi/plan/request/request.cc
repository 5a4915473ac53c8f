// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/request/request.h"

#include "baechi/base/short_text.h"

namespace baechi {

std::string SearchNews::in_words() const {
  std::string words = short_text(*step) + " by " + method;
  if (bound.has_value()) words += ", no plan is below " + short_text(*bound);
  return words;
}

PlanRequest PlanRequest::within(Budget part) const {
  PlanRequest request = *this;
  request.budget = part;
  request.bounds = request.suggest = false;
  request.watch = nullptr;
  return request;
}

}  // namespace baechi
