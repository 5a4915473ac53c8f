// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/op_graph_builder.h"

#include <tsl/robin_map.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <variant>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/graph/colocation_groups.h"
#include "baechi/graph/op_graph_names.h"
#include "baechi/graph/topological_order.h"
#include "baechi/graph/variables.h"

namespace baechi {
namespace {

constexpr std::size_t kMaxCount = std::numeric_limits<std::uint32_t>::max() - 1;

// An output as it was added, linked to the next output of the same operator.
struct Output {
  OpId producer;
  Bytes size;
  std::optional<TensorId> next;
};

struct Outputs {  // of one operator
  std::optional<TensorId> first, last;
  std::uint32_t count = 0;
  bool consecutive = true;  // port p is tensor first + p
};

template <class Range, class RowOf>
std::vector<std::uint32_t> row_starts(std::size_t rows, const Range& items, const RowOf& row_of) {
  std::vector<std::uint32_t> begin(rows + 1, 0);
  for (const auto& item : items) ++begin[row_of(item) + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  return begin;
}

// Data edges by (tensor, to), then control edges by `to`.
bool edge_order(const Edge& a, const Edge& b) {
  if (a.tensor.has_value() != b.tensor.has_value()) return a.tensor.has_value();
  if (a.tensor != b.tensor) return *a.tensor < *b.tensor;
  return a.to < b.to;
}

std::string describe(const Cycle& cycle, const IdVector<OpId, Operator>& ops) {
  constexpr std::size_t kShown = 12;
  std::string text =
      "the graph has a cycle of " + std::to_string(cycle.ops.size()) + " operators: ";
  for (std::size_t i = 0; i < std::min(kShown, cycle.ops.size()); ++i)
    text += in_quotes(ops[cycle.ops[i]].name) + " -> ";
  if (cycle.ops.size() > kShown) text += "... -> ";
  return text + in_quotes(ops[cycle.ops.front()].name);
}

}  // namespace

struct OpGraphBuilder::State {
  OpGraph graph;  // ops_, kinds_, times_ and names are filled as the input arrives
  std::vector<Edge> edges;
  IdVector<TensorId, Output> outputs;
  IdVector<OpId, Outputs> outputs_of;
  std::vector<std::pair<OpId, std::uint32_t>> memberships;
  tsl::robin_map<std::string_view, std::uint32_t> group_names;
  tsl::robin_map<std::string_view, std::string_view> interned;
  bool any_variable = false, one_step = false;

  std::string_view intern(std::string_view text) {
    if (const auto at = interned.find(text); at != interned.end()) return at->second;
    const std::string_view stored = graph.names_->arena.store(text);
    interned.emplace(stored, stored);
    return stored;
  }

  Operator& at(OpId op) {
    if (!graph.ops_.contains(op))
      throw InputError("there is no operator number " + std::to_string(op.value()) +
                       ": the graph has " + std::to_string(graph.ops_.size()) + " so far");
    return graph.ops_[op];
  }
  std::string name(OpId op) { return in_quotes(at(op).name); }

  void require_amount(OpId op, Bytes bytes, const char* what) {
    if (bytes < Bytes(0))
      throw InputError("operator " + name(op) + " has negative " + what + ": " +
                       std::to_string(bytes.count()) + " bytes");
  }
  void add_edge(const Edge& edge) {
    if (edges.size() >= kMaxCount) throw InputError("the graph has more than 2^32 - 2 edges");
    edges.push_back(edge);
  }

  std::vector<OpId> settle_variables();
  void number_tensors();
  void sort_edges();
  ColocationGroups merged_groups() const;
  void number_groups();
  void check_operators();
  void check_marks();
};

OpGraphBuilder::OpGraphBuilder(std::string_view name)
    : state_(new State{OpGraph(), {}, {}, {}, {}, {}, {}, false}) {
  state_->graph.name_ = std::string(name);
}
OpGraphBuilder::~OpGraphBuilder() = default;
OpGraphBuilder::OpGraphBuilder(OpGraphBuilder&&) noexcept = default;
OpGraphBuilder& OpGraphBuilder::operator=(OpGraphBuilder&&) noexcept = default;

void OpGraphBuilder::set_name(std::string_view name) { state_->graph.name_ = std::string(name); }

void OpGraphBuilder::set_memory_mode(MemoryMode mode) { state_->graph.memory_mode_ = mode; }

void OpGraphBuilder::set_batch_size(std::int64_t size) {
  if (size <= 0) throw InputError("the batch size must be positive, not " + std::to_string(size));
  state_->graph.batch_size_ = size;
}

void OpGraphBuilder::add_note(std::string note) { state_->graph.notes_.push_back(std::move(note)); }

void OpGraphBuilder::reserve(std::size_t ops, std::size_t edges) {
  state_->graph.ops_.reserve(ops);
  state_->graph.names_->op_by_name.reserve(ops);
  state_->outputs_of.reserve(ops);
  state_->edges.reserve(edges);
}

OpId OpGraphBuilder::add_operator(const OperatorSpec& spec) {
  OpGraph& graph = state_->graph;
  if (spec.name.empty())
    throw InputError("operator number " + std::to_string(graph.num_ops()) + " has an empty name");
  if (graph.num_ops() >= kMaxCount) throw InputError("the graph has more than 2^32 - 2 operators");
  const std::string_view name = graph.names_->arena.store(spec.name);
  const auto name_of = [&](OpId op) { return graph.ops_[op].name; };
  if (!graph.names_->op_by_name.insert(name, OpId(graph.num_ops()), name_of))
    throw InputError("duplicate operator name " + in_quotes(spec.name));
  const OpId op = graph.ops_.push_back(Operator{.name = name,
                                                .kind = state_->intern(spec.kind),
                                                .permanent = {},
                                                .temporary = {},
                                                .backward = spec.backward,
                                                .forward = {},
                                                .per_step = spec.per_step || spec.variable,
                                                .recompute = spec.recompute,
                                                .variable = spec.variable,
                                                .random = spec.random,
                                                .group = {},
                                                .pin = {}});
  state_->outputs_of.push_back({});
  state_->any_variable = state_->any_variable || spec.variable;
  set_permanent(op, spec.permanent);
  set_temporary(op, spec.temporary);
  if (spec.forward.has_value()) set_forward(op, *spec.forward);
  if (spec.pin.has_value()) set_pin(op, *spec.pin);
  return op;
}

std::optional<OpId> OpGraphBuilder::find(std::string_view name) const {
  return state_->graph.find(name);
}
void OpGraphBuilder::expect(std::string_view name) const {
  state_->graph.names_->op_by_name.expect(name);
}
std::size_t OpGraphBuilder::num_ops() const { return state_->graph.num_ops(); }

void OpGraphBuilder::set_time(OpId op, std::string_view device_kind, Time time) {
  OpGraph& graph = state_->graph;
  if (time < Time(0))
    throw InputError("operator " + state_->name(op) +
                     " has a negative compute time: " + std::to_string(time.count()) + " ns");
  if (device_kind.empty())
    throw InputError("operator " + state_->name(op) +
                     " has a compute time for a kind without a name");
  state_->at(op);
  std::optional<KindId> kind = graph.find_kind(device_kind);
  if (!kind.has_value()) {
    kind = graph.kinds_.push_back(state_->intern(device_kind));
    graph.times_.push_back({});
  }
  IdVector<OpId, std::optional<Time>>& times = graph.times_[*kind];
  if (times.size() < graph.num_ops()) times.resize(graph.num_ops());
  times[op] = time;
}

void OpGraphBuilder::set_forward(OpId op, OpId forward) {
  if (forward == op)
    throw InputError("operator " + state_->name(op) + " is its own forward operator");
  state_->at(op).forward = forward;  // may be added later: checked by build()
  state_->at(op).backward = true;
}
void OpGraphBuilder::set_backward(OpId op) { state_->at(op).backward = true; }
void OpGraphBuilder::set_one_step() { state_->one_step = true; }

void OpGraphBuilder::set_permanent(OpId op, Bytes bytes) {
  state_->require_amount(op, bytes, "permanent memory");
  state_->at(op).permanent = bytes;
}
void OpGraphBuilder::set_temporary(OpId op, Bytes bytes) {
  state_->require_amount(op, bytes, "temporary memory");
  state_->at(op).temporary = bytes;
}
void OpGraphBuilder::set_pin(OpId op, std::string_view device) {
  if (device.empty())
    throw InputError("operator " + state_->name(op) + " is pinned to a device without a name");
  state_->at(op).pin = state_->intern(device);
}

void OpGraphBuilder::add_to_group(OpId op, std::string_view group) {
  if (group.empty())
    throw InputError("operator " + state_->name(op) + " names an empty colocation group");
  state_->at(op);
  const std::string_view stored = state_->intern(group);
  const auto [at, added] =
      state_->group_names.emplace(stored, static_cast<std::uint32_t>(state_->group_names.size()));
  state_->memberships.emplace_back(op, at->second);
}

TensorId OpGraphBuilder::add_output(OpId op, Bytes size) {
  state_->require_amount(op, size, "output size");
  if (state_->outputs.size() >= kMaxCount)
    throw InputError("the graph has more than 2^32 - 2 tensors");
  const TensorId tensor = state_->outputs.push_back({op, size, std::nullopt});
  Outputs& of = state_->outputs_of[op];
  if (of.last.has_value()) {
    of.consecutive = of.consecutive && of.last->value() + 1 == tensor.value();
    state_->outputs[*of.last].next = tensor;
  } else {
    of.first = tensor;
  }
  of.last = tensor;
  ++of.count;
  return tensor;
}

std::optional<TensorId> OpGraphBuilder::output(OpId op, std::size_t port) const {
  state_->at(op);
  const Outputs& of = state_->outputs_of[op];
  if (port >= of.count) return std::nullopt;
  if (of.consecutive) return TensorId(of.first->index() + port);
  std::optional<TensorId> tensor = of.first;
  while (port-- > 0) tensor = state_->outputs[*tensor].next;
  return tensor;
}

void OpGraphBuilder::connect(TensorId tensor, OpId consumer) {
  if (!state_->outputs.contains(tensor))
    throw InputError("there is no tensor number " + std::to_string(tensor.value()));
  const OpId producer = state_->outputs[tensor].producer;
  if (producer == consumer)
    throw InputError("operator " + state_->name(consumer) + " reads its own output");
  state_->at(consumer);
  state_->add_edge({producer, consumer, tensor});
}

void OpGraphBuilder::add_control_edge(OpId from, OpId to) {
  state_->at(from);
  if (from == to) throw InputError("operator " + state_->name(to) + " waits for itself");
  state_->at(to);
  state_->add_edge({from, to, std::nullopt});
}

void OpGraphBuilder::add_write(OpId op, OpId variable) {
  state_->at(op);
  state_->graph.writes_.push_back({op, variable});  // the variable may be added later
}

void OpGraphBuilder::set_times(OpId op, const OpGraph& graph, OpId other) {
  for (const KindId kind : graph.kinds())
    if (const std::optional<Time> time = graph.times(kind)[other]; time.has_value())
      set_time(op, graph.kind_name(kind), *time);
}

OperatorSpec spec_of(const Operator& data) {
  return {.name = data.name,
          .kind = data.kind,
          .permanent = data.variable ? Bytes(0) : data.permanent,
          .temporary = data.temporary,
          .backward = data.backward,
          .pin = data.pin,
          .per_step = data.per_step,
          .recompute = data.recompute,
          .variable = data.variable,
          .random = data.random};
}

// Tells of the variables without a compute time.
std::vector<OpId> OpGraphBuilder::State::settle_variables() {
  std::vector<OpId> untimed;
  if (!any_variable && graph.writes_.empty()) return untimed;
  for (const Write& write : graph.writes_) at(write.variable);
  std::sort(graph.writes_.begin(), graph.writes_.end());
  graph.writes_.erase(std::unique(graph.writes_.begin(), graph.writes_.end()), graph.writes_.end());
  add_edges_to_writers(graph.ops_, writers_of(graph.ops_, graph.writes_), edges);
  for (const OpId op : graph.ops()) {
    if (!graph[op].variable) continue;
    std::optional<Time> longest;
    for (const auto& times : graph.times_)
      if (op.index() < times.size() && times[op].has_value())
        longest = std::max(longest.value_or(Time(0)), *times[op]);
    if (!longest.has_value()) untimed.push_back(op);
    check_variable(graph[op], outputs_of[op].count, longest.value_or(Time(0)) > Time(0));
    graph.ops_[op].permanent = outputs[*outputs_of[op].first].size;
  }
  return untimed;
}

// Sorts tensors by producer, ports in order, and renames them in the edges.
void OpGraphBuilder::State::number_tensors() {
  graph.output_begin_ = row_starts(graph.num_ops(), outputs,
                                   [](const Output& output) { return output.producer.index(); });
  graph.tensor_sizes_.resize(outputs.size());
  graph.producers_.assign(outputs.size(), OpId(0));
  std::vector<std::uint32_t> next = graph.output_begin_;
  IdVector<TensorId, TensorId> renamed(outputs.size(), TensorId(0));
  for (const TensorId old : outputs.keys()) {
    const TensorId tensor(next[outputs[old].producer.index()]++);
    renamed[old] = tensor;
    graph.tensor_sizes_[tensor] = outputs[old].size;
    graph.producers_[tensor] = outputs[old].producer;
  }
  for (Edge& edge : edges)
    if (edge.tensor.has_value()) edge.tensor = renamed[*edge.tensor];
}

void OpGraphBuilder::State::sort_edges() {
  const std::size_t n = graph.num_ops();
  const std::vector<std::uint32_t> begin =
      row_starts(n, edges, [](const Edge& edge) { return edge.from.index(); });
  std::vector<Edge> by_from(edges.size(), Edge{OpId(0), OpId(0), std::nullopt});
  std::vector<std::uint32_t> next = begin;
  for (const Edge& edge : edges) by_from[next[edge.from.index()]++] = edge;
  edges.clear();
  edges.shrink_to_fit();

  // Sort each row and drop repeats, compacting in place.
  std::size_t kept = 0;
  graph.out_begin_.assign(n + 1, 0);
  for (std::size_t op = 0; op < n; ++op) {
    const auto row_begin = by_from.begin() + begin[op];
    auto row_end = by_from.begin() + begin[op + 1];
    if (!std::is_sorted(row_begin, row_end, edge_order)) std::sort(row_begin, row_end, edge_order);
    row_end = std::unique(row_begin, row_end);
    for (auto edge = row_begin; edge != row_end; ++edge) by_from[kept++] = *edge;
    graph.out_begin_[op + 1] = static_cast<std::uint32_t>(kept);
  }
  by_from.resize(kept, Edge{OpId(0), OpId(0), std::nullopt});
  graph.out_edges_ = std::move(by_from);

  graph.in_begin_ =
      row_starts(n, graph.out_edges_, [](const Edge& edge) { return edge.to.index(); });
  graph.in_edges_.assign(kept, Edge{OpId(0), OpId(0), std::nullopt});
  next = graph.in_begin_;
  for (const Edge& edge : graph.out_edges_) graph.in_edges_[next[edge.to.index()]++] = edge;

  // Within a row, data edges come first and by tensor: consumers of a tensor are one span.
  graph.consumer_rows_.resize(graph.num_tensors());
  for (const OpId op : graph.ops()) {
    std::uint32_t at = graph.out_begin_[op.index()];
    for (const TensorId tensor : graph.outputs(op)) {
      const std::uint32_t first = at;
      while (at < graph.out_begin_[op.index() + 1] && graph.out_edges_[at].tensor == tensor) ++at;
      graph.consumer_rows_[tensor] = {first, at};
    }
  }
}

// A variable that is written has a group without a name, with its readers and its writer.
ColocationGroups OpGraphBuilder::State::merged_groups() const {
  if (graph.writes_.empty()) return merge_groups(graph.num_ops(), group_names.size(), memberships);
  auto all = memberships;
  auto names = static_cast<std::uint32_t>(group_names.size());
  for (const auto& [op, variable] : graph.writes_) {
    all.emplace_back(op, names);
    all.emplace_back(variable, names);
    for (const Edge& edge : graph.out_edges(variable))
      if (edge.tensor.has_value()) all.emplace_back(edge.to, names);
    ++names;
  }
  return merge_groups(graph.num_ops(), names, all);
}

void OpGraphBuilder::State::number_groups() {
  const std::size_t n = graph.num_ops();
  ColocationGroups groups = merged_groups();
  for (const OpId op : graph.ops()) graph.ops_[op].group = groups.group_of[op];
  graph.group_members_ = std::move(groups.members);
  graph.group_begin_ = std::move(groups.begin);

  std::vector<std::string_view> names(group_names.size());
  for (const auto& [name, number] : group_names) names[number] = name;
  graph.colocation_begin_ =
      row_starts(n, memberships, [](const auto& membership) { return membership.first.index(); });
  graph.colocation_names_.resize(memberships.size());
  std::vector<std::uint32_t> next = graph.colocation_begin_;
  for (const auto& [op, number] : memberships)
    graph.colocation_names_[next[op.index()]++] = names[number];

  for (const GroupId group : graph.groups()) {
    std::optional<OpId> pinned;
    for (const OpId op : graph.members(group)) {
      if (!graph[op].pin.has_value()) continue;
      if (pinned.has_value() && graph[*pinned].pin != graph[op].pin)
        throw InputError("operators " + name(*pinned) + " and " + name(op) +
                         " are colocated but pinned to different devices, " +
                         in_quotes(*graph[*pinned].pin) + " and " + in_quotes(*graph[op].pin));
      pinned = op;
    }
  }
}

void OpGraphBuilder::State::check_operators() {
  for (const KindId kind : graph.kinds()) graph.times_[kind].resize(graph.num_ops());
  for (const OpId op : graph.ops()) {
    const bool runs = std::any_of(graph.kinds().begin(), graph.kinds().end(),
                                  [&](KindId kind) { return graph.times_[kind][op].has_value(); });
    if (!runs) throw InputError("operator " + name(op) + " has no compute time on any device kind");
    if (graph[op].forward.has_value() && !graph.ops_.contains(*graph[op].forward))
      throw InputError("operator " + name(op) + " has a forward operator that does not exist");
  }
}

// An operator of the step runs before all micro-batches or after all of them.
void OpGraphBuilder::State::check_marks() {
  graph.marks_steps_ = std::any_of(graph.ops().begin(), graph.ops().end(), [&](OpId op) {
    return graph[op].per_step && !graph[op].variable;
  });
  if (!graph.marks_steps_ || one_step) return;
  IdVector<OpId, std::optional<OpId>> waits_for(graph.num_ops());  // an operator of a micro-batch
  for (const OpId op : graph.topological_order())
    for (const Edge& edge : graph.in_edges(op)) {
      if (!graph[edge.from].per_step) {
        waits_for[op] = edge.from;
      } else if (waits_for[edge.from].has_value()) {
        if (!graph[op].per_step)
          throw InputError("operator " + name(edge.from) +
                           " is marked \"per\": \"step\", but it waits for " +
                           name(*waits_for[edge.from]) + " and " + name(op) +
                           " waits for it, which both run once per micro-batch: an operator of "
                           "the step runs before all micro-batches or after all of them");
        waits_for[op] = waits_for[edge.from];
      }
    }
}

OpGraph OpGraphBuilder::build() && {
  State& state = *state_;
  OpGraph& graph = state.graph;
  if (graph.num_ops() == 0) throw InputError("the graph has no operators");
  for (const OpId variable : state.settle_variables()) set_time(variable, kAnyKind, Time(0));
  state.check_operators();
  state.number_tensors();
  state.sort_edges();
  state.number_groups();
  auto order = topological_order({graph.out_edges_, graph.out_begin_});
  if (const auto* cycle = std::get_if<Cycle>(&order))
    throw InputError(describe(*cycle, graph.ops_));
  graph.topological_order_ = std::get<std::vector<OpId>>(std::move(order));
  state.check_marks();
  OpGraph result = std::move(graph);
  state_.reset();
  return result;
}

}  // namespace baechi
