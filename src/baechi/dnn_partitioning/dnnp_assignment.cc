// SPDX-License-Identifier: Apache-2.0
#include "baechi/dnn_partitioning/dnnp_assignment.h"

#include <algorithm>

namespace baechi::dnnp {

Assignment::Assignment(const Instance& instance, std::size_t part)
    : in_(instance),
      part_(instance.groups.size(), static_cast<Index>(part)),
      load_(instance.num_parts(), 0),
      bytes_(instance.num_parts(), 0),
      readers_(instance.nets.size() * instance.num_parts(), 0),
      arcs_(instance.num_parts() * instance.num_parts(), 0),
      node_of_(instance.group_of.size()),
      host_readers_(instance.num_parts()) {
  for (std::size_t group = 0; group < in_.groups.size(); ++group) {
    if (in_.time_on(group, part) < kNever) load_[part] += in_.time_on(group, part);
    bytes_[part] += in_.groups[group].bytes;
  }
  for (std::size_t net = 0; net < in_.nets.size(); ++net)
    readers_[net * in_.num_parts() + part] = static_cast<Index>(in_.nets[net].readers.size());
}

void Assignment::move(std::size_t group, std::size_t to) {
  const std::size_t from = part_[group], m = in_.num_parts();
  const Instance::Group& row = in_.groups[group];
  for (const Index net : row.makes) move_source(net, from, to);
  for (const Index net : row.reads) move_reader(net, from, to);
  for (const Index other : row.before) {
    const std::size_t at = part_[other];
    if (at != from) --arcs_[at * m + from];
    if (at != to) ++arcs_[at * m + to];
  }
  for (const Index other : row.after) {
    const std::size_t at = part_[other];
    if (at != from) --arcs_[from * m + at];
    if (at != to) ++arcs_[to * m + at];
  }
  if (in_.time_on(group, from) < kNever) load_[from] -= in_.time_on(group, from);
  if (in_.time_on(group, to) < kNever) load_[to] += in_.time_on(group, to);
  bytes_[from] -= row.bytes;
  bytes_[to] += row.bytes;
  part_[group] = static_cast<Index>(to);
}

void Assignment::move_source(std::size_t net, std::size_t from, std::size_t to) {
  const Index* readers = &readers_[net * in_.num_parts()];
  const auto all = static_cast<Index>(in_.nets[net].readers.size());
  if (readers[from] < all) load_[from] -= in_.out_of(net, from);
  if (readers[to] < all) load_[to] += in_.out_of(net, to);
  if (readers[from] > 0) load_[from] += in_.in_to(net, from);
  if (readers[to] > 0) load_[to] -= in_.in_to(net, to);
}

void Assignment::move_reader(std::size_t net, std::size_t from, std::size_t to) {
  Index* readers = &readers_[net * in_.num_parts()];
  const std::size_t source = part_[in_.nets[net].source];
  const auto all = static_cast<Index>(in_.nets[net].readers.size());
  const bool leaves_before = readers[source] < all;
  if (--readers[from] == 0 && from != source) load_[from] -= in_.in_to(net, from);
  if (++readers[to] == 1 && to != source) load_[to] += in_.in_to(net, to);
  const bool leaves = readers[source] < all;
  if (leaves && !leaves_before) load_[source] += in_.out_of(net, source);
  if (!leaves && leaves_before) load_[source] -= in_.out_of(net, source);
}

Ns Assignment::max_load() const { return *std::ranges::max_element(load_); }

// Operators on the host are nodes of their own, and wait for single edges.
void Assignment::add_host_ops() {
  const OpGraph& graph = in_.costs->graph();
  for (const Index op : host_ops_) node_of_[op].reset();
  host_ops_.clear();
  for (std::vector<Index>& readers : host_readers_) readers.clear();
  if (!in_.has_host) return;
  for (std::size_t group = 0; group < part_.size(); ++group)
    if (is_host(part_[group]))
      for (const OpId op : in_.groups[group].ops) {
        node_of_[op.index()] = static_cast<Index>(waits_.size());
        host_ops_.push_back(op.value());
        waits_.push_back(static_cast<Index>(graph.in_edges(op).size()));
        ready_.push_back(0);
      }
  for (const Index op : host_ops_) {
    for (const Edge& edge : graph.in_edges(OpId(op)))
      if (!node_of_[edge.from.index()].has_value())
        host_readers_[part_[in_.group_of[edge.from.index()]]].push_back(*node_of_[op]);
    for (const Edge& edge : graph.out_edges(OpId(op)))
      if (!node_of_[edge.to.index()].has_value()) ++waits_[part_[in_.group_of[edge.to.index()]]];
  }
}

void Assignment::release(std::size_t node, Ns end) {
  ready_[node] = std::max(ready_[node], end);
  if (--waits_[node] == 0) ready_list_.push_back(static_cast<Index>(node));
}

std::optional<Ns> Assignment::latency() {
  const OpGraph& graph = in_.costs->graph();
  const std::size_t k = in_.num_accelerators, m = in_.num_parts();
  waits_.assign(k, 0);
  ready_.assign(k, 0);
  ready_list_.clear();
  for (std::size_t from = 0; from < k; ++from)
    for (std::size_t to = 0; to < k; ++to)
      if (arcs_[from * m + to] > 0) ++waits_[to];
  add_host_ops();
  for (std::size_t node = 0; node < waits_.size(); ++node)
    if (waits_[node] == 0) ready_list_.push_back(static_cast<Index>(node));

  Ns last = 0;
  std::size_t done = 0;
  while (!ready_list_.empty()) {
    const std::size_t node = ready_list_.back();
    ready_list_.pop_back();
    ++done;
    if (node < k) {
      const Ns end = ready_[node] + load_[node];
      last = std::max(last, end);
      for (std::size_t to = 0; to < k; ++to)
        if (arcs_[node * m + to] > 0) release(to, end);
      for (const Index reader : host_readers_[node]) release(reader, end);
      continue;
    }
    const OpId op(host_ops_[node - k]);
    const Ns end = ready_[node] + in_.costs->compute_time(op, in_.parts.back())->count();
    last = std::max(last, end);
    for (const Edge& edge : graph.out_edges(op)) {
      const std::optional<Index> reader = node_of_[edge.to.index()];
      release(reader.has_value() ? *reader : part_[in_.group_of[edge.to.index()]], end);
    }
  }
  if (done < waits_.size()) return std::nullopt;
  return last;
}

}  // namespace baechi::dnnp
