// SPDX-License-Identifier: Apache-2.0
// Co-placement: operators that we prefer on one device, though nothing forces them there
// (Paper 3.1.2). Cuts go beyond the paper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "baechi/cost/cost_model.h"
#include "baechi/optimize/contraction.h"
#include "baechi/optimize/cut_partition.h"
#include "baechi/optimize/optimized.h"
#include "baechi/schedule/schedule.h"

namespace baechi {

enum class CoplacementRule : std::uint8_t {
  kNeighbours,  // the paper's, if not capped: with the only consumer, and with the forward operator
  kCut,   // beyond the paper: one group per device, cut where little has to be sent; if no such
          // cut fits into memory, kNeighbours
  kNone,  // colocation groups alone
};

struct CoplacementRuleName {
  CoplacementRule rule;
  std::string_view name;  // on the command line and in Python
  std::string_view summary;
};
std::span<const CoplacementRuleName> coplacement_rules();

struct CoplacementOptions {
  CoplacementRule rule = CoplacementRule::kCut;
  CutOptions cut = {};
  bool single_consumer = true;      // (i): with the one operator that reads all it produces
  bool backward_to_forward = true;  // (ii): with the operator whose backward it is
  // If so, no union makes a group take more than this part of the largest device's memory, or of an
  // even share of all work: groups beyond that leave no choice of devices. The paper has no caps.
  bool capped = true;
  double memory_share = 0.5;
  double work_share = 0.3;
  // With kNeighbours, where names tell of a recurrent model (cell_of): each cell and attention is
  // a group, with its weights and its backward, and there are no others. So the paper has GNMT.
  bool cells_alone = false;
};

// The recurrent cell or the attention that an operator's name places it in, as the generator names
// them: enc/cell_2 of enc/cell_2/t7/MatMul and of enc/cell_2/kernel; empty otherwise.
std::string_view cell_of(std::string_view name);

struct Coplacement {
  OpLabels group;                        // equal for operators that are to share a device
  std::optional<Time> cut;               // the step time that the cut promises, when there is one
  std::optional<PlacedGraph> home = {};  // then: the devices it was cut for, and its order
  std::size_t by_consumer = 0, by_forward = 0, by_cell = 0;  // unions
  std::size_t capped = 0;  // unions that a cap or a device kind forbade
};

// Joins the sets of operators with equal `group` labels, and takes none apart.
Coplacement find_coplacements(const CostModel& costs, const OpLabels& group,
                              const CoplacementOptions& options);
std::string describe(const Coplacement& coplacement);

// Starts from the graph's colocation groups.
Optimized coplace(const CostModel& costs, const CoplacementOptions& options = {});

}  // namespace baechi
