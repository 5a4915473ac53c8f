// SPDX-License-Identifier: Apache-2.0
// A partition of units into devices under caps, and moves that make its cut cheaper. Beyond the
// paper; the refinement is Fiduccia and Mattheyses's.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/random.h"
#include "baechi/optimize/cut_graph.h"

namespace baechi {

struct DeviceCap {
  std::int64_t work = 0;
  std::int64_t memory = 0;
};
using DeviceCaps = IdVector<DeviceId, DeviceCap>;
using CutPart = IdVector<CutUnitId, DeviceId>;

class CutState {
 public:
  // Both must outlive it.
  CutState(const CutGraph& graph, const DeviceCaps& caps);

  void start_from(CutPart part);
  const CutPart& part() const { return part_; }
  // Nanoseconds of transfers: each net, once for each device it touches beyond one.
  std::int64_t cut() const { return cut_; }
  // How far devices exceed their caps, in thousandths of a cap.
  std::int64_t excess() const;

  // Moves single units, in random order, while that makes the cut cheaper or mends an excess.
  void improve(Random& random, int passes);
  // Moves the best unit even when that makes the cut dearer, each once per pass, and goes back to
  // the best state seen.
  void climb(int passes);

 private:
  // Where a unit is in the pass at hand.
  enum class Mark : std::uint8_t { kNone, kListed, kMoved };

  struct Gain {
    std::uint64_t neighbours = 0;  // the other devices that its nets touch, as bits
    std::int64_t elsewhere = 0;    // where it has no neighbour
  };
  struct Devices {  // as bits: with a pin of a net, and with one pin alone
    std::uint64_t touched = 0, single = 0;
  };
  struct BestMove {  // among those that there is room for
    std::int64_t gain = 0;
    std::optional<DeviceId> to = {};
  };

  void list(CutUnitId unit);
  void list_neighbours(CutUnitId unit);
  void list_movable();
  void clear_list();
  Gain find_gains(CutUnitId unit, std::int64_t* gains) const;
  void tell_listed(CutUnitId unit, DeviceId to);
  void find_best_move(CutUnitId unit);
  void update_best_moves(DeviceId from, DeviceId to, const DeviceCap& from_before);
  void look_at(CutUnitId unit, DeviceId to);
  void join(NetId net, DeviceId device);
  void leave(NetId net, DeviceId device);
  void move(CutUnitId unit, DeviceId to, std::int64_t gain);
  bool has_room(CutUnitId unit, DeviceId to) const { return has_room(unit, to, load_[to]); }
  bool has_room(CutUnitId unit, DeviceId to, const DeviceCap& load) const;
  bool overloaded(DeviceId device) const;
  std::uint64_t all_but(DeviceId device) const;
  bool improve_one(CutUnitId unit);
  bool climb_once();
  std::int64_t* gains_of(CutUnitId unit) { return gains_.data() + unit.index() * caps_.size(); }
  std::uint32_t* counts(NetId net) { return counts_.data() + net.index() * caps_.size(); }
  const std::uint32_t* counts(NetId net) const {
    return counts_.data() + net.index() * caps_.size();
  }

  const CutGraph& graph_;
  const DeviceCaps& caps_;
  CutPart part_;
  IdVector<DeviceId, DeviceCap> load_;
  std::vector<std::uint32_t> counts_;  // pins of each net on each device
  IdVector<NetId, Devices> on_;
  std::int64_t cut_ = 0;
  std::vector<CutUnitId> listed_;  // what may be worth moving
  std::vector<CutUnitId> told_;    // of them, whose gains the last move changed
  IdVector<CutUnitId, Mark> mark_;
  std::vector<std::int64_t> gains_;  // by device; by unit and device of the listed in climb_once()
  IdVector<CutUnitId, BestMove> best_move_;  // of them, of each unit
};

}  // namespace baechi
