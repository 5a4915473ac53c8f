// SPDX-License-Identifier: Apache-2.0
#include "baechi/verify/check_order.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/graph/topological_order.h"

namespace baechi {
namespace {

class OrderChecker {
 public:
  OrderChecker(const OpGraph& graph, const Schedule& schedule, const IdVector<OpId, Time>& ready,
               const Sentences& say, const std::function<void(const std::string&)>& report)
      : graph_(graph), schedule_(schedule), ready_(ready), say_(say), report_(report) {}

  // Along the file, every device goes forward in time.
  void check_program(std::size_t num_devices) const {
    IdVector<DeviceId, std::optional<OpId>> last(num_devices);
    for (const OpId op : program_order(graph_)) {
      if (graph_[op].variable) continue;  // it has no turn
      const OpSlot& slot = schedule_.slots[op];
      std::optional<OpId>& before = last[slot.device];
      if (before.has_value() && slot.start < schedule_.slots[*before].end)
        report_(say_.op(op) + " on " + say_.device(slot.device) + " starts at " +
                Sentences::time(slot.start) + ", before " + say_.op(*before) +
                ", which comes first in the graph's file");
      else
        before = op;
    }
  }

  // Nobody who runs later could have started before the one that runs could.
  void check_first_come(const std::vector<OpId>& row) const {
    std::optional<std::pair<Time, OpId>> waiting;          // of those behind, who was ready first
    std::optional<std::pair<Time, OpId>> waiting_on_time;  // of those ready in a moment's round 0
    for (std::size_t end = row.size(); end > 0;) {
      std::size_t begin = end - 1;
      while (begin > 0 && same_moment(row[begin - 1], row[end - 1])) --begin;
      for (std::size_t i = begin; i < end; ++i) {
        if (graph_[row[i]].variable) continue;  // it has no turn
        const std::pair key(ready_[row[i]], row[i]);
        if (waiting.has_value() && waiting->first < key.first)
          report_out_of_turn(row[i], *waiting);
        else if (waiting_on_time.has_value() && *waiting_on_time < key && on_time(row[i]))
          report_out_of_turn(row[i], *waiting_on_time);
      }
      for (; end > begin; --end) {
        const OpId op = row[end - 1];
        const std::pair key(ready_[op], op);
        if (!waiting.has_value() || key < *waiting) waiting = key;
        if (on_time(op) && (!waiting_on_time.has_value() || key < *waiting_on_time))
          waiting_on_time = key;
      }
    }
  }

 private:
  bool takes_time(OpId op) const { return schedule_.slots[op].start < schedule_.slots[op].end; }

  // Whether a schedule does not show which of two neighbours ran first.
  bool same_moment(OpId a, OpId b) const {
    const OpSlot &x = schedule_.slots[a], &y = schedule_.slots[b];
    return x.start == y.start && x.end == y.end;
  }

  // Whether it surely became ready in round 0 of its moment: by what took time.
  bool on_time(OpId op) const {
    for (const Edge& edge : graph_.in_edges(op)) {
      if (takes_time(edge.from) || graph_[edge.from].variable) continue;
      const DeviceId here = schedule_.slots[op].device;
      const bool local = !edge.tensor.has_value() || schedule_.slots[edge.from].device == here;
      if (!local && travels(*edge.tensor, here)) continue;
      if (schedule_.slots[edge.from].end == ready_[op]) return false;
    }
    return true;
  }

  // Whether the copy arrives at a later moment than that of its request.
  bool travels(TensorId tensor, DeviceId to) const {
    const auto at = std::lower_bound(
        schedule_.transfers.begin(), schedule_.transfers.end(), std::pair(tensor, to),
        [](const Transfer& transfer, const std::pair<TensorId, DeviceId>& key) {
          return std::pair(transfer.tensor, transfer.to) < key;
        });
    return at != schedule_.transfers.end() && at->tensor == tensor && at->to == to &&
           at->requested < at->end;
  }

  void report_out_of_turn(OpId op, const std::pair<Time, OpId>& waiting) const {
    const OpSlot& slot = schedule_.slots[op];
    report_(say_.op(op) + " on " + say_.device(slot.device) + " starts at " +
            Sentences::time(slot.start) + ", before " + say_.op(waiting.second) +
            ", which could start at " + Sentences::time(waiting.first) +
            " and comes first without an order");
  }

  const OpGraph& graph_;
  const Schedule& schedule_;
  const IdVector<OpId, Time>& ready_;
  const Sentences& say_;
  const std::function<void(const std::string&)>& report_;
};

}  // namespace

void check_order(const OpGraph& graph, const Schedule& schedule, ExecutionOrder order,
                 const DeviceOrder& rows, const IdVector<OpId, Time>& ready, const Sentences& say,
                 const std::function<void(const std::string&)>& report) {
  const OrderChecker checker(graph, schedule, ready, say, report);
  if (order == ExecutionOrder::kProgram) checker.check_program(rows.size());
  if (order == ExecutionOrder::kNone && schedule.asked.empty())
    for (const std::vector<OpId>& row : rows) checker.check_first_come(row);
}

}  // namespace baechi
