// SPDX-License-Identifier: Apache-2.0
// m-SCT: small communication times under memory limits (Paper 2.4, Appendix B).
//
// Definitions. Every operator has at most one favorite child and is the favorite child of at most
// one (favorite_child.h). At a time t,
//
//   an operator is urgent  if it could start on any device it may use: its inputs could have
//                          reached them all by now;
//   a device is    busy    while it runs an operator;
//                  awake   if it is not busy, and the favorite child of its last operator i has not
//                          been placed, may still go there, and no other device is where its inputs
//                          are earlier; but only until i's output could have reached any device,
//                          since then nothing is lost by going elsewhere;
//                  free    if it is neither.
//
// m-SCT is m-ETF in which an awake device takes only that favorite child, or an urgent operator.
// In the queue of pairs: on a device that is held for a favorite child, any other operator's
// earliest schedulable time is not before it is urgent, or the device is awake no longer.
#include "baechi/place/allowed_devices.h"
#include "baechi/place/list/favorite_child.h"
#include "baechi/place/list/list_scheduler.h"
#include "baechi/place/placer.h"

namespace baechi {

PlaceResult place_m_sct(const CostModel& costs, const PlaceOptions& options) {
  const AllowedDevices allowed(costs);
  if (const auto op = allowed.first_impossible()) return DoesNotFit{*op, Bytes(0)};
  const FavoriteChildren favorites = find_favorite_children(costs, options);
  return run_list_scheduler(costs, allowed, options, &favorites);
}

}  // namespace baechi
