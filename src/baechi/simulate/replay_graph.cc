// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/replay_graph.h"

namespace baechi::simulation {
namespace {

template <class T>
std::uint32_t end_of(const std::vector<T>& values) {
  return static_cast<std::uint32_t>(values.size());
}

}  // namespace

ReplayGraph::ReplayGraph(const OpGraph& graph) {
  num_in_edges_.reserve(graph.num_ops());
  inputs_.reserve(graph.num_edges());
  consumers_.reserve(graph.num_edges());
  input_begin_.reserve(graph.num_ops() + 1);
  follower_begin_.reserve(graph.num_ops() + 1);
  consumer_begin_.reserve(graph.num_tensors() + 1);

  for (const OpId op : graph.ops()) {
    const std::span<const Edge> in = graph.in_edges(op);
    num_in_edges_.push_back(static_cast<std::uint32_t>(in.size()));
    input_begin_.push_back(end_of(inputs_));
    for (const Edge& edge : in)
      if (edge.tensor.has_value()) inputs_.push_back(*edge.tensor);

    // Control edges come last.
    const std::span<const Edge> out = graph.out_edges(op);
    std::size_t first = out.size();
    while (first > 0 && !out[first - 1].tensor.has_value()) --first;
    follower_begin_.push_back(end_of(followers_));
    for (const Edge& edge : out.subspan(first)) followers_.push_back(edge.to);
  }
  for (const TensorId tensor : graph.tensors()) {
    consumer_begin_.push_back(end_of(consumers_));
    for (const Edge& edge : graph.consumers(tensor)) consumers_.push_back(edge.to);
  }
  input_begin_.push_back(end_of(inputs_));
  follower_begin_.push_back(end_of(followers_));
  consumer_begin_.push_back(end_of(consumers_));
}

}  // namespace baechi::simulation
