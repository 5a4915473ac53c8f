// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/search/budget.h"

#include <algorithm>
#include <chrono>

#include "baechi/plan/fit/any_fit.h"
#include "baechi/plan/fit/fit_search.h"
#include "baechi/plan/request/shares.h"

namespace baechi {

std::int64_t work_of(const PlacerEntry& placer, const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  return static_cast<std::int64_t>(graph.num_ops() + graph.num_edges()) * placer.work_of_node +
         static_cast<std::int64_t>(graph.num_ops() * costs.cluster().num_devices()) *
             placer.work_of_pair;
}

std::int64_t work_of_optimizer(const CostModel& costs) {  // which cuts a group for each device
  const OpGraph& graph = costs.graph();
  return static_cast<std::int64_t>((graph.num_ops() + graph.num_edges()) *
                                   costs.cluster().num_devices());
}

std::int64_t work_of_methods(const OpGraph& graph) {
  constexpr std::int64_t kLeast = 2'000'000, kOfOperator = 200;
  return std::max(kLeast, kOfOperator * static_cast<std::int64_t>(graph.num_ops()));
}

std::int64_t most_work_of_methods(const PlanRequest& request, const OpGraph& graph) {
  if (request.budget == 0) return 0;
  return work_of_methods(graph) + replays_in(request.budget * Share::kMethods);
}

Budget::Budget(const PlanRequest& request, const LastResort& fallbacks)
    : request_(request), fallbacks_(fallbacks), seconds_(request.budget) {}

Budget::Budget(const Budget& other, double seconds)
    : request_(other.request_),
      fallbacks_(other.fallbacks_),
      seconds_(seconds),
      brake_(other.brake_) {}

double Budget::seconds_left() const {
  const auto spent = static_cast<double>(fallbacks_.spent);
  return std::max(seconds_ / 2, seconds_ - spent / kReplaysPerSecond);
}

std::int64_t Budget::replays(double share) const { return replays_in(seconds_left() * share); }

std::int64_t Budget::looks(double share) const {
  return static_cast<std::int64_t>(seconds_left() * share * kLooksPerSecond);
}

double Budget::seconds(double share) const { return seconds_left() * share; }

RefineOptions Budget::refinement(double share) const {
  return {.work = static_cast<std::int64_t>(seconds_left() * share * kRefinesPerSecond),
          .seed = request_.place.seed,
          .threads = request_.threads,
          .order = request_.place.order,
          .brake = brake_.has_value() ? &*brake_ : nullptr,
          .cancel = request_.place.cancel};
}

void Budget::start_clock() {
  constexpr double kPatience = 5, kLeastPatience = 20;
  brake_.emplace(std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::max(kLeastPatience, request_.budget * kPatience))));
}

bool Budget::is_over() {
  const CancelFlag* const cancel = request_.place.cancel;
  const bool over =
      (brake_.has_value() && brake_->reached()) || (cancel != nullptr && cancel->requested());
  note_stop(over);
  return over;
}

}  // namespace baechi
