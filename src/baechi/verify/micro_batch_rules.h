// SPDX-License-Identifier: Apache-2.0
// The verifier's own reading of which operators run once per step, and what is added up over its
// micro-batches. Beyond the paper.
#pragma once

#include <string>
#include <vector>

#include "baechi/base/id.h"
#include "baechi/graph/op_graph.h"

namespace baechi {

class MicroBatchRules {
 public:
  explicit MicroBatchRules(const OpGraph& one);  // which must outlive it

  // Runs once per step; the others once per micro-batch.
  bool of_step(OpId op) const { return of_step_[op]; }
  // A tensor of a micro-batch that an operator of the step reads is added up over all of them.
  bool read_by_step(TensorId tensor) const;
  // Whether its own micro-batch reads it.
  bool read_by_own(TensorId tensor) const;
  // Whether some output of `op` is added up.
  bool accumulates(OpId op) const;
  // Whose copies in the micro-batch before are over when one of `op` starts: who writes what it reads
  // or writes, and itself where it writes a variable or draws random numbers. May name one twice.
  const std::vector<OpId>& behind(OpId op) const { return behind_[op]; }
  // Who stands for all that share a device with it: by a colocation group, or by a variable that
  // micro-batches change, with which all are who write and read it.
  OpId together_with(OpId op) const { return together_[op]; }
  // Stands between an operator's name and its micro-batch: so many '@' that names stay apart.
  const std::string& mark() const { return mark_; }

 private:
  bool instant(OpId op) const;
  void find_together();
  void find_order();
  bool is_variable(OpId op) const;
  bool is_update(OpId op) const;

  const OpGraph& one_;
  bool names_forward_ = false;  // some gradient names its forward operator
  IdVector<OpId, bool> of_step_;
  IdVector<OpId, bool> update_;
  IdVector<OpId, bool> writes_;
  IdVector<OpId, OpId> together_;
  IdVector<OpId, std::vector<OpId>> behind_;
  std::string mark_;
};

}  // namespace baechi
