// SPDX-License-Identifier: Apache-2.0
#include "baechi/verify/check_variables.h"

#include <cstdint>

namespace baechi {
namespace {

class Carried {
 public:
  Carried(const StepGraph& step, const Cluster& cluster, const Schedule& schedule)
      : step_(step), graph_(step.graph()), schedule_(schedule), say_(graph_, cluster) {}

  std::vector<std::string> check() {
    for (const Write& write : step_.writes()) {
      for (std::uint32_t m = 0; m < step_.micro_batches(); ++m)
        share_device(write.variable, step_.copy(write.op, m), "writes");
      in_turn(write.op);
      for (const Edge& edge : graph_.out_edges(write.variable))
        if (edge.tensor.has_value()) check_reader(write, edge.to);
    }
    for (std::size_t i = 0; i < step_.ops_of_one(); ++i)
      if (graph_[OpId(i)].random && per_micro_batch(OpId(i))) in_turn(OpId(i));
    return std::move(faults_);
  }

 private:
  const OpSlot& slot(OpId op) const { return schedule_.slots[op]; }
  bool per_micro_batch(OpId op) const { return step_.micro_batch(op).has_value(); }

  void share_device(OpId variable, OpId op, const char* does) {
    if (slot(op).device != slot(variable).device)
      faults_.push_back(say_.op(op) + " " + does + " " + say_.name(variable) +
                        ", which every micro-batch changes, but runs on " +
                        say_.device(slot(op).device) + " and not on " +
                        say_.device(slot(variable).device));
  }

  void in_turn(OpId first) {
    for (std::uint32_t m = 1; m < step_.micro_batches(); ++m)
      comes_before(step_.copy(first, m - 1), step_.copy(first, m));
  }

  // Of operators without length the schedule tells no more than that.
  void comes_before(OpId before, OpId after) {
    if (slot(after).start < slot(before).end)
      faults_.push_back(say_.op(after) + " starts at " + Sentences::time(slot(after).start) +
                        ", before " + say_.op(before) + " has finished at " +
                        Sentences::time(slot(before).end) +
                        ": micro-batches come in their order there");
  }

  // It finds what the micro-batch before has left, or in the first one what the step began with.
  void check_reader(const Write& write, OpId reader) {
    share_device(write.variable, reader, "reads");
    const std::uint32_t m = step_.micro_batch(reader).value_or(0);
    const OpId writer = step_.copy(write.op, m);
    if (writer != reader) comes_before(reader, writer);
    if (m > 0) comes_before(step_.copy(write.op, m - 1), reader);
  }

  const StepGraph& step_;
  const OpGraph& graph_;
  const Schedule& schedule_;
  const Sentences say_;
  std::vector<std::string> faults_;
};

}  // namespace

void check_variables(const OpGraph& graph, const Schedule& schedule, const Sentences& say,
                     const std::function<void(const std::string&)>& report) {
  for (const OpId op : graph.ops()) {
    const OpSlot& slot = schedule.slots[op];
    if (graph[op].variable && (slot.start > Time(0) || slot.end > Time(0)))
      report("variable " + say.name(op) + " on " + say.device(slot.device) + " is there from " +
             Sentences::time(slot.start) + " on, not from the start of the step");
  }
}

std::vector<std::string> check_carried(const StepGraph& step, const Cluster& cluster,
                                       const Schedule& schedule) {
  return Carried(step, cluster, schedule).check();
}

}  // namespace baechi
