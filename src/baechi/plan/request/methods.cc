// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/request/methods.h"

#include <algorithm>

namespace baechi {
namespace {

constexpr PortfolioEntry kMethods[] = {
    {.name = "auto", .summary = "every method that can win, then a search from the best of them"},
    {.name = "refine",
     .summary = "the paper's methods and chain, then a search from the best of them",
     .proof = 0},
    {.name = "all", .summary = "auto, and every baseline to compare with", .all_placers = true},
};

}  // namespace

const PlacerEntry& prover() { return *std::ranges::find_if(all_placers(), &PlacerEntry::proves); }

std::optional<PortfolioEntry> recipe_of(std::string_view method) {
  for (const PortfolioEntry& entry : kMethods)
    if (entry.name == method) return entry;
  const PlacerEntry& placer = find_placer(method);
  if (!placer.proves) return std::nullopt;
  return PortfolioEntry{.name = placer.name, .summary = placer.summary, .is_for_proof = true};
}

std::span<const PortfolioEntry> portfolio_methods() { return kMethods; }

bool runs_alone(std::string_view method) { return !recipe_of(method).has_value(); }

std::vector<const PlacerEntry*> placers_of(std::string_view method) {
  const std::optional<PortfolioEntry> recipe = recipe_of(method);
  if (!recipe.has_value()) return {&find_placer(method)};
  std::vector<const PlacerEntry*> placers;
  for (const PlacerEntry& placer : all_placers())
    if (!placer.proves && (placer.in_auto || recipe->all_placers)) placers.push_back(&placer);
  return placers;
}

}  // namespace baechi
