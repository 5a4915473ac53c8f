// SPDX-License-Identifier: Apache-2.0
// The Execution Simulator for searches written in Python: thousands of placements of one graph.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/cost/cost_model.h"
#include "baechi/simulate/simulator.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace baechi::python {
namespace {

using Devices = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::device::cpu>;

class SimulatorHandle {
 public:
  SimulatorHandle(const GraphHandle& graph, const ClusterHandle& cluster)
      : graph_(graph.graph),
        cluster_(cluster.cluster),
        costs_(*graph_, *cluster_),
        simulator_(costs_) {}

  // The step time, and the peak of every device.
  std::pair<std::int64_t, std::vector<std::int64_t>> run(const Devices& devices) {
    PlacedGraph placed{placement_of(devices), std::nullopt};
    const nb::gil_scoped_release unlocked;
    const std::scoped_lock lock(mutex_);  // a simulator replays one placement at a time
    const StepSummary& step = simulator_.run(placed);
    std::vector<std::int64_t> peaks;
    peaks.reserve(step.peaks.size());
    for (const Bytes peak : step.peaks) peaks.push_back(peak.count());
    return {step.makespan.count(), std::move(peaks)};
  }

 private:
  Placement placement_of(const Devices& devices) const {
    const std::size_t count = graph_->num_ops();
    if (devices.shape(0) != count)
      throw InputError("devices has " + std::to_string(devices.shape(0)) + " entries, expected " +
                       std::to_string(count));
    Placement placement;
    placement.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t device = devices(i);
      if (device < 0 || static_cast<std::size_t>(device) >= cluster_->num_devices())
        throw InputError("devices[" + std::to_string(i) + "] is " + std::to_string(device) +
                         ", expected 0 to " + std::to_string(cluster_->num_devices()) +
                         " (exclusive)");
      placement.push_back(DeviceId(static_cast<std::uint32_t>(device)));
    }
    return placement;
  }

  std::shared_ptr<const OpGraph> graph_;
  std::shared_ptr<const Cluster> cluster_;
  CostModel costs_;
  Simulator simulator_;
  std::mutex mutex_;
};

}  // namespace

void bind_simulator(nb::module_& m) {
  nb::class_<SimulatorHandle>(
      m, "Simulator", nb::type_slots(kLooksUpInit),
      "Replays many placements of one graph: what a search of your own needs.")
      .def(nb::init<const GraphHandle&, const ClusterHandle&>(), "graph"_a, "cluster"_a)
      .def("run", &SimulatorHandle::run, "devices"_a.noconvert(),
           "The step time in nanoseconds and the bytes that each device holds at its peak, for an "
           "int64 array of the device index of every operator. Each device runs what becomes ready "
           "first; capacities are not looked at.");
}

}  // namespace baechi::python
