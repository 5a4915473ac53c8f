// SPDX-License-Identifier: Apache-2.0
// HEFT's choice with an account of memory: of the devices that have room at that moment, the one
// that is done first. Beyond the paper.
#pragma once

#include "baechi/base/id.h"
#include "baechi/cost/cost_model.h"
#include "baechi/place/allowed_devices.h"
#include "baechi/place/placer.h"

namespace baechi {

// Operators by falling `rank`. One that has room nowhere waits until another has given some back.
// Copies and weights also take room while operators run that were placed before; where that leaves
// no plan, one that does not look back may nearly fit.
PlaceResult place_heft_by_account(const CostModel& costs, const AllowedDevices& allowed,
                                  const PlaceOptions& options, const IdVector<OpId, double>& rank);

}  // namespace baechi
