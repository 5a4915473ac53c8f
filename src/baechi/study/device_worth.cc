// SPDX-License-Identifier: Apache-2.0
#include "baechi/study/device_worth.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/study/cluster_edits.h"
#include "baechi/study/unless_cancelled.h"
#include "baechi/study/what_if.h"

namespace baechi {
namespace {

constexpr std::int64_t kAlike = 100;  // a step that is longer by less than one part in so many

class Worth {
 public:
  Worth(const GraphSizes& sizes, const StepRequest& request,
        const std::function<void(const std::string&)>& told)
      : sizes_(sizes), request_(request), told_(told) {
    request_.search.bounds = false;
  }

  DevicesWorth of(const ClusterSpec& cluster) {
    DevicesWorth worth;
    ScenarioRun all = run("all devices", cluster, nullptr);
    worth.step = all.outcome.makespan;
    worth.reason = all.outcome.reason;
    if (!all.plan.has_value()) return worth;

    std::vector<ScenarioRun> without = without_each(cluster, *all.plan);
    const ScenarioRun* const best = shortest(without);
    if (best != nullptr && *best->outcome.makespan < *worth.step) {
      std::optional<ScenarioRun> again = unless_cancelled(/*has_answer=*/true, [&] {
        return run("all devices, from a plan on fewer", cluster, &*best->plan);
      });
      if (again.has_value()) all = *std::move(again);
    }
    worth.step = all.outcome.makespan;
    worth.micro_batches = all.outcome.micro_batches;
    const std::size_t tried = cluster.devices.size() > 1 ? without.size() : 1;
    for (std::size_t i = 0; i < tried; ++i) {
      DeviceWorth device{.device = cluster.devices[i].name, .reason = {}};
      device.capacity = cluster.devices[i].capacity;
      device.peak = all.plan->devices[DeviceId(i)].peak;
      if (cluster.devices.size() > 1) {
        device.step_without = without[i].outcome.makespan;
        device.reason = without[i].outcome.reason;
      }
      worth.devices.push_back(std::move(device));
    }
    take_enough(cluster, std::move(without), worth);
    return worth;
  }

 private:
  ScenarioRun run(const std::string& name, const ClusterSpec& cluster, const Plan* present) {
    if (told_) told_(name);
    return run_scenario(sizes_, {name, cluster}, request_, present);
  }

  // Empty for a cluster of one; those so far when it is stopped.
  std::vector<ScenarioRun> without_each(const ClusterSpec& cluster, const Plan& present) {
    std::vector<ScenarioRun> runs;
    if (cluster.devices.size() == 1) return runs;
    for (std::size_t i = 0; i < cluster.devices.size(); ++i) {
      std::optional<ScenarioRun> one = unless_cancelled(/*has_answer=*/true, [&] {
        return run("without " + cluster.devices[i].name, without_device(cluster, i), &present);
      });
      if (!one.has_value()) break;
      runs.push_back(*std::move(one));
    }
    return runs;
  }

  // The last of equal ones: devices that are listed first stay.
  static const ScenarioRun* shortest(const std::vector<ScenarioRun>& runs) {
    const ScenarioRun* best = nullptr;
    for (const ScenarioRun& run : runs)
      if (run.plan.has_value() &&
          (best == nullptr || *run.outcome.makespan <= *best->outcome.makespan))
        best = &run;
    return best;
  }

  void take_enough(const ClusterSpec& cluster, std::vector<ScenarioRun> without,
                   DevicesWorth& worth) {
    const Time most = *worth.step + Time(worth.step->count() / kAlike);
    ClusterSpec left = cluster;
    worth.step_of_enough = *worth.step;
    for (;;) {
      const ScenarioRun* const best = shortest(without);
      if (best == nullptr || *best->outcome.makespan > most) break;
      left = best->plan->cluster;
      worth.step_of_enough = *best->outcome.makespan;
      const Plan present = *best->plan;
      without = without_each(left, present);
    }
    for (const Device& device : left.devices) worth.enough.push_back(device.name);
  }

  const GraphSizes sizes_;
  StepRequest request_;
  const std::function<void(const std::string&)>& told_;
};

}  // namespace

DevicesWorth devices_worth(const GraphSizes& sizes, const ClusterSpec& cluster,
                           const StepRequest& request,
                           const std::function<void(const std::string&)>& told) {
  if (cluster.devices.size() > kMostDevicesOfWorth)
    throw InputError("what each device buys is asked of at most " +
                     std::to_string(kMostDevicesOfWorth) + " devices, not of " +
                     std::to_string(cluster.devices.size()));
  return Worth(sizes, request, told).of(cluster);
}

}  // namespace baechi
