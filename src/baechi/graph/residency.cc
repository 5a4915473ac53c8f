// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/residency.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/graph/name_separator.h"
#include "baechi/graph/op_graph_builder.h"

namespace baechi {
namespace {

constexpr std::string_view kStoreKind = "host";
constexpr std::string_view kNew = "new";

std::vector<OpId> variables_of(const OpGraph& graph, OpId update) {
  std::vector<OpId> variables;
  for (const Edge& edge : graph.in_edges(update))
    if (edge.tensor.has_value() && graph[edge.from].variable) variables.push_back(edge.from);
  return variables;
}

bool is_once(const StepGraph& step, OpId op) {
  return step.micro_batches() > 1 ? !step.micro_batch(op).has_value() && !step.is_sum(op)
                                  : step.graph()[op].per_step;
}

class Storing {
 public:
  Storing(const StepGraph& step, const Residency& residency)
      : step_(step),
        graph_(step.graph()),
        residency_(residency),
        builder_(graph_.name()),
        on_store_(graph_.num_ops()),
        streamed_(streamed_updates(step, residency)),
        away_of_(graph_.num_tensors()) {}

  OpGraph build() && {
    check();
    builder_.set_one_step();
    builder_.set_memory_mode(graph_.memory_mode());
    if (graph_.batch_size().has_value()) builder_.set_batch_size(*graph_.batch_size());
    std::size_t more = 2 * streamed_.size();
    for (const AwayTensor& away : residency_.away) more += away.fetches.size();
    builder_.reserve(graph_.num_ops() + more, graph_.num_edges() + 2 * more);
    for (const OpId op : graph_.ops()) {
      separator_.avoid(graph_[op].name);
      if (!streamed_.empty())
        for (const std::string_view group : graph_.colocation_names(op))
          group_separator_.avoid(group);
    }
    for (const OpId op : graph_.ops()) add(op);
    for (const AwayTensor& away : residency_.away) add_fetches(away);
    for (const OpId update : streamed_) add_put(update);
    for (const OpId op : graph_.ops()) connect(op);
    for (const auto& [op, variable] : graph_.writes()) builder_.add_write(op, variable);
    return std::move(builder_).build();
  }

 private:
  [[noreturn]] void fail(OpId op, const std::string& what) const {
    throw InputError("operator " + in_quotes(graph_[op].name) + " " + what);
  }

  [[noreturn]] void fail_unfetched(OpId update, OpId variable) const {
    fail(update,
         "is not on the store: it has to fetch " + in_quotes(graph_[variable].name) + ", which is");
  }

  void check() {
    if (graph_.memory_mode() == MemoryMode::kRetain && !residency_.empty())
      throw InputError(
          "the graph's memory mode is retain: devices keep all outputs of the forward pass, so "
          "nothing may be away; with dataflow it may");
    check_on_store();
    const AwayTensor* before = nullptr;
    for (const AwayTensor& away : residency_.away) {
      if (before != nullptr &&
          std::pair(before->producer, before->port) >= std::pair(away.producer, away.port))
        fail(away.producer, "is out of order: tensors that are away are sorted as in the graph");
      before = &away;
      check_away(away);
    }
  }

  void check_on_store() {
    for (std::size_t i = 0; i < residency_.on_store.size(); ++i) {
      const OpId op = residency_.on_store[i];
      if (i > 0 && residency_.on_store[i - 1] >= op)
        fail(op, "is out of order: what is on the store is sorted as in the graph");
      if (!graph_[op].variable && !is_update(step_, op))
        fail(op, "may not be on the store: it is neither a variable nor an update");
      if (const std::optional<OpId> late = reader_behind_update(step_, op); late.has_value())
        fail(
            op,
            "may not be on the store: " + in_quotes(graph_[*late].name) +
                " reads it and waits for an update of it, so it may find the old or the new value");
      on_store_[op] = true;
    }
    for (const OpId op : graph_.ops())
      if (is_update(step_, op)) check_update(op);
    for (const auto& [op, variable] : step_.writes())
      if (on_store_[variable])
        fail(variable, "may not be on the store: every micro-batch changes it");
  }

  // Its variables are all on the store, or none: where they are, or the update is streamed.
  void check_update(OpId op) {
    const std::vector<OpId> variables = variables_of(graph_, op);
    for (const OpId variable : variables)
      if (on_store_[variable] != (on_store_[op] || on_store_[variables.front()]))
        fail(op, "changes " + in_quotes(graph_[variable].name) +
                     ": what it changes is on the store, or nothing of it and not the update");
    if (on_store_[op] || variables.empty() || !on_store_[variables.front()]) return;
    if (!std::ranges::binary_search(streamed_, op)) fail_unfetched(op, variables.front());
    if (graph_[op].permanent > Bytes(0))
      fail(op, "may not be streamed: what it holds from step to step is no variable");
    for (const OpId variable : variables)
      for (const Edge& edge : graph_.out_edges(variable))
        if (edge.tensor.has_value() && edge.to != op && is_update(step_, edge.to))
          fail(op, "may not be streamed: " + in_quotes(graph_[edge.to].name) + " changes " +
                       in_quotes(graph_[variable].name) + ", too");
  }

  void check_away(const AwayTensor& away) {
    const auto outputs = graph_.outputs(away.producer);
    if (away.port >= outputs.size())
      fail(away.producer, "has no output " + std::to_string(away.port));
    const TensorId tensor = outputs.begin()[static_cast<std::ptrdiff_t>(away.port)];
    if (graph_[away.producer].variable && !on_store_[away.producer])
      fail(away.producer, "is a variable that is away: it has to be on the store");
    away_of_[tensor] = &away;
    std::vector<OpId> readers;
    for (const Fetch& fetch : away.fetches) {
      if (fetch.readers.empty()) fail(away.producer, "is fetched for nobody");
      readers.insert(readers.end(), fetch.readers.begin(), fetch.readers.end());
    }
    if (readers.empty()) fail(away.producer, "is away for good: nobody fetches it");
    std::sort(readers.begin(), readers.end());
    if (std::adjacent_find(readers.begin(), readers.end()) != readers.end())
      fail(away.producer, "is fetched twice for one reader");
    const auto consumers = graph_.consumers(tensor);
    for (const OpId reader : readers)
      if (step_.is_sum(reader))
        fail(away.producer, "makes the buffer that micro-batches add to: it stays where it is");
      else if (std::ranges::none_of(consumers, [&](const Edge& edge) { return edge.to == reader; }))
        fail(away.producer,
             "is fetched for " + in_quotes(graph_[reader].name) + ", which does not read it");
  }

  void add(OpId op) {
    OperatorSpec spec = spec_of(graph_[op]);
    spec.name = graph_[op].name;
    spec.forward = graph_[op].forward;
    if (on_store_[op]) spec.pin = residency_.store;
    const OpId added = builder_.add_operator(spec);
    builder_.set_times(added, graph_, op);
    for (const TensorId tensor : graph_.outputs(op))
      builder_.add_output(added, graph_.size(tensor));
    if (on_store_[op]) return;
    for (const std::string_view group : graph_.colocation_names(op))
      builder_.add_to_group(added, group);
  }

  void add_fetches(const AwayTensor& away) {
    first_fetch_.push_back(OpId(builder_.num_ops()));
    for (std::size_t i = 0; i < away.fetches.size(); ++i) {
      name_.assign(graph_[away.producer].name).append(separator_.text()).append("fetch");
      if (away.port != 0)
        name_.append(separator_.text()).append("port").append(std::to_string(away.port));
      if (i != 0) name_.append(separator_.text()).append(std::to_string(i));
      OperatorSpec spec;
      spec.name = name_;
      spec.kind = "Fetch";
      spec.backward = true;
      spec.pin = residency_.store;
      spec.per_step = std::ranges::all_of(away.fetches[i].readers,
                                          [&](OpId reader) { return graph_[reader].per_step; });
      const OpId fetch = builder_.add_operator(spec);
      builder_.set_time(fetch, kStoreKind, Time(0));
      builder_.add_output(
          fetch,
          graph_.size(
              graph_.outputs(away.producer).begin()[static_cast<std::ptrdiff_t>(away.port)]));
      builder_.connect(*builder_.output(away.producer, away.port), fetch);
      if (away.fetches[i].after.has_value())
        builder_.add_control_edge(*away.fetches[i].after, fetch);
    }
  }

  OpId add_behind(OpId update, std::string_view what, std::optional<std::string_view> pin) {
    name_.assign(graph_[update].name).append(separator_.text()).append(what);
    OperatorSpec spec;
    spec.name = name_;
    spec.kind = "Put";
    spec.backward = true;
    spec.per_step = graph_[update].per_step;
    spec.pin = pin;
    return builder_.add_operator(spec);
  }

  // What takes the place of the copies that the update changes, and what brings that to the store.
  void add_put(OpId update) {
    const OpId made = add_behind(update, kNew, std::nullopt);
    const OpId put = add_behind(update, "put", residency_.store);
    builder_.set_time(put, kStoreKind, Time(0));
    for (const KindId kind : graph_.kinds())
      if (graph_.times(kind)[update].has_value())
        builder_.set_time(made, graph_.kind_name(kind), Time(0));
    name_.assign(graph_[update].name).append(group_separator_.text()).append(kNew);
    for (const OpId op : {update, made}) builder_.add_to_group(op, name_);
    builder_.add_control_edge(update, made);
    for (const OpId variable : variables_of(graph_, update)) {
      const TensorId tensor = *graph_.outputs(variable).begin();
      const std::optional<OpId> fetch = fetch_for(tensor, update);
      if (!fetch.has_value()) fail_unfetched(update, variable);
      builder_.connect(*builder_.output(*fetch, 0), made);
      builder_.connect(builder_.add_output(made, graph_.size(tensor)), put);
    }
  }

  void connect(OpId op) {
    for (const Edge& edge : graph_.out_edges(op)) {
      if (!edge.tensor.has_value()) {
        builder_.add_control_edge(op, edge.to);
        continue;
      }
      if (const auto fetch = fetch_for(*edge.tensor, edge.to); fetch.has_value()) {
        builder_.connect(*builder_.output(*fetch, 0), edge.to);
        continue;
      }
      const std::size_t port = edge.tensor->index() - (*graph_.outputs(op).begin()).index();
      builder_.connect(*builder_.output(op, port), edge.to);
    }
  }

  std::optional<OpId> fetch_for(TensorId tensor, OpId reader) const {
    const AwayTensor* away = away_of_[tensor];
    if (away == nullptr) return std::nullopt;
    const auto index = static_cast<std::size_t>(away - residency_.away.data());
    for (std::size_t i = 0; i < away->fetches.size(); ++i)
      if (std::ranges::find(away->fetches[i].readers, reader) != away->fetches[i].readers.end())
        return OpId(first_fetch_[index].index() + i);
    return std::nullopt;
  }

  const StepGraph step_;
  const OpGraph& graph_;
  const Residency& residency_;
  OpGraphBuilder builder_;
  IdVector<OpId, bool> on_store_;
  const std::vector<OpId> streamed_;
  IdVector<TensorId, const AwayTensor*> away_of_;
  std::vector<OpId> first_fetch_;  // by place in the list
  NameSeparator separator_, group_separator_;
  std::string name_;
};

}  // namespace

bool is_update(const StepGraph& step, OpId op) {
  const Operator& data = step.graph()[op];
  return is_once(step, op) && data.backward && !data.variable && !data.forward.has_value();
}

std::optional<OpId> reader_behind_update(const StepGraph& step, OpId variable) {
  const OpGraph& graph = step.graph();
  if (!graph[variable].variable) return std::nullopt;
  const auto changes = [&](OpId op) {
    return is_update(step, op) && std::ranges::any_of(graph.in_edges(op), [&](const Edge& edge) {
             return edge.tensor.has_value() && edge.from == variable;
           });
  };
  for (const Edge& read : graph.out_edges(variable)) {
    if (!read.tensor.has_value() || !is_once(step, read.to) || is_update(step, read.to)) continue;
    IdVector<OpId, bool> seen(graph.num_ops());
    std::vector<OpId> left{read.to};
    while (!left.empty()) {
      const OpId op = left.back();
      left.pop_back();
      if (changes(op)) return read.to;
      for (const Edge& edge : graph.in_edges(op))
        if (!seen[edge.from]) {
          seen[edge.from] = true;
          left.push_back(edge.from);
        }
    }
  }
  return std::nullopt;
}

std::vector<OpId> streamed_updates(const StepGraph& step, const Residency& residency) {
  std::vector<OpId> streamed;
  for (const AwayTensor& away : residency.away)
    if (step.graph()[away.producer].variable)
      for (const Fetch& fetch : away.fetches)
        for (const OpId reader : fetch.readers)
          if (is_update(step, reader) && !std::ranges::binary_search(residency.on_store, reader))
            streamed.push_back(reader);
  std::ranges::sort(streamed);
  streamed.erase(std::unique(streamed.begin(), streamed.end()), streamed.end());
  return streamed;
}

OpGraph residing(const StepGraph& step, const Residency& residency) {
  return Storing(step, residency).build();
}

Unrolled with_fetches(const Unrolled& step, const Residency& residency) {
  if (step.micro_batches == 1) return as_step(residing(step.graph, residency));
  Unrolled result{.graph = residing(step, residency),
                  .micro_batches = step.micro_batches,
                  .original = step.original,
                  .micro_batch = step.micro_batch,
                  .rank = step.rank,
                  .per_micro_batch = step.per_micro_batch,
                  .first_sum = step.first_sum,
                  .first_fetch = step.graph.num_ops(),
                  .mark = step.mark,
                  .writes = step.writes};
  for (std::size_t i = result.first_fetch; i < result.graph.num_ops(); ++i) {
    result.original.push_back(OpId(i));
    result.micro_batch.push_back(std::nullopt);
  }
  const std::vector<OpId> streamed = streamed_updates(step, residency);
  for (std::size_t i = 0; i < streamed.size(); ++i)
    result.original[OpId(result.graph.num_ops() - 2 * (streamed.size() - i))] = streamed[i];
  return result;
}

}  // namespace baechi
