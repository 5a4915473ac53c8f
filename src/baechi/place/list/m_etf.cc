// SPDX-License-Identifier: Apache-2.0
// m-ETF: earliest task first under memory limits (Paper 2.3): the list scheduler as it is.
#include "baechi/place/allowed_devices.h"
#include "baechi/place/list/list_scheduler.h"
#include "baechi/place/placer.h"

namespace baechi {

PlaceResult place_m_etf(const CostModel& costs, const PlaceOptions& options) {
  const AllowedDevices allowed(costs);
  if (const auto op = allowed.first_impossible()) return DoesNotFit{*op, Bytes(0)};
  return run_list_scheduler(costs, allowed, options, nullptr);
}

}  // namespace baechi
