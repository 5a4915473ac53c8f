// SPDX-License-Identifier: Apache-2.0
// Whether hosts ask for operators and transfers one after the other, in the time that asking takes:
// with code of its own. Beyond the paper.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/schedule.h"
#include "baechi/verify/sentences.h"

namespace baechi {

// Tells `report` where a schedule has moments of asking and its cluster no host time, or the other
// way round; of a host that asks for two things at once or waits between two; and of an operator that
// is asked for before one that its device runs first, or that it waits for. Requires slots within range.
void check_host(const OpGraph& graph, const Cluster& cluster, const Schedule& schedule,
                const Sentences& say, const std::function<void(const std::string&)>& report);

// Of an executor that asks in the order of its program.
void check_asked_in_program_order(const OpGraph& graph, const Cluster& cluster,
                                  const Schedule& schedule, const Sentences& say,
                                  const std::function<void(const std::string&)>& report);

// When each of the schedule's transfers has been asked for: behind their producer, one by one.
std::vector<Time> asked_transfers(const Cluster& cluster, const OpGraph& graph,
                                  const Schedule& schedule);

}  // namespace baechi
