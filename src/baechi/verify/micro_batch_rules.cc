// SPDX-License-Identifier: Apache-2.0
#include "baechi/verify/micro_batch_rules.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

namespace baechi {

MicroBatchRules::MicroBatchRules(const OpGraph& one)
    : one_(one), of_step_(one.num_ops()), update_(one.num_ops()), writes_(one.num_ops()) {
  for (const Write& write : one.writes()) writes_[write.op] = true;
  find_together();
  find_order();
  for (const OpId op : one.ops()) names_forward_ = names_forward_ || one[op].forward.has_value();
  const std::span<const OpId> order = one.topological_order();
  if (one.marks_steps()) {
    for (const OpId op : one.ops()) of_step_[op] = one[op].per_step;
  } else {
    for (std::size_t i = order.size(); i > 0; --i) update_[order[i - 1]] = is_update(order[i - 1]);
    for (const OpId op : order) of_step_[op] = is_variable(op);
    for (const OpId op : order) of_step_[op] = of_step_[op] || update_[op];
  }
  std::size_t most = 0;
  for (const OpId op : one.ops()) {
    if (!of_step_[op]) continue;
    std::size_t row = 0;
    for (const char c : one[op].name) most = std::max(most, row = c == '@' ? row + 1 : 0);
  }
  mark_.assign(most + 1, '@');
}

bool MicroBatchRules::read_by_step(TensorId tensor) const {
  if (of_step(one_.producer(tensor))) return false;
  for (const Edge& edge : one_.consumers(tensor))
    if (of_step(edge.to)) return true;
  return false;
}

bool MicroBatchRules::read_by_own(TensorId tensor) const {
  for (const Edge& edge : one_.consumers(tensor))
    if (!of_step(edge.to)) return true;
  return false;
}

bool MicroBatchRules::accumulates(OpId op) const {
  for (const TensorId tensor : one_.outputs(op))
    if (read_by_step(tensor)) return true;
  return false;
}

void MicroBatchRules::find_order() {
  behind_.resize(one_.num_ops());
  for (const OpId op : one_.ops())
    if (writes_[op] || one_[op].random) behind_[op].push_back(op);
  for (const Write& write : one_.writes())
    for (const Edge& edge : one_.out_edges(write.variable))
      if (edge.tensor.has_value()) behind_[edge.to].push_back(write.op);
}

void MicroBatchRules::find_together() {
  for (const OpId op : one_.ops()) {
    const std::optional<GroupId> group = one_[op].group;
    together_.push_back(group.has_value() ? one_.members(*group).front() : op);
  }
  const auto join = [&](OpId a, OpId b) {
    const OpId to = std::min(together_[a], together_[b]);
    const OpId from = std::max(together_[a], together_[b]);
    if (from == to) return;
    for (OpId& of : together_)
      if (of == from) of = to;
  };
  for (const Write& write : one_.writes()) {
    join(write.variable, write.op);
    for (const Edge& edge : one_.out_edges(write.variable))
      if (edge.tensor.has_value()) join(write.variable, edge.to);
  }
}

bool MicroBatchRules::instant(OpId op) const {
  for (const KindId kind : one_.kinds())
    if (one_.times(kind)[op].value_or(Time(0)) > Time(0)) return false;
  return true;
}

// Takes no time, and is marked as a variable or holds memory and waits for nothing, or waits for
// variables alone. Requires the answers of all that it waits for.
bool MicroBatchRules::is_variable(OpId op) const {
  if (!instant(op) || writes_[op]) return false;
  for (const Edge& edge : one_.in_edges(op))
    if (!of_step_[edge.from]) return false;
  return !one_.in_edges(op).empty() || one_[op].permanent > Bytes(0) || one_[op].variable;
}

// A backward operator of no forward operator, or what only waits; nobody but updates waits for
// either. Requires the answers of all that wait for it.
bool MicroBatchRules::is_update(OpId op) const {
  if (writes_[op]) return false;
  for (const Edge& edge : one_.out_edges(op))
    if (!update_[edge.to]) return false;
  if (names_forward_ && one_[op].backward && !one_[op].forward.has_value()) return true;
  for (const Edge& edge : one_.in_edges(op))
    if (edge.tensor.has_value()) return false;
  return instant(op) && !one_.in_edges(op).empty() && one_.outputs(op).empty() &&
         one_[op].permanent == Bytes(0);
}

}  // namespace baechi
