// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/seen_devices.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <variant>

#include "baechi/place/placer.h"
#include "baechi/plan/search/spending.h"
#include "baechi/simulate/execution_simulator.h"

namespace baechi {
FirstPlans first_plans(const CostModel& costs, const PlanRequest& request) {
  const std::size_t num_devices = costs.cluster().num_devices();
  const auto used = [](const PlacedGraph& placed) -> std::size_t {
    return static_cast<std::size_t>(
        std::ranges::count_if(*placed.order, [](const auto& ops) { return !ops.empty(); }));
  };
  PlaceResult etf = place_m_etf(costs, request.place);
  auto* const placed = std::get_if<PlacedGraph>(&etf);
  if (placed == nullptr) return {};
  FirstPlans plans;
  plans.work = work_of(find_placer("m-etf"), costs);
  plans.devices = used(*placed);
  plans.known.emplace_back(place_m_etf, *placed);
  PlacedGraph executed =
      as_executed(std::move(*placed), request.place.order, costs.graph(), num_devices);
  const Trace trace = simulate(costs, executed);
  if (!find_overflow(trace, costs.cluster()).has_value()) {
    plans.step = trace.schedule.makespan;
    plans.placed = std::move(executed);
  }
  const std::int64_t work = plans.work + work_of(find_placer("m-sct"), costs);
  if (num_devices <= FirstPlans::kFewDevices || work > most_work_of_methods(request, costs.graph()))
    return plans;
  plans.work = work;
  const PlaceResult sct = place_m_sct(costs, request.place);
  if (const auto* other = std::get_if<PlacedGraph>(&sct)) {
    plans.devices = std::max(*plans.devices, used(*other));
    plans.known.emplace_back(place_m_sct, *other);
  } else {
    plans.devices.reset();
  }
  return plans;
}

std::unique_ptr<const NeededDevices> devices_to_see(const CostModel& costs,
                                                    const FirstPlans& plans) {
  if (!plans.step.has_value() || !plans.devices.has_value()) return nullptr;
  const std::size_t most = std::max(FirstPlans::kFewDevices / 2, std::bit_ceil(*plans.devices + 1));
  if (most * 2 > costs.cluster().num_devices()) return nullptr;
  return NeededDevices::first_of_each_run(costs, most);
}

}  // namespace baechi
