// SPDX-License-Identifier: Apache-2.0
// The verifier's words for what it found. Built only when a rule is broken.
#pragma once

#include <string>

#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/cluster/cluster.h"
#include "baechi/graph/op_graph.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

class Sentences {
 public:
  Sentences(const OpGraph& graph, const Cluster& cluster) : graph_(&graph), cluster_(&cluster) {}

  std::string name(OpId op) const;            // 'a'
  std::string op(OpId op) const;              // operator 'a'
  std::string device(DeviceId device) const;  // 'gpu:0'
  std::string tensor(TensorId tensor) const;  // the output of 'a'; output 1 of 'a'
  // the transfer of the output of 'a' from 'gpu:0' to 'gpu:1'
  std::string transfer(const Transfer& transfer) const;
  static std::string time(Time time);     // 12 ns
  static std::string bytes(Bytes bytes);  // 12 bytes

 private:
  const OpGraph* graph_;
  const Cluster* cluster_;
};

}  // namespace baechi
