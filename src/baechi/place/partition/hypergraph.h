// SPDX-License-Identifier: Apache-2.0
// What `partition` cuts: sets of operators as vertices, tensors as nets that cost time when their
// ends are apart; and coarser versions of itself. Beyond the paper.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/random.h"
#include "baechi/cost/cost_model.h"

namespace baechi {

using VertexId = Id<struct VertexTag>;
using NetId = Id<struct NetTag>;

struct Vertex {
  std::vector<std::int64_t> time;  // on each device class; of operators that cannot run there, 0
  std::vector<bool> cannot;        // device classes that cannot run all of it; empty: none
  std::optional<DeviceId> pin;
  std::int64_t bytes = 0;  // permanent memory, and its share of the tensors alive at the peak

  explicit Vertex(std::size_t classes) : time(classes, 0) {}
  bool can_run_on(std::size_t device_class) const {
    return cannot.empty() || !cannot[device_class];
  }
};

// A tensor, or several with the same ends.
struct Net {
  VertexId maker;
  std::vector<VertexId> readers;  // ascending, without the maker
  std::int64_t time = 0;          // of one transfer, over the mean link
};

struct Hypergraph {
  IdVector<VertexId, Vertex> vertices;
  IdVector<NetId, Net> nets;
  IdVector<VertexId, std::vector<NetId>> nets_of;  // that it makes or reads

  // Joins vertices of equal labels (0 .. count-1), drops nets within one vertex, and joins nets of
  // equal ends.
  Hypergraph contracted(const IdVector<VertexId, VertexId>& labels, std::size_t count) const;
};

// Vertices are colocation groups, and backward operators with their forward ones.
struct OperatorHypergraph {
  Hypergraph graph;
  IdVector<OpId, VertexId> vertex_of;
};
OperatorHypergraph make_hypergraph(const CostModel& costs);

// Vertices that are joined by much traffic, together up to `max_time` (on the mean device): labels
// 0 .. count-1. Size-constrained label propagation.
struct Clustering {
  IdVector<VertexId, VertexId> labels;
  std::size_t count = 0;
};
Clustering cluster_by_traffic(const Hypergraph& graph, std::int64_t max_time, Random& random);

}  // namespace baechi
