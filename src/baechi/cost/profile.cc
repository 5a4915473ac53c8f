// SPDX-License-Identifier: Apache-2.0
#include "baechi/cost/profile.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"

namespace baechi {
namespace {

std::string counted(std::size_t count, std::size_t of, const char* what) {
  return std::to_string(count) + " of " + std::to_string(of) + " " + what;
}

struct Coverage {
  IdVector<OpId, const OperatorProfile*> measured;  // null: the profile lacks the operator
  std::size_t unknown = 0;                          // to the graph
  std::string_view first_unknown;

  Coverage(const OpGraph& graph, const Profile& profile) : measured(graph.num_ops(), nullptr) {
    for (const OperatorProfile& op : profile.operators) {
      if (const std::optional<OpId> found = graph.find(op.name); found.has_value()) {
        measured[*found] = &op;
      } else if (unknown++ == 0) {
        first_unknown = op.name;
      }
    }
  }
};

void check_same_graph(const OpGraph& graph, const Profile& profile, const Coverage& coverage) {
  if (2 * coverage.unknown > profile.operators.size())
    throw InputError("it is the profile of another graph: " +
                     counted(coverage.unknown, profile.operators.size(), "operators") +
                     " are unknown here, the first is " + in_quotes(coverage.first_unknown));
  if (profile.batch_size.has_value() && graph.batch_size().has_value() &&
      profile.batch_size != graph.batch_size())
    throw InputError("it was measured with batch size " + std::to_string(*profile.batch_size) +
                     ", the graph is for " + std::to_string(*graph.batch_size()));
  for (const OpId op : graph.ops()) {
    const OperatorProfile* const measured = coverage.measured[op];
    if (measured == nullptr) continue;
    const std::size_t ports = std::max(measured->transferred.size(), measured->allocated.size());
    if (ports > graph.outputs(op).size())
      throw InputError("it is the profile of another graph: operator " + in_quotes(graph[op].name) +
                       " has " + std::to_string(ports) + " outputs there and " +
                       std::to_string(graph.outputs(op).size()) + " here");
  }
}

const KindTime* find_time(const OperatorProfile& op, std::string_view kind) {
  const auto found = std::find_if(op.times.begin(), op.times.end(),
                                  [&](const KindTime& time) { return time.kind == kind; });
  return found == op.times.end() ? nullptr : &*found;
}

// A time for any kind also replaces what the graph says for a kind that the profile does not list.
std::vector<KindTime> times_of(const OpGraph& graph, OpId op, const OperatorProfile& measured) {
  std::vector<KindTime> times = measured.times;
  const KindTime* const any = find_time(measured, kAnyKind);
  if (any == nullptr) return times;
  for (const KindId kind : graph.kinds())
    if (graph.times(kind)[op].has_value() && find_time(measured, graph.kind_name(kind)) == nullptr)
      times.push_back({std::string(graph.kind_name(kind)), any->time});
  return times;
}

// Where only the allocation was measured, the estimate is what is sent.
Bytes size_of(const OperatorProfile& measured, std::size_t port, Bytes estimate) {
  const std::optional<Bytes> size = measured_output(measured, port);
  const bool is_sent = port < measured.transferred.size() && measured.transferred[port].has_value();
  return is_sent ? *size : std::max(estimate, size.value_or(estimate));
}

}  // namespace

std::optional<Bytes> measured_output(const OperatorProfile& measured, std::size_t port) {
  std::optional<Bytes> size;
  for (const std::vector<std::optional<Bytes>>* sizes :
       {&measured.transferred, &measured.allocated})
    if (port < sizes->size() && (*sizes)[port].has_value())
      size = std::max(size.value_or(Bytes(0)), *(*sizes)[port]);
  return size;
}

OpGraph with_profile(const OpGraph& graph, const Profile& profile) {
  const Coverage coverage(graph, profile);
  check_same_graph(graph, profile, coverage);
  const auto measured = [&](OpId op) { return coverage.measured[op]; };
  return recosted(graph, {.times =
                              [&](OpId op) {
                                return measured(op) ? times_of(graph, op, *measured(op))
                                                    : std::vector<KindTime>();
                              },
                          .permanent =
                              [&](OpId op, Bytes old) {
                                return measured(op) ? measured(op)->permanent.value_or(old) : old;
                              },
                          .temporary =
                              [&](OpId op, Bytes old) {
                                return measured(op) ? measured(op)->temporary.value_or(old) : old;
                              },
                          .output =
                              [&](TensorId tensor, Bytes old) {
                                const OpId op = graph.producer(tensor);
                                const std::size_t port =
                                    tensor.index() - (*graph.outputs(op).begin()).index();
                                return measured(op) ? size_of(*measured(op), port, old) : old;
                              },
                          .batch_size = profile.batch_size});
}

std::vector<std::string> measured_kinds(const Profile& profile) {
  std::vector<std::string> kinds;
  for (const OperatorProfile& op : profile.operators)
    for (const KindTime& time : op.times)
      if (std::find(kinds.begin(), kinds.end(), time.kind) == kinds.end())
        kinds.push_back(time.kind);
  return kinds;
}

std::vector<std::string> coverage_notes(const OpGraph& graph, const Profile& profile) {
  const Coverage coverage(graph, profile);
  std::vector<std::string> notes;
  if (coverage.unknown != 0)
    notes.push_back(counted(coverage.unknown, profile.operators.size(), "operators") +
                    " of the profile are not in the graph, the first is " +
                    in_quotes(coverage.first_unknown));
  std::size_t missing = 0;
  std::string_view first_missing;
  for (const OpId op : graph.ops())
    if (coverage.measured[op] == nullptr && missing++ == 0) first_missing = graph[op].name;
  if (missing != 0)
    notes.push_back(counted(missing, graph.num_ops(), "operators") +
                    " of the graph are not in the profile and keep the costs they had, the first "
                    "is " +
                    in_quotes(first_missing));
  return notes;
}

}  // namespace baechi
