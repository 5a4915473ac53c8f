// SPDX-License-Identifier: Apache-2.0
// Tensors that may be away, and the stretches in which they are not. Private to the choice. Beyond the paper.
#pragma once

#include <compare>
#include <cstddef>
#include <optional>

#include "baechi/base/id.h"

namespace baechi {

struct ResidencyUse {
  std::size_t position = 0;    // in the device's order
  std::optional<OpId> reader;  // nothing: the operator that makes it
};

// Uses of a tensor on one device, between which it stays there.
struct ResidencyStretch {
  std::size_t first = 0, last = 0;  // positions in the device's order
  std::size_t begin = 0, end = 0;   // of its uses among all
};

struct ResidencyItem {  // a tensor that may be away
  TensorId tensor;
  DeviceId device{0};
  bool stored = false;             // a variable on the store: even its first stretch is fetched
  bool stays = false;              // a variable that stays on its device after all
  std::size_t begin = 0, end = 0;  // of its stretches among all
};

struct ResidencyGap {  // before a stretch of an item that is not its first
  double weight =
      0;  // the shorter it is idle, and the more sendings it saves, the sooner it is kept
  std::size_t stretch = 0, item = 0;
  friend auto operator<=>(const ResidencyGap&, const ResidencyGap&) = default;
};

struct ResidencyFetch {  // before a stretch of an item, for its first use
  std::size_t use = 0, item = 0, stretch = 0;
  friend auto operator<=>(const ResidencyFetch&, const ResidencyFetch&) = default;
};

}  // namespace baechi
