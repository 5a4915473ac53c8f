// SPDX-License-Identifier: Apache-2.0
// The edges of a graph as a replay walks them: plain lists of ids, a quarter of the memory, so that
// the graphs of a search stay in the caches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/graph/op_graph.h"

namespace baechi::simulation {

class ReplayGraph {
 public:
  explicit ReplayGraph(const OpGraph& graph);

  std::uint32_t num_in_edges(OpId op) const { return num_in_edges_[op]; }
  // The tensors that `op` reads, the operators that read `tensor`, and the operators that wait for
  // `op` without data.
  std::span<const TensorId> inputs(OpId op) const { return row(inputs_, input_begin_, op.index()); }
  std::span<const OpId> consumers(TensorId tensor) const {
    return row(consumers_, consumer_begin_, tensor.index());
  }
  std::span<const OpId> followers(OpId op) const {
    return row(followers_, follower_begin_, op.index());
  }

 private:
  using Offsets = std::vector<std::uint32_t>;
  template <class T>
  static std::span<const T> row(const std::vector<T>& values, const Offsets& begin, std::size_t i) {
    return std::span<const T>(values).subspan(begin[i], begin[i + 1] - begin[i]);
  }

  IdVector<OpId, std::uint32_t> num_in_edges_;
  std::vector<TensorId> inputs_;
  std::vector<OpId> consumers_, followers_;
  Offsets input_begin_, consumer_begin_, follower_begin_;
};

}  // namespace baechi::simulation
