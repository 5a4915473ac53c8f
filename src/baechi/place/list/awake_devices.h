// SPDX-License-Identifier: Apache-2.0
// Which devices wait for a favorite child: m_sct.cc has the definitions (Paper 2.4, B).
#pragma once

#include <optional>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/place/list/cluster_state.h"
#include "baechi/place/list/favorite_child.h"
#include "baechi/place/list/pair_queue.h"

namespace baechi {

// Holds devices in the queue, and releases them. What it is given must live as long as it does.
class AwakeDevices {
 public:
  AwakeDevices(const ClusterState& state, PairQueue& queue, const FavoriteChildren& favorites)
      : state_(state), queue_(queue), favorites_(favorites), last_(state.num_devices()) {}

  // `op` is now the last operator of its device, and no longer anyone's unplaced favorite child.
  void placed(OpId op);

  // All parents of `op` have been placed: the device of its favorite parent may wait for it.
  void ready(OpId op);

 private:
  bool waits_for(DeviceId device, OpId favorite) const;
  void release_from(OpId parent, OpId favorite);

  // Favorite children of this group that other devices wait for will not come.
  void group_decided(GroupId group, DeviceId device);

  // The longest that a tensor from `op` to `child` takes from op's device to any other.
  Time sending_time(OpId op, OpId child) const;

  const ClusterState& state_;
  PairQueue& queue_;
  const FavoriteChildren& favorites_;
  IdVector<DeviceId, std::optional<OpId>> last_;
};

}  // namespace baechi
