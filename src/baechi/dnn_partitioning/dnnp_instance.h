// SPDX-License-Identifier: Apache-2.0
// A graph and a cluster as the dnn-partitioning objectives see them: colocation groups that go to
// parts, and nets of tensors between them. Beyond the paper. Internal to place/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "baechi/cost/cost_model.h"
#include "baechi/dnn_partitioning/dnnp_score.h"

namespace baechi::dnnp {

using Ns = std::int64_t;
using Index = std::uint32_t;

inline constexpr Ns kNever = std::numeric_limits<Ns>::max() / 8;

// A part is an accelerator, or (the last one, always) the host: all CPUs together. Where there is
// no CPU, nothing may run on it.
struct Instance {
  struct Group {  // operators that share a part
    std::vector<OpId> ops;
    std::int64_t bytes = 0;
    std::vector<Index> reads;          // nets with a consumer in it, but not their source
    std::vector<Index> makes;          // nets with their source in it
    std::vector<Index> before, after;  // groups with an edge to or from it, without duplicates
    std::size_t position = 0;          // of its first operator in the topological order
  };
  struct Net {  // the outputs of one operator, for other groups
    Index source = 0;
    std::vector<Index> readers;  // groups other than the source
  };

  const CostModel* costs = nullptr;
  std::vector<DeviceId> parts;  // the accelerators, then the first CPU; else the first device
  bool has_host = false;
  std::size_t num_accelerators = 0;
  std::vector<std::int64_t> capacity;  // [part]; of the host: no limit
  std::vector<Group> groups;
  std::vector<Index> group_of;  // [op]
  std::vector<Ns> time;         // [group * parts + part]; kNever where it may not run
  std::vector<Net> nets;
  std::vector<Ns> out, in;  // [net * parts + part]; 0 on the host
  // Accelerators that cannot be told apart have the same number.
  std::vector<Index> type;  // [accelerator]

  std::size_t num_parts() const { return parts.size(); }
  std::size_t host() const { return num_accelerators; }
  Ns time_on(std::size_t group, std::size_t part) const {
    return time[group * parts.size() + part];
  }
  Ns out_of(std::size_t net, std::size_t part) const { return out[net * parts.size() + part]; }
  Ns in_to(std::size_t net, std::size_t part) const { return in[net * parts.size() + part]; }
};

// Throws InputError when times could overflow.
Instance tabulate(const CostModel& costs);

}  // namespace baechi::dnnp
