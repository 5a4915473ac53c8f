// SPDX-License-Identifier: Apache-2.0
// Tensors that may be away, and the stretches in which they are not. Private to the choice. Beyond the paper.
#pragma once

#include <cstddef>
#include <tuple>
#include <vector>

#include "baechi/base/id.h"

namespace baechi {

// A stretch of a tensor's readers on one device, between which it stays there.
struct ResidencyStretch {
  std::size_t first = 0, last = 0;  // positions in the device's order
  std::vector<OpId> readers;
};

struct ResidencyItem {  // a tensor that may be away
  TensorId tensor;
  DeviceId device{0};
  bool stored = false;  // a variable on the store: even its first stretch is fetched
  std::vector<ResidencyStretch> stretches;
  bool stays = false;  // a variable that stays on its device after all
};

struct ResidencyGap {  // between two stretches of an item
  double weight =
      0;  // the shorter it is idle, and the more sendings it saves, the sooner it is kept
  std::size_t item = 0, behind = 0;
  friend bool operator<(const ResidencyGap& a, const ResidencyGap& b) {
    return std::tie(a.weight, a.item, a.behind) < std::tie(b.weight, b.item, b.behind);
  }
};

}  // namespace baechi
