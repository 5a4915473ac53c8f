// SPDX-License-Identifier: Apache-2.0
#include "baechi/graph/variables.h"

#include <string>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"

namespace baechi {
namespace {

[[noreturn]] void fail(const Operator& variable, const std::string& reason) {
  throw InputError("variable " + in_quotes(variable.name) + " " + reason);
}

}  // namespace

void check_variable(const Operator& variable, std::size_t num_outputs, bool takes_time) {
  if (num_outputs != 1)
    fail(variable, "has " + std::to_string(num_outputs) +
                       " outputs: a variable has one, its tensor, and other tensors are variables "
                       "of their own");
  if (variable.permanent > Bytes(0))
    fail(variable,
         "has permanent memory: what it holds for the whole step is its output, so leave "
         "\"permanent\" out");
  if (variable.temporary > Bytes(0))
    fail(variable, "has temporary memory, but it never runs: leave \"temporary\" out");
  if (takes_time)
    fail(variable, "has a compute time, but it never runs: it is 0, or leave \"time\" out");
  if (variable.forward.has_value())
    fail(variable, "has a forward operator, but it is there before all of them: leave it out");
}

IdVector<OpId, std::optional<OpId>> writers_of(const IdVector<OpId, Operator>& ops,
                                               std::span<const Write> writes) {
  IdVector<OpId, std::optional<OpId>> writer(ops.size());
  for (const auto& [op, variable] : writes) {
    const std::string who = "operator " + in_quotes(ops[op].name);
    const std::string what = in_quotes(ops[variable].name);
    if (!ops[variable].variable)
      throw InputError(who + " writes " + what +
                       ", which is no variable: mark it \"variable\": true, or read its output");
    if (ops[op].variable) throw InputError(who + " is a variable: it writes no other one");
    if (ops[op].per_step)
      throw InputError(who + " is marked \"per\": \"step\" and writes variable " + what +
                       ": \"writes\" is for what every micro-batch changes, so leave it out");
    if (writer[variable].has_value() && writer[variable] != op)
      throw InputError("operators " + in_quotes(ops[*writer[variable]].name) + " and " +
                       in_quotes(ops[op].name) + " both write variable " + what +
                       ": one operator writes a variable, with its value at the end of the "
                       "micro-batch");
    writer[variable] = op;
  }
  return writer;
}

void add_edges_to_writers(const IdVector<OpId, Operator>& ops,
                          const IdVector<OpId, std::optional<OpId>>& writer,
                          std::vector<Edge>& edges) {
  const std::size_t given = edges.size();
  for (std::size_t i = 0; i < given; ++i) {
    const Edge edge = edges[i];
    if (ops[edge.to].variable)
      fail(ops[edge.to], "waits for operator " + in_quotes(ops[edge.from].name) +
                             ": it is there from the start of the step and has no inputs");
    if (!edge.tensor.has_value() || writer.empty()) continue;
    const std::optional<OpId> after = writer[edge.from];
    if (after.has_value() && *after != edge.to) edges.push_back({edge.to, *after, std::nullopt});
  }
}

IdVector<OpId, bool> touches_written(const OpGraph& graph) {
  IdVector<OpId, bool> touches(graph.num_ops());
  for (const auto& [op, variable] : graph.writes()) {
    touches[op] = true;
    for (const Edge& edge : graph.out_edges(variable))
      if (edge.tensor.has_value()) touches[edge.to] = true;
  }
  return touches;
}

}  // namespace baechi
