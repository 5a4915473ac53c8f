// SPDX-License-Identifier: Apache-2.0
// Collects operators, tensors and edges in any order, and checks them into an OpGraph.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

struct OperatorSpec {
  std::string_view name;
  std::string_view kind = {};
  Bytes permanent = {};
  Bytes temporary = {};
  bool backward = false;
  std::optional<OpId> forward = {};
  std::optional<std::string_view> pin = {};
  bool per_step = false;
  bool recompute = true;
  bool variable = false;
  bool random = false;
};

// What `data` was added as, but for its name, its forward operator and what else has ids.
OperatorSpec spec_of(const Operator& data);

// Every method throws InputError with the operator's name for input that cannot be right. Text is
// copied. Operators get ids 0, 1, 2, ... in the order they are added, and keep them.
class OpGraphBuilder {
 public:
  explicit OpGraphBuilder(std::string_view name = {});
  ~OpGraphBuilder();
  OpGraphBuilder(OpGraphBuilder&&) noexcept;
  OpGraphBuilder& operator=(OpGraphBuilder&&) noexcept;

  void set_name(std::string_view name);  // of the graph
  void set_memory_mode(MemoryMode mode);
  void set_batch_size(std::int64_t size);
  void add_note(std::string note);
  // It is a step as it runs, of one micro-batch: operators of the step may stand between others.
  void set_one_step();
  void reserve(std::size_t ops, std::size_t edges);

  OpId add_operator(const OperatorSpec& spec);
  std::optional<OpId> find(std::string_view name) const;
  // A hint that this name will soon be found or added: with millions of names that saves time.
  void expect(std::string_view name) const;
  std::size_t num_ops() const;

  // The compute time of `op` on devices of this kind; kAnyKind for all kinds without their own.
  void set_time(OpId op, std::string_view device_kind, Time time);
  // Those that `other` has in another graph.
  void set_times(OpId op, const OpGraph& graph, OpId other);
  void set_forward(OpId op, OpId forward);
  void set_backward(OpId op);
  void set_permanent(OpId op, Bytes bytes);
  void set_temporary(OpId op, Bytes bytes);
  void set_pin(OpId op, std::string_view device);
  void add_to_group(OpId op, std::string_view group);

  // Adds the next output port of `op`. The handle is good for connect() only: build() renumbers
  // tensors by producer.
  TensorId add_output(OpId op, Bytes size);
  // The handle of port `port`, or nothing when `op` has fewer outputs so far. O(1).
  std::optional<TensorId> output(OpId op, std::size_t port) const;
  // `consumer` reads `tensor`. Saying so twice changes nothing.
  void connect(TensorId tensor, OpId consumer);
  // In every micro-batch `op` writes the variable anew.
  void add_write(OpId op, OpId variable);
  // `to` starts only after `from` has finished; no data moves.
  void add_control_edge(OpId from, OpId to);

  // Throws InputError when the edges have a cycle (naming its operators), when an operator has no
  // compute time at all, when pins within a colocation group differ, or when an operator that runs
  // once per step both waits for a micro-batch and feeds one, and for what no variable can be or
  // have: inputs, a number of outputs other than one, permanent or temporary memory, a compute time
  // other than 0 (absent: it may be on any device), a second writer.
  OpGraph build() &&;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baechi
