// SPDX-License-Identifier: Apache-2.0
#include "unit/io/same_graph.h"

#include <algorithm>
#include <map>

namespace baechi::testing {
namespace {

std::map<std::string_view, std::int64_t> times_of(const OpGraph& graph, OpId op) {
  std::map<std::string_view, std::int64_t> times;
  for (const KindId kind : graph.kinds())
    if (const auto time = graph.times(kind)[op]; time.has_value())
      times.emplace(graph.kind_name(kind), time->count());
  return times;
}

template <class Item>
bool same(std::span<const Item> a, std::span<const Item> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

const char* operator_difference(const OpGraph& a, const OpGraph& b, OpId op) {
  if (a[op].name != b[op].name) return "name";
  if (a[op].kind != b[op].kind) return "kind";
  if (a[op].permanent != b[op].permanent) return "permanent memory";
  if (a[op].temporary != b[op].temporary) return "temporary memory";
  if (a[op].backward != b[op].backward) return "backward";
  if (a[op].forward != b[op].forward) return "forward operator";
  if (a[op].group != b[op].group) return "group";
  if (a[op].pin != b[op].pin) return "pin";
  if (times_of(a, op) != times_of(b, op)) return "times";
  if (a.outputs(op).size() != b.outputs(op).size()) return "number of outputs";
  for (const TensorId tensor : a.outputs(op))
    if (a.size(tensor) != b.size(tensor)) return "output size";
  if (!same(a.in_edges(op), b.in_edges(op))) return "edges in";
  if (!same(a.out_edges(op), b.out_edges(op))) return "edges out";
  if (!same(a.colocation_names(op), b.colocation_names(op))) return "colocation names";
  return nullptr;
}

}  // namespace

std::string graph_difference(const OpGraph& a, const OpGraph& b) {
  if (a.name() != b.name()) return "graph name";
  if (a.memory_mode() != b.memory_mode()) return "memory mode";
  if (a.batch_size() != b.batch_size()) return "batch size";
  if (a.num_ops() != b.num_ops()) return "number of operators";
  if (a.num_groups() != b.num_groups()) return "number of groups";
  for (const OpId op : a.ops())
    if (const char* what = operator_difference(a, b, op))
      return std::string(what) + " of '" + std::string(a[op].name) + "'";
  return {};
}

}  // namespace baechi::testing
