// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/replicas.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/graph/name_separator.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/graph/recosted.h"
#include "baechi/graph/unroll.h"

namespace baechi {
namespace {

std::uint32_t port_in(const OpGraph& graph, TensorId tensor) {
  const OpId op = graph.producer(tensor);
  return static_cast<std::uint32_t>(tensor.index() - (*graph.outputs(op).begin()).index());
}

class Replication {
 public:
  Replication(const OpGraph& graph, const Replicas& replicas)
      : graph_(graph),
        replicas_(replicas),
        once_(once_per_step(graph)),
        place_(graph.num_tensors()),
        builder_(graph.name()),
        copy_(graph, replicas.shared > 0 ? &once_ : nullptr) {}

  OpGraph build(bool reducing) && {
    check();
    if (reducing) check_buckets();
    builder_.set_memory_mode(graph_.memory_mode());
    if (graph_.batch_size().has_value())
      builder_.set_batch_size((Bytes(*graph_.batch_size()) * replicas_.count).count());
    builder_.reserve(graph_.num_ops() * replicas_.count + replicas_.ring_ops(),
                     graph_.num_edges() * replicas_.count + 3 * replicas_.ring_ops());
    for (std::uint32_t r = 0; r < replicas_.count; ++r)
      for (const OpId op : graph_.ops())
        if (copy_.is_there(op, r)) add(op, r);
    for (std::size_t b = 0; b < replicas_.buckets.size(); ++b)
      for (std::size_t round = 0; round < replicas_.rounds(); ++round)
        for (std::uint32_t r = 0; r < replicas_.count; ++r) add_round(b, round, r);
    for (std::uint32_t r = 0; r < replicas_.count; ++r) {
      for (const OpId op : graph_.ops()) connect(op, r);
      for (const auto& [op, variable] : graph_.writes())
        builder_.add_write(copy_(op, r), copy_(variable, r));
      for (std::size_t b = 0; b < replicas_.buckets.size(); ++b) connect_ring(b, r);
    }
    return std::move(builder_).build();
  }

 private:
  struct Place {  // of a reduced tensor
    std::size_t bucket = 0, port = 0;
  };

  OpId ring(std::size_t bucket, std::size_t round, std::uint32_t r) const {
    return OpId(graph_.num_ops() * replicas_.count +
                (bucket * replicas_.rounds() + round) * replicas_.count + r);
  }
  TensorId output_of(const ReducedTensor& tensor, std::uint32_t r) const {
    return *builder_.output(copy_(tensor.producer, r), tensor.port);
  }

  void check() {
    if (replicas_.count < 2)
      throw InputError("replicas are at least 2, not " + std::to_string(replicas_.count));
    if (replicas_.shared > 0) {
      const std::string why = why_not_shared(graph_);
      if (!why.empty()) throw InputError(why);
      if (replicas_.shared != static_cast<std::size_t>(std::ranges::count(once_, true)))
        throw InputError("the graph has another number of operators of the step");
    }
    constexpr std::size_t kMost = std::numeric_limits<std::uint32_t>::max() - 1;
    if (std::max(graph_.num_ops(), graph_.num_edges()) > kMost / 4 / replicas_.count ||
        replicas_.buckets.size() > kMost / 8 / replicas_.count / replicas_.rounds())
      throw InputError("a step of " + std::to_string(replicas_.count) +
                       " replicas has too many operators or edges");
    for (const OpId op : graph_.ops()) {
      if (graph_[op].pin.has_value())
        throw InputError("operator " + in_quotes(graph_[op].name) +
                         " is pinned to a device, and replicas have none in common");
      separator_.avoid(graph_[op].name);
      for (const std::string_view name : graph_.colocation_names(op)) separator_.avoid(name);
    }
  }

  void check_buckets() {
    const std::vector<ReducedTensor> reduced = reduced_tensors(graph_);
    std::size_t placed = 0;
    for (std::size_t b = 0; b < replicas_.buckets.size(); ++b) {
      if (replicas_.buckets[b].empty()) throw InputError("a bucket is empty");
      for (const ReducedTensor& tensor : replicas_.buckets[b]) {
        if (!std::binary_search(reduced.begin(), reduced.end(), tensor))
          throw InputError(words(tensor) + " is in a bucket, but no operator of the step reads it");
        std::optional<Place>& place = place_[id(tensor)];
        if (place.has_value()) throw InputError(words(tensor) + " is in two buckets");
        place = {b, placed_in_bucket(b, tensor)};
        ++placed;
      }
    }
    for (const ReducedTensor& tensor : reduced)
      if (placed < reduced.size() && !place_[id(tensor)].has_value())
        throw InputError(words(tensor) + " is read by the step, and is in no bucket");
  }
  std::size_t placed_in_bucket(std::size_t b, const ReducedTensor& tensor) const {
    const auto& bucket = replicas_.buckets[b];
    return static_cast<std::size_t>(std::ranges::find(bucket, tensor) - bucket.begin());
  }
  TensorId id(const ReducedTensor& tensor) const {
    return TensorId((*graph_.outputs(tensor.producer).begin()).index() + tensor.port);
  }
  std::string words(const ReducedTensor& tensor) const {
    return "output " + std::to_string(tensor.port) + " of operator " +
           (tensor.producer.index() < graph_.num_ops() ? in_quotes(graph_[tensor.producer].name)
                                                       : std::to_string(tensor.producer.value()));
  }

  std::string marked(std::string_view name, std::uint32_t r) const {
    if (r == 0) return std::string(name);
    return std::string(name) + std::string(separator_.text()) + std::to_string(r);
  }
  std::string name_of_ring(std::size_t bucket, std::uint32_t r) const {
    return "bucket" + std::to_string(bucket) + std::string(separator_.text()) + std::to_string(r);
  }

  void add(OpId op, std::uint32_t r) {
    OperatorSpec spec = spec_of(graph_[op]);
    const std::string name = marked(graph_[op].name, r);
    spec.name = name;
    spec.per_step = once_[op];
    if (graph_[op].forward.has_value()) spec.forward = copy_(*graph_[op].forward, r);
    const OpId added = builder_.add_operator(spec);
    builder_.set_times(added, graph_, op);
    for (const TensorId tensor : graph_.outputs(op)) {
      builder_.add_output(added, graph_.size(tensor));
      if (place_[tensor].has_value())
        builder_.add_to_group(added, name_of_ring(place_[tensor]->bucket, r) + ".ring");
    }
    for (const std::string_view group : graph_.colocation_names(op))
      builder_.add_to_group(added, marked(group, r));
  }

  void add_round(std::size_t b, std::size_t round, std::uint32_t r) {
    const std::string name = name_of_ring(b, r) + "." + std::to_string(round);
    const OpId added = builder_.add_operator(
        {.name = name, .kind = "AllReduce", .backward = true, .per_step = true});
    builder_.set_time(added, kAnyKind, Time(0));
    builder_.add_to_group(added, name_of_ring(b, r) + ".ring");
    Bytes bytes;
    for (const ReducedTensor& tensor : replicas_.buckets[b]) {
      bytes += graph_.size(id(tensor));
      if (round + 1 == replicas_.rounds()) builder_.add_output(added, graph_.size(id(tensor)));
    }
    const std::int64_t count = replicas_.count;
    if (round + 1 < replicas_.rounds())
      builder_.add_output(added,
                          Bytes(bytes.count() / count + (bytes.count() % count > 0 ? 1 : 0)));
  }

  void connect(OpId op, std::uint32_t r) {
    for (const Edge& edge : graph_.out_edges(op)) {
      if (!copy_.is_there(op, r) && !copy_.is_there(edge.to, r)) continue;
      if (!edge.tensor.has_value()) {
        builder_.add_control_edge(copy_(op, r), copy_(edge.to, r));
        continue;
      }
      const std::optional<Place>& place = place_[*edge.tensor];
      const TensorId read =
          place.has_value() && once_[edge.to]
              ? *builder_.output(ring(place->bucket, replicas_.rounds() - 1, r), place->port)
              : *builder_.output(copy_(op, r), port_in(graph_, *edge.tensor));
      builder_.connect(read, copy_(edge.to, r));
    }
  }

  void connect_ring(std::size_t b, std::uint32_t r) {
    const std::uint32_t before = (r + replicas_.count - 1) % replicas_.count;
    for (const ReducedTensor& tensor : replicas_.buckets[b]) {
      builder_.connect(output_of(tensor, r), ring(b, 0, r));
      builder_.connect(output_of(tensor, r), ring(b, replicas_.rounds() - 1, r));
    }
    for (std::size_t round = 1; round < replicas_.rounds(); ++round) {
      builder_.connect(*builder_.output(ring(b, round - 1, before), 0), ring(b, round, r));
      builder_.add_control_edge(ring(b, round - 1, r), ring(b, round, r));
    }
  }

  const OpGraph& graph_;
  const Replicas& replicas_;
  const IdVector<OpId, bool> once_;
  IdVector<TensorId, std::optional<Place>> place_;
  OpGraphBuilder builder_;
  const CopyIds copy_;
  NameSeparator separator_{'#'};
};

}  // namespace

CopyIds::CopyIds(const OpGraph& graph, const IdVector<OpId, bool>* once) {
  for (const OpId op : graph.ops())
    rank_.push_back(once != nullptr && (*once)[op] ? kOnce : of_one_++);
}

Bytes size_of(const OpGraph& graph, const ReducedTensor& tensor) {
  return graph.size(TensorId((*graph.outputs(tensor.producer).begin()).index() + tensor.port));
}

std::vector<ReducedTensor> reduced_tensors(const OpGraph& graph) {
  const IdVector<OpId, bool> once = once_per_step(graph);
  std::vector<ReducedTensor> reduced;
  for (const TensorId tensor : graph.tensors()) {
    const OpId op = graph.producer(tensor);
    const auto edges = graph.consumers(tensor);
    if (!once[op] &&
        std::any_of(edges.begin(), edges.end(), [&](const Edge& edge) { return once[edge.to]; }))
      reduced.push_back({op, port_in(graph, tensor)});
  }
  return reduced;
}

OpGraph replicated(const OpGraph& graph, const Replicas& replicas) {
  return Replication(graph, replicas).build(replicas.shared == 0);
}

Replicas sharing(const OpGraph& graph, std::uint32_t count) {
  return {.count = count,
          .buckets = {},
          .shared = static_cast<std::size_t>(std::ranges::count(once_per_step(graph), true))};
}

std::string why_not_shared(const OpGraph& graph) {
  const auto copies = [](std::string_view name, const char* why) {
    return "copies of operator " + in_quotes(name) + " cannot be apart: " + why;
  };
  for (const auto& [op, unused] : graph.writes())
    return copies(graph[op].name, "it writes a variable in every micro-batch");
  const IdVector<OpId, bool> once = once_per_step(graph);
  for (const OpId op : graph.ops()) {
    if (once[op]) continue;
    if (graph[op].permanent > Bytes(0))
      return copies(graph[op].name, "it holds permanent memory; its weights may be variables");
    if (graph[op].random) return copies(graph[op].name, "it draws random numbers");
  }
  return {};
}

OpGraph side_by_side(const OpGraph& graph, std::uint32_t count) {
  const Replicas replicas{.count = count};
  return Replication(graph, replicas).build(false);
}

}  // namespace baechi
