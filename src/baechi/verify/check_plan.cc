// SPDX-License-Identifier: Apache-2.0
#include "baechi/verify/check_plan.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/verify/check_micro_batches.h"
#include "baechi/verify/check_recomputation.h"
#include "baechi/verify/check_replicas.h"
#include "baechi/verify/check_residency.h"
#include "baechi/verify/check_variables.h"
#include "baechi/verify/sentences.h"

namespace baechi {
namespace {

// What a device did, from the schedule and the graph alone.
struct DeviceWork {
  Time busy;
  Bytes sent, received;
  std::optional<OpId> at_peak;
};

class Claims {
 public:
  Claims(const OpGraph& graph, const Cluster& cluster, const Plan& plan)
      : graph_(graph), plan_(plan), say_(graph, cluster) {}

  std::vector<std::string> check(const IdVector<DeviceId, HeldMost>& peaks) {
    const IdVector<DeviceId, DeviceWork> work = device_work(peaks);
    for (const DeviceId device : work.keys()) check_device(device, work[device], peaks[device]);
    check_method();
    for (const NamedBound& bound : plan_.bounds)
      if (bound.value > plan_.makespan())
        violations_.push_back("the " + bound.name + " bound is above the step time");
    return std::move(violations_);
  }

 private:
  // At the peak: what runs then, else the first that takes no time then.
  IdVector<DeviceId, DeviceWork> device_work(const IdVector<DeviceId, HeldMost>& peaks) const {
    IdVector<DeviceId, DeviceWork> work(peaks.size());
    IdVector<DeviceId, std::optional<OpId>> instant(peaks.size());
    for (const OpId op : plan_.schedule.slots.keys()) {
      const OpSlot& slot = plan_.schedule.slots[op];
      const Time peak = peaks[slot.device].at;
      work[slot.device].busy += slot.end - slot.start;
      if (slot.start <= peak && peak < slot.end) work[slot.device].at_peak = op;
      if (slot.start == peak && peak == slot.end && !instant[slot.device].has_value() &&
          !graph_[op].variable)
        instant[slot.device] = op;
    }
    for (const DeviceId device : work.keys())
      if (!work[device].at_peak.has_value()) work[device].at_peak = instant[device];
    for (const Transfer& transfer : plan_.schedule.transfers) {
      work[transfer.from].sent += graph_.size(transfer.tensor);
      work[transfer.to].received += graph_.size(transfer.tensor);
    }
    return work;
  }

  void compare(DeviceId device, const std::string& what, const std::string& found,
               const std::string& claimed) {
    if (found != claimed)
      violations_.push_back("device " + say_.device(device) + " " + what + found + ", not " +
                            claimed + " as the plan claims");
  }

  void check_device(DeviceId device, const DeviceWork& work, const HeldMost& most) {
    const PlanDevice& claim = plan_.devices[device];
    const auto name = [&](std::optional<OpId> op) {
      return op.has_value() ? say_.op(*op) : std::string("no operator");
    };
    compare(device, "peaks at ", Sentences::bytes(most.bytes), Sentences::bytes(claim.peak));
    const Bytes capacity = plan_.cluster.devices[device.index()].capacity;
    if (claim.run_peak.has_value() && *claim.run_peak > capacity)
      violations_.push_back("device " + say_.device(device) + " will hold " +
                            Sentences::bytes(*claim.run_peak) + " when it runs, and has " +
                            Sentences::bytes(capacity));
    compare(device, "peaks first at ", Sentences::time(most.at), Sentences::time(claim.peak_at));
    compare(device, "peaks with ", name(work.at_peak), name(claim.peak_op));
    compare(device, "is busy for ", Sentences::time(work.busy), Sentences::time(claim.busy));
    compare(device, "sends ", Sentences::bytes(work.sent), Sentences::bytes(claim.sent));
    compare(device, "receives ", Sentences::bytes(work.received), Sentences::bytes(claim.received));
  }

  void check_method() {
    for (const MethodOutcome& row : plan_.methods)
      if (row.method == plan_.method && row.makespan.has_value() &&
          *row.makespan != plan_.makespan())
        violations_.push_back("the row of method " + in_quotes(row.method) + " claims a step of " +
                              Sentences::time(*row.makespan) + ", the schedule takes " +
                              Sentences::time(plan_.makespan()));
  }

  const OpGraph& graph_;
  const Plan& plan_;
  const Sentences say_;
  std::vector<std::string> violations_;
};

}  // namespace

std::vector<std::string> check_plan(const StepGraph& step, const Plan& plan,
                                    const CheckOptions& options) {
  const OpGraph& graph = step.graph();
  const Cluster cluster(plan.cluster);
  CheckOptions as_executed = options;
  as_executed.order = plan.order;
  std::vector<std::string> violations = check_schedule(graph, cluster, plan.schedule, as_executed);
  if (violations.empty()) violations = check_carried(step, cluster, plan.schedule);
  if (violations.empty() && plan.replicas.apart()) violations = check_apart(step, plan);
  if (!violations.empty()) return violations;  // peaks of a wrong schedule mean nothing
  if (plan.devices.size() != cluster.num_devices())
    return {"the plan tells of " + std::to_string(plan.devices.size()) +
            " devices, its cluster has " + std::to_string(cluster.num_devices())};
  return Claims(graph, cluster, plan).check(checked_peaks(graph, cluster, plan.schedule));
}

// One graph is made of the other, from that which was given to the step: second runs first, then
// replicas, then micro-batches, then fetches.
std::vector<std::string> check_step(const OpGraph& original, const OpGraph& step,
                                    const Plan& plan) {
  const bool fetches = !plan.residency.empty(), several = plan.micro_batches > 1;
  const bool copies = plan.replicas.any();
  std::optional<OpGraph> again, all, unrolled;
  const OpGraph* one = &original;
  std::vector<std::string> violations;
  if (!plan.recomputed.empty() || !(copies || several || fetches)) {
    const bool last = !(copies || several || fetches);
    if (!last) again = recomputing(*one, plan.recomputed);
    violations = check_recomputation(*one, last ? step : *again, plan.recomputed);
    if (last || !violations.empty()) return violations;
    one = &*again;
  }
  if (copies) {
    const bool last = !(several || fetches);
    if (!last) all = replicated(*one, plan.replicas);
    violations = check_replicas(*one, last ? step : *all, plan.replicas);
    if (last || !violations.empty()) return violations;
    one = &*all;
  }
  if (!several) return check_residency(*one, step, plan.cluster, plan.residency);
  if (!fetches) return check_micro_batches(*one, step, plan.micro_batches);
  unrolled = unroll(*one, plan.micro_batches).graph;
  violations = check_micro_batches(*one, *unrolled, plan.micro_batches);
  if (!violations.empty()) return violations;
  return check_residency(*unrolled, step, plan.cluster, plan.residency, one);
}

std::vector<std::string> check_plan(const OpGraph& original, const StepGraph& step,
                                    const Plan& plan) {
  std::vector<std::string> violations = check_step(original, step.graph(), plan);
  return violations.empty() ? check_plan(step, plan) : violations;
}

std::string why_wrong(const OpGraph* original, const StepGraph& step, const Plan& plan,
                      const CheckOptions& options) {
  std::vector<std::string> violations;
  if (original != nullptr) violations = check_step(*original, step.graph(), plan);
  if (violations.empty()) violations = check_plan(step, plan, options);
  if (violations.empty()) return {};
  std::string words = "the plan is wrong: " + violations.front();
  if (violations.size() > 1)
    words += " (and " + std::to_string(violations.size() - 1) + " more: verify lists them)";
  return words;
}

void require_right(const OpGraph* original, const StepGraph& step, const Plan& plan,
                   const std::string& place, const CheckOptions& options) {
  const std::string words = why_wrong(original, step, plan, options);
  if (!words.empty()) throw InputError(place, words);
}

}  // namespace baechi
