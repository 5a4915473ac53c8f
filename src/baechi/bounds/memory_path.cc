// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/memory_path.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "baechi/base/wide.h"

namespace baechi::bounds {
namespace {

class MemoryPath {
 public:
  explicit MemoryPath(const Relaxation& relaxed) : in_(relaxed) {
    for (const DeviceType& type : in_.types)
      capacities_.insert(capacities_.end(), type.count, type.capacity);
    std::sort(capacities_.begin(), capacities_.end(), std::greater<>());
  }

  Ns strongest() const {
    const std::int64_t held = std::accumulate(in_.held.begin(), in_.held.end(), std::int64_t{0});
    if (held <= capacities_.front()) return 0;
    const Ns work = std::accumulate(in_.k_min.begin(), in_.k_min.end(), Ns{0});
    // Chains by time * work' + bytes * held' for a few mixtures in which both weigh something.
    Ns best = 0;
    for (const auto& [time, memory] : {std::pair{1, 0}, {4, 1}, {1, 1}, {1, 4}, {0, 1}})
      best = std::max(best, least_on(chain(static_cast<WideInt>(held / 1024 + 1) * time,
                                           static_cast<WideInt>(work / 1024 + 1) * memory)));
    return best;
  }

 private:
  // The operators of a heaviest chain, last one first.
  std::vector<OpId> chain(WideInt per_ns, WideInt per_byte) const {
    IdVector<OpId, WideInt> weight(in_.unit.size(), 0);
    IdVector<OpId, std::optional<OpId>> before(in_.unit.size());
    std::optional<OpId> last;
    for (const OpId op : in_.graph->topological_order()) {
      for (const Edge& edge : in_.graph->in_edges(op))
        if (!before[op].has_value() || weight[edge.from] > weight[*before[op]])
          before[op] = edge.from;
      weight[op] = (before[op].has_value() ? weight[*before[op]] : 0) +
                   per_ns * in_.k_min[op.index()] + per_byte * (*in_.graph)[op].permanent.count();
      if (!last.has_value() || weight[op] > weight[*last]) last = op;
    }
    std::vector<OpId> ops;
    for (std::optional<OpId> op = last; op.has_value(); op = before[*op]) ops.push_back(*op);
    return ops;
  }

  Ns least_on(const std::vector<OpId>& ops) const {
    Ns length = 0;
    std::int64_t held = 0;
    std::vector<bool> counted(in_.held.size(), false);
    std::vector<Ns> cuts;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const UnitId unit = in_.unit[ops[i]];
      length += in_.k_min[ops[i].index()];
      if (!counted[unit.index()]) held += in_.held[unit];
      counted[unit.index()] = true;
      if (i + 1 < ops.size() && in_.unit[ops[i + 1]] != unit)
        cuts.push_back(crossing(ops[i + 1], ops[i]));
    }
    std::size_t devices = 1, bulky = 0;
    for (std::int64_t room = capacities_.front(); room < held; ++devices) {
      if (devices == capacities_.size()) return length;  // never fits
      room += capacities_[devices];
    }
    // No device takes two units of more than half the largest one.
    for (const UnitId unit : in_.held.keys())
      if (counted[unit.index()] && in_.held[unit] > capacities_.front() / 2) ++bulky;
    const std::size_t changes = std::max(devices, bulky) - 1;
    if (changes > cuts.size()) return length;  // never fits
    std::nth_element(cuts.begin(), cuts.begin() + static_cast<std::ptrdiff_t>(changes), cuts.end());
    return std::accumulate(cuts.begin(), cuts.begin() + static_cast<std::ptrdiff_t>(changes),
                           length);
  }

  // What all tensors between two neighbors take at least.
  Ns crossing(OpId from, OpId to) const {
    Ns time = 0;
    for (const Edge& edge : in_.graph->in_edges(to))
      if (edge.from == from && edge.tensor.has_value()) {
        const Ns c = in_.c_min[edge.tensor->index()];
        time = in_.transfers_queue ? time + c : std::max(time, c);
      }
    return time;
  }

  const Relaxation& in_;
  std::vector<std::int64_t> capacities_;  // largest first
};

}  // namespace

Ns memory_path(const Relaxation& relaxed) {
  if (relaxed.num_devices == 1 || relaxed.unit.empty()) return 0;
  return MemoryPath(relaxed).strongest();
}

}  // namespace baechi::bounds
