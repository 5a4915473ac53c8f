// SPDX-License-Identifier: Apache-2.0
// The ML graph G (Paper 2.1): operators, and the tensors that flow between them.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"

namespace baechi {

// A device kind that the graph knows compute times for ("gpu", "cpu", ...).
using KindId = Id<struct KindTag>;

// The time given for this kind holds on every kind that has no time of its own.
inline constexpr std::string_view kAnyKind = "*";

struct Operator {
  std::string_view name;  // unique in the graph
  std::string_view kind;  // free text: "MatMul", "nn.Linear"; may be empty
  Bytes permanent;        // held for the whole step: weights, optimizer state, a variable's tensor
  Bytes temporary;        // held while the operator runs
  bool backward = false;  // belongs to the backward pass (or the update)
  std::optional<OpId> forward;          // the operator whose backward this is; implies `backward`
  bool per_step = false;                // runs once, however many micro-batches the step has
  bool recompute = true;                // false: a second run would not give the same outputs again
  bool variable = false;                // its one output is there, at its place, from begin to end
  bool random = false;                  // draws random numbers: micro-batches keep their order
  std::optional<GroupId> group;         // merged colocation group, if it has one
  std::optional<std::string_view> pin;  // the name of the only device it may run on
};

struct Edge {
  OpId from;
  OpId to;
  std::optional<TensorId> tensor;  // absent: a control edge, order without data

  friend bool operator==(const Edge&, const Edge&) = default;
};

// In every micro-batch `op` gives `variable` a new value, which the next one reads.
struct Write {
  OpId op, variable;

  friend auto operator<=>(const Write&, const Write&) = default;
};

// When a forward operator's outputs are freed: with their last use, or at the end of the step, as
// PyTorch modules in training keep them (Paper Table 2).
enum class MemoryMode : std::uint8_t { kDataflow, kRetain };

struct OpGraphNames;

// Immutable. OpGraphBuilder::build() is the only way to get one, and it throws InputError unless
// the edges form a DAG, so everything downstream may assume a DAG. Move-only: graphs are large.
class OpGraph {
 public:
  OpGraph(OpGraph&&) noexcept;
  OpGraph& operator=(OpGraph&&) noexcept;
  ~OpGraph();

  const std::string& name() const { return name_; }
  MemoryMode memory_mode() const { return memory_mode_; }
  // The outputs of `op`, and all copies of them, are held until the step ends.
  bool retains_outputs(OpId op) const {
    return memory_mode_ == MemoryMode::kRetain && !ops_[op].backward && !ops_[op].variable;
  }
  // Some operator is marked as running once per step, so the others run once per micro-batch.
  bool marks_steps() const { return marks_steps_; }
  // The mini-batch size the costs were made for, when they grow in proportion to it.
  std::optional<std::int64_t> batch_size() const { return batch_size_; }
  // What people should know that the model did not say and its reader assumed: a sentence each.
  // They are of that reader's graph alone, not of one made from it, and are not written.
  const std::vector<std::string>& notes() const { return notes_; }

  std::size_t num_ops() const { return ops_.size(); }
  std::size_t num_tensors() const { return tensor_sizes_.size(); }
  std::size_t num_edges() const { return out_edges_.size(); }
  IdRange<OpId> ops() const { return ops_.keys(); }
  IdRange<TensorId> tensors() const { return tensor_sizes_.keys(); }

  const Operator& operator[](OpId op) const { return ops_[op]; }
  std::optional<OpId> find(std::string_view name) const;  // O(1)

  // Edges that leave `op`, sorted by (tensor, to) with control edges last, and edges that enter it,
  // sorted by (from, tensor). No edge occurs twice. The spans live as long as the graph.
  std::span<const Edge> out_edges(OpId op) const { return row(out_edges_, out_begin_, op.index()); }
  std::span<const Edge> in_edges(OpId op) const { return row(in_edges_, in_begin_, op.index()); }

  // The outputs of `op`, port by port: consecutive tensor ids, so ordering tensors by id orders
  // them by producer.
  IdRange<TensorId> outputs(OpId op) const {
    return {output_begin_[op.index()], output_begin_[op.index() + 1]};
  }
  OpId producer(TensorId tensor) const { return producers_[tensor]; }
  Bytes size(TensorId tensor) const { return tensor_sizes_[tensor]; }
  // What the tensor takes where it was made, while it lives: nothing beside the permanent memory of
  // a variable.
  Bytes home_size(TensorId tensor) const {
    return ops_[producers_[tensor]].variable ? Bytes(0) : tensor_sizes_[tensor];
  }
  // The edges that carry `tensor`, one per consumer in id order: children that read one output
  // share it, and a device receives it once.
  std::span<const Edge> consumers(TensorId tensor) const {
    const ConsumerRow row = consumer_rows_[tensor];
    return std::span<const Edge>(out_edges_).subspan(row.begin, row.end - row.begin);
  }
  // Sum of what the outputs of `op` take where they were made.
  Bytes output_bytes(OpId op) const;

  // Device kinds with compute times. `times(kind)[op]` is absent where `op` cannot run.
  std::size_t num_kinds() const { return kinds_.size(); }
  IdRange<KindId> kinds() const { return kinds_.keys(); }
  std::string_view kind_name(KindId kind) const { return kinds_[kind]; }
  std::optional<KindId> find_kind(std::string_view name) const;
  const IdVector<OpId, std::optional<Time>>& times(KindId kind) const { return times_[kind]; }

  // Colocation groups after merging: groups that share a member are one. `colocation_names` are
  // the names as given.
  std::size_t num_groups() const { return group_begin_.size() - 1; }
  IdRange<GroupId> groups() const { return IdRange<GroupId>(num_groups()); }
  std::span<const OpId> members(GroupId group) const {  // in id order
    return row(group_members_, group_begin_, group.index());
  }
  std::span<const std::string_view> colocation_names(OpId op) const {
    return row(colocation_names_, colocation_begin_, op.index());
  }

  // Sorted. The operators that read a variable come before the one that writes it, by an edge of
  // control, and all of them share a device.
  std::span<const Write> writes() const { return writes_; }

  // Parents before children; among free choices the smallest id first, so it is 0, 1, 2, ... when
  // the ids already are topological.
  std::span<const OpId> topological_order() const { return topological_order_; }

 private:
  friend class OpGraphBuilder;
  using Offsets = std::vector<std::uint32_t>;  // CSR row starts, one more than rows

  OpGraph();
  template <class T>
  static std::span<const T> row(const std::vector<T>& values, const Offsets& begin, std::size_t i) {
    return std::span<const T>(values).subspan(begin[i], begin[i + 1] - begin[i]);
  }

  struct ConsumerRow {  // of out_edges_
    std::uint32_t begin = 0, end = 0;
  };
  std::unique_ptr<OpGraphNames> names_;  // the arena behind every string_view, and the index
  std::string name_;
  MemoryMode memory_mode_ = MemoryMode::kDataflow;
  std::optional<std::int64_t> batch_size_;
  std::vector<std::string> notes_;
  bool marks_steps_ = false;

  IdVector<OpId, Operator> ops_;
  IdVector<TensorId, Bytes> tensor_sizes_;
  IdVector<TensorId, OpId> producers_;
  Offsets output_begin_;
  std::vector<Edge> out_edges_, in_edges_;  // the same edges, grouped by `from` and by `to`
  Offsets out_begin_, in_begin_;
  IdVector<TensorId, ConsumerRow> consumer_rows_;
  IdVector<KindId, std::string_view> kinds_;
  IdVector<KindId, IdVector<OpId, std::optional<Time>>> times_;
  std::vector<OpId> group_members_;
  Offsets group_begin_{0};
  std::vector<std::string_view> colocation_names_;
  Offsets colocation_begin_;
  std::vector<OpId> topological_order_;
  std::vector<Write> writes_;
};

}  // namespace baechi
