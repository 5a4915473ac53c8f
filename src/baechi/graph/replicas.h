// SPDX-License-Identifier: Apache-2.0
// A step that several copies of a placement share, each with micro-batches of its own, as one graph
// (docs/reference/semantics.md, "Replicas"). Beyond the paper.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

// A tensor of the micro-batch that the step reads: a gradient, most often.
struct ReducedTensor {
  OpId producer;
  std::uint32_t port = 0;

  friend auto operator<=>(const ReducedTensor&, const ReducedTensor&) = default;
};

struct Replicas {
  std::uint32_t count = 1;
  // Which tensors are reduced together; each list is of tensors that one device makes.
  std::vector<std::vector<ReducedTensor>> buckets = {};
  std::size_t shared = 0;  // so many operators of the step, where all replicas share them

  bool any() const { return count > 1; }
  bool apart() const { return any() && shared == 0; }  // each on devices of its own
  std::size_t rounds() const { return 2 * std::size_t{count} - 1; }
  // All operators of the rings, and of what the graph with all replicas has, those of one replica.
  std::size_t ring_ops() const { return any() ? buckets.size() * rounds() * count : 0; }
  std::size_t ops_of_one(std::size_t ops) const {
    return (ops - ring_ops() - shared) / count + shared;
  }

  friend bool operator==(const Replicas&, const Replicas&) = default;
};

Bytes size_of(const OpGraph& graph, const ReducedTensor& tensor);

// Every tensor that an operator of the step reads from one of the micro-batch, sorted.
std::vector<ReducedTensor> reduced_tensors(const OpGraph& graph);

// The graph of one micro-batch in each of R replicas of `graph`. Its operators come first, under
// their ids and names; then those of replicas 1, 2, ..., named "op#1" ("op##1" where a name has a
// "#"), with variables, groups and updates of their own; then the rings: for every bucket, round by
// round, an operator of each replica, which takes no time and runs once per step. That of round 0
// reads the bucket and outputs a chunk, an R-th of its bytes; that of round j reads the chunk that
// the replica before made in round j - 1, waits for its own replica's round j - 1, and up to round
// 2R - 3 outputs a chunk; that of round 2R - 2 also reads the bucket, and outputs it anew:
// operators of the step read what it outputs. What makes a bucket in one replica, and its ring
// there, is one colocation group. All operators of the step are marked as such.
//
// Where they share the operators of the step, there is one of each, which comes first, and no ring:
// what reads a tensor of the micro-batch reads it of every replica.
//
// Throws InputError where a tensor that the step reads is in no bucket or in two, a bucket is empty
// or names another tensor, an operator is pinned to a device, or there is no replica; and of shared
// ones why_not_shared().
OpGraph replicated(const OpGraph& graph, const Replicas& replicas);
// The same without rings: what any such step has to do at least.
OpGraph side_by_side(const OpGraph& graph, std::uint32_t count);

// The ids of the copies of a graph's operators: those of the first copy are the graph's own, and
// each further one is numbered behind, without what `once` says is there once.
class CopyIds {
 public:
  CopyIds(const OpGraph& graph, const IdVector<OpId, bool>* once);

  bool is_there(OpId op, std::uint32_t copy) const { return copy == 0 || rank_[op] != kOnce; }
  OpId operator()(OpId op, std::uint32_t copy) const {
    return is_there(op, copy) && copy > 0 ? OpId(rank_.size() + (copy - 1) * of_one_ + rank_[op])
                                          : op;
  }

 private:
  static constexpr std::size_t kOnce = std::numeric_limits<std::size_t>::max();
  IdVector<OpId, std::size_t> rank_;  // among those that each copy has
  std::size_t of_one_ = 0;
};

// So many that share the operators of the step.
Replicas sharing(const OpGraph& graph, std::uint32_t count);
// Why they cannot: an operator of the micro-batch holds permanent memory or draws random numbers, or one writes a
// variable. Empty where they can.
std::string why_not_shared(const OpGraph& graph);

}  // namespace baechi
