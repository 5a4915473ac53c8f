// SPDX-License-Identifier: Apache-2.0
// The names that a request's method may have: placers, and what runs several of them.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "baechi/place/placer.h"
#include "baechi/plan/request/budget.h"

namespace baechi {

struct PortfolioEntry {
  std::string_view name;
  std::string_view summary;
  bool all_placers = false;      // those that cannot win as well, to compare with
  double proof = Share::kProof;  // of the budget, before the search
  bool is_for_proof = false;     // what the search leaves of the budget goes to one, too
};
std::span<const PortfolioEntry> portfolio_methods();

// It makes one plan, and does not run others. Throws as placers_of.
bool runs_alone(std::string_view method);

// The placers whose plans the method compares, its own alone if it is one. Throws InputError that
// lists the known names.
std::vector<const PlacerEntry*> placers_of(std::string_view method);

// The placer that proves: it searches all plans.
const PlacerEntry& prover();

// What runs several placers for the method; nothing when it is one that runs alone. Throws as
// placers_of.
std::optional<PortfolioEntry> recipe_of(std::string_view method);

}  // namespace baechi
