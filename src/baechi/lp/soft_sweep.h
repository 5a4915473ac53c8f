// SPDX-License-Identifier: Apache-2.0
// One direction of soft water-filling (see soft_water_filling.h).
#pragma once

#include <cstdint>
#include <vector>

#include "baechi/lp/reduced_graph.h"

namespace baechi::lp {

// A reduced graph as seen by a sweep in one direction. The sweep back is the same code on the
// reversed graph: there node v is numbered num_nodes - 1 - v, so that every arc still leads from a
// lower node (its neighbor) to a higher one. An arc is one copy of an edge, so a knob has up to
// two.
class SoftSweep {
 public:
  enum class Direction { kForward, kBackward };
  SoftSweep(const ReducedGraph& graph, Direction direction);

  // Makes the two directions tell each other what their arcs pay.
  static void pair(SoftSweep& forward, SoftSweep& backward);

  // One sweep at temperature mu: refills this side's groups and updates soft and hard potentials.
  void run(double mu, SoftSweep& other);

  // The length of the softened and of the true longest path at the current y.
  double soft_length() const { return soft_.back(); }
  double hard_length() const { return hard_.back(); }

  // The unit flow of the path probabilities: its mean length at the current y, and the least mean
  // length that any y could give it, which is a lower bound on the relaxation.
  struct Flow {
    double mean_length = 0, lower_bound = 0;
  };
  Flow flow();

  // y by edge: the smaller one of an edge's two copies.
  std::vector<double> knobs(const ReducedGraph& graph) const;

 private:
  struct Group {
    std::uint32_t begin, end;
  };
  void fill(Group group, double mu, SoftSweep& other);

  // By node.
  std::vector<std::uint32_t> begin_, group_begin_;  // row starts into arcs and groups_
  std::vector<double> soft_, hard_, node_flow_;
  std::vector<Group> groups_;

  std::vector<double> price_;  // by group of either side: the most its unit can save of the flow

  // By arc, sorted by node; within a row, this side's groups come first.
  std::vector<std::uint32_t> neighbor_, edge_, group_, twin_;
  std::vector<double> length_, cost_, inverse_cost_, log_cost_;
  std::vector<double> pay_;          // length - cost * y
  std::vector<double> probability_;  // of arriving at the node by this arc
  std::vector<double> level_;        // scratch
};

}  // namespace baechi::lp
