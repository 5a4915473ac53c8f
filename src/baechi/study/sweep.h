// SPDX-License-Identifier: Apache-2.0
// A grid of plans: memory per device x number of devices x method. Beyond the paper.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/plan/request/request.h"
#include "baechi/plan/steps/sizes.h"
#include "baechi/study/cluster_edits.h"
#include "baechi/study/what_if.h"

namespace baechi {

struct Grid {
  std::vector<Factor> memory{kFullSpeed};  // of each device's own
  std::vector<std::size_t> devices;        // empty: the cluster's own
  std::vector<std::string> methods;        // empty: the request's
};

struct GridPoint {
  Factor memory = kFullSpeed;
  std::size_t devices = 0;
  std::string method;
  ScenarioOutcome outcome;
};

// Throws InputError, at `name`, for a method of the grid that is none or cannot place such steps.
void check_methods(const GraphSizes& sizes, const Grid& grid, const StepRequest& request,
                   const std::string& name);

// Row by row: by devices, then memory, then method. `told`, if given, hears of each. Stopped as
// run_scenarios() is.
std::vector<GridPoint> sweep(const GraphSizes& sizes, const ClusterSpec& cluster, const Grid& grid,
                             const StepRequest& request,
                             const std::function<void(const GridPoint&)>& told = {});

}  // namespace baechi
