// SPDX-License-Identifier: Apache-2.0
// What a picture of a plan shows: every operator of a small graph, parts of the model of a large
// one, and what flows between them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/plan.h"

namespace baechi {

struct PictureNode {
  std::string name;  // of the operator, or what the names of a part's operators begin with
  std::string kind;  // empty for a part
  DeviceId device{0};
  std::size_t operators = 0;
  Time time;                     // they compute, in all
  Time start;                    // of the first one
  std::optional<GroupId> group;  // an operator's, when it has other members
};

struct PictureEdge {
  std::size_t from, to;  // nodes
  Bytes bytes;           // every tensor once
  bool control;          // nothing but order
};

struct PlanPicture {
  std::vector<PictureNode> nodes;  // by device, then by name or operator
  std::vector<PictureEdge> edges;  // by their ends; one for each pair of nodes
};

// Up to `max_nodes` operators: each of them. More: one node for all operators of a device whose
// names begin alike, with as many parts of the names as `max_nodes` has room for.
PlanPicture plan_picture(const OpGraph& graph, const Plan& plan, std::size_t max_nodes);

// The light fill of a device.
std::string_view device_fill(DeviceId device);

}  // namespace baechi
