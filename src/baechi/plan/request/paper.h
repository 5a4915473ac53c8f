// SPDX-License-Identifier: Apache-2.0
// To the letter: the paper's own system behind one switch, to compare with (Paper 2.2 - 2.4,
// 3.1.1 - 3.1.4, 4.4).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "baechi/place/placer.h"
#include "baechi/plan/request/request.h"

namespace baechi {

// One thing that the paper does in another way than baechi does by default.
struct PaperRule {
  std::string_view what, section;
  std::string_view paper, by_default;
  void (*apply)(PlanRequest&);
};
// All of them, in the order in which a graph meets them.
std::span<const PaperRule> paper_rules();

// The request as the paper would have it, whose steps are single mini-batches: what
// PlanRequest::paper stands for, resolved. Twice is as once. Throws OptionError for a method or an
// option that is beyond the paper, or that it decides itself.
StepRequest as_the_paper(StepRequest request);

// The placers that the method stands for: its own, or all three of the paper's for `auto`. Throws
// OptionError for one that is neither the paper's nor a baseline.
std::vector<const PlacerEntry*> placers_of_the_paper(std::string_view method);

}  // namespace baechi
