// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/request/paper.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "baechi/base/in_quotes.h"
#include "baechi/plan/request/option_values.h"
#include "baechi/plan/request/planner_options.h"

namespace baechi {
namespace {

constexpr double kPaperThreshold = 0.1;

// What portfolio and attempts do where a request is the paper's is in PlanRequest::paper itself.
void by_the_flag(PlanRequest& request) { request.paper = true; }

constexpr PaperRule kRules[] = {
    {.what = "co-placement",
     .section = "3.1.2",
     .paper = "with the only consumer, and backward with forward, as large as groups get; in a "
              "recurrent model each cell and attention, by name, and nothing else",
     .by_default = "one group per device, cut where little has to be sent",
     .apply =
         [](PlanRequest& r) {
           CoplacementOptions& options = r.optimize.coplacement;
           if (options.rule == CoplacementRule::kCut) {  // not asked for by name
             options.rule = CoplacementRule::kNeighbours;
             options.cells_alone = true;
           }
           options.capped = false;
         }},
    {.what = "fusion",
     .section = "3.1.3",
     .paper = "edges whose ends have one reader or one input, as long as meta-operators get",
     .by_default = "also where no second path exists; no longer than 8 typical transfers",
     .apply =
         [](PlanRequest& r) {
           r.optimize.fusion.by_reachability = false;
           r.optimize.fusion.grain = std::numeric_limits<double>::infinity();
         }},
    {.what = "forward operators only",
     .section = "3.1.3",
     .paper = "when one device has room for the model",
     .by_default = "when all that could ever be held has room, wherever it goes",
     .apply =
         [](PlanRequest& r) { r.optimize.forward_only.suffices = MemorySuffices::kForOneDevice; }},
    {.what = "suppliers",
     .section = "2.3",
     .paper = "weights and constants are scheduled as soon as they could start",
     .by_default = "with the first operator that needs them, and where it is",
     .apply = [](PlanRequest& r) { r.place.call_suppliers = false; }},
    {.what = "favorite children",
     .section = "2.4, 4.4",
     .paper = "the linear program, solved exactly; x < 0.1 makes one",
     .by_default = "a matching, then swaps on the longest path",
     .apply =
         [](PlanRequest& r) {
           r.place.favorites = FavoriteMethod::kLpExact;
           r.place.lp_threshold = kPaperThreshold;
           r.place.complete_matching = false;
         }},
    {.what = "the optimised graph",
     .section = "3.1",
     .paper = "its plan is the plan",
     .by_default = "the better of its plan and that of the graph as it is",
     .apply = by_the_flag},
    {.what = "order on a device",
     .section = "4.2, 4.3",
     .paper = "whatever becomes ready first",
     .by_default = "the best of that, the placer's order and longest way first",
     .apply = by_the_flag},
    {.what = "short memory",
     .section = "2.2 - 2.4",
     .paper = "what our replay finds over a capacity is no plan (OOM)",
     .by_default = "headroom, reservations, repair, then packing",
     .apply = by_the_flag},
};

// Which the paper decides, so that asking for another is a contradiction.
constexpr std::string_view kDecided[] = {"lp", "lp_threshold", "complete_matching"};
// Beyond it.
constexpr std::string_view kBeyond[] = {"tidy",      "micro_batches", "replicas",
                                        "recompute", "residency",     "place_copies"};

// Unless it has its default, or what the paper makes of it.
void refuse(const StepRequest& request, const StepRequest& paper, std::string_view name,
            const std::string& why) {
  const PlannerOption& option = find_planner_option(name);
  const std::string value = value_text(option, request);
  if (value != value_text(option, {}) && value != value_text(option, paper))
    throw OptionError(std::string(name).c_str(), why);
}

}  // namespace

std::span<const PaperRule> paper_rules() { return kRules; }

std::vector<const PlacerEntry*> placers_of_the_paper(std::string_view method) {
  std::vector<const PlacerEntry*> placers;
  std::string known;
  for (const PlacerEntry& placer : all_placers()) {
    if (!placer.optimizable && !placer.baseline) continue;
    known += ", " + std::string(placer.name);
    if (placer.name == method || (method == "auto" && placer.optimizable))
      placers.push_back(&placer);
  }
  if (placers.empty())
    throw OptionError("method", in_quotes(method) +
                                    " is beyond the paper; with paper there are auto" + known +
                                    ", where auto compares the paper's three");
  return placers;
}

StepRequest as_the_paper(StepRequest request) {
  placers_of_the_paper(request.search.method);
  StepRequest paper;
  for (const PaperRule& rule : kRules) rule.apply(paper.search);
  for (const std::string_view name : kDecided)
    refuse(request, paper, name, "with paper it is decided: leave out one of the two");
  for (const std::string_view name : kBeyond)
    refuse(request, paper, name, "it is beyond the paper: leave out one of the two");
  for (const PaperRule& rule : kRules) rule.apply(request.search);
  request.search.suggest = false;
  return request;
}

}  // namespace baechi
