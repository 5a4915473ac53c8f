// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/search/spending.h"

#include <algorithm>
#include <chrono>

#include "baechi/plan/fit/any_fit.h"
#include "baechi/plan/fit/fit_search.h"
#include "baechi/plan/request/budget.h"

namespace baechi {

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
  if (request.budget.none()) return 0;
  return work_of_methods(graph) + request.budget.part(Share::kMethods).replays();
}

std::int64_t most_work_of_cut(const PlanRequest& request, const OpGraph& graph) {
  constexpr std::int64_t kPart = 8;
  return work_of_methods(graph) / kPart + request.budget.part(Share::kMethods).replays();
}

Spending::Spending(const PlanRequest& request, const LastResort& fallbacks)
    : request_(request), fallbacks_(&fallbacks), all_(request.budget) {}

Spending::Spending(const Spending& other, Budget part)
    : request_(other.request_), fallbacks_(nullptr), all_(part), brake_(other.brake_) {}

Budget Spending::left() const {
  if (fallbacks_ == nullptr) return all_;
  Budget left = all_;
  left.spend(Budget::of_replays(static_cast<double>(fallbacks_->spent)));
  return std::max(all_.seconds / 2, left.seconds);
}

RefineOptions Spending::refinement(double share) const {
  return {.work = left().part(share).refines(),
          .seed = request_.place.seed,
          .threads = request_.threads,
          .order = request_.place.order,
          .brake = brake_.has_value() ? &*brake_ : nullptr,
          .cancel = request_.place.cancel};
}

void Spending::start_clock() {
  constexpr double kPatience = 5, kLeastPatience = 20;
  brake_.emplace(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(
      std::max(kLeastPatience, request_.budget.part(kPatience).seconds))));
}

bool Spending::is_over() {
  const CancelFlag* const cancel = request_.place.cancel;
  const bool over =
      (brake_.has_value() && brake_->reached()) || (cancel != nullptr && cancel->requested());
  note_stop(over);
  return over;
}

}  // namespace baechi
