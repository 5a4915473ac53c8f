// SPDX-License-Identifier: Apache-2.0
// The same graph with other costs (same operators, tensors and ids), in another order, or a part of
// it. Beyond the paper.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

// The compute time on devices of one kind; kAnyKind for all kinds without their own.
struct KindTime {
  std::string kind;
  Time time;

  friend bool operator==(const KindTime&, const KindTime&) = default;
};

// What is absent stays as it is.
struct CostChange {
  std::function<Time(OpId, Time)> time = {};  // per operator and device kind
  // After `time`: times that an operator gets besides its own, or instead of those it has.
  std::function<std::vector<KindTime>(OpId)> times = {};
  std::function<Bytes(OpId, Bytes)> permanent = {};
  std::function<Bytes(OpId, Bytes)> temporary = {};
  std::function<Bytes(TensorId, Bytes)> output = {};
  std::optional<std::int64_t> batch_size = {};
};

OpGraph recosted(const OpGraph& graph, const CostChange& change);

// The operators of `order`, numbered as they come in it. None that it leaves out is a parent, a
// forward operator or a member of a group of one that it names. Device kinds are numbered by name,
// so that two files that differ in their order alone give one graph.
OpGraph reordered(const OpGraph& graph, std::span<const OpId> order);

// These operators, numbered as they come, and what is between them: an edge from an operator that is
// left out is left out, and so is a forward operator.
OpGraph subgraph(const OpGraph& graph, std::span<const OpId> ops);

// The graph for a mini-batch of `batch_size`, as far as one graph can tell: compute times,
// temporary memory and outputs grow in proportion, and permanent memory stays. What reads nothing
// and holds permanent memory is a variable: it stays as it is, and so does what reads only such.
// Throws InputError when the graph does not say for which batch size its costs are.
OpGraph with_batch_size(const OpGraph& graph, std::int64_t batch_size);

}  // namespace baechi
