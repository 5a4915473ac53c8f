// SPDX-License-Identifier: Apache-2.0
#include "baechi/optimize/optimize.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/optimize/contraction.h"
#include "baechi/optimize/pass_clock.h"

namespace baechi {
namespace {

// Sets of two or more operators with equal labels.
std::size_t count_groups(const OpLabels& label) {
  std::vector<std::uint32_t> members(label.size());
  std::size_t groups = 0;
  for (const std::uint32_t l : label) groups += ++members[l] == 2;
  return groups;
}

// The passes that only decide who belongs together; one contraction carries all of them out.
Optimized group_and_fuse(const CostModel& costs, const OptimizeOptions& options) {
  const OpGraph& graph = costs.graph();
  const OptimizeLevel level = options.level;
  std::vector<PassStatistics> passes;
  PassStatistics::Size size = size_of(graph);
  const auto record = [&](const PassClock& clock, const OpLabels& group, std::string note) {
    throw_if_cancelled(options.cancel);
    size.groups = count_groups(group);
    passes.push_back(clock.stop(size, std::move(note)));
  };

  PassClock clock("colocate", size);
  OpLabels group = colocation_labels(graph, options.colocation);
  std::optional<PlacedGraph> home;
  if (level >= OptimizeLevel::kColocate) record(clock, group, describe(options.colocation));
  if (level >= OptimizeLevel::kCoplace) {
    clock = PassClock("coplace", size);
    Coplacement found = find_coplacements(costs, group, options.coplacement);
    group = std::move(found.group);
    home = std::move(found.home);
    record(clock, group, describe(found));
  }
  OpLabels cluster = each_alone(graph);
  std::string note;
  if (level == OptimizeLevel::kFuse || level == OptimizeLevel::kAll) {
    clock = PassClock("fuse", size);
    Fusion fusion = find_fusions(costs, group, options.fusion);
    cluster = std::move(fusion.cluster);
    note = describe(fusion);
    passes.emplace_back();
  } else if (!passes.empty()) {
    note = passes.back().note;
  }
  throw_if_cancelled(options.cancel);
  Contracted small = contract(graph, cluster, group);
  if (!passes.empty())  // the last pass carries the contraction's time
    passes.back() = clock.stop(small.graph, std::move(note));
  return {std::move(small.graph), std::move(small.expansion), std::move(passes), std::move(home)};
}

}  // namespace

std::span<const OptimizeLevelName> optimize_levels() {
  static constexpr std::array<OptimizeLevelName, 6> kLevels{{
      {OptimizeLevel::kNone, "none", "place the graph as it is"},
      {OptimizeLevel::kColocate, "colocate", "merge and tidy colocation groups"},
      {OptimizeLevel::kCoplace, "coplace", "colocate, and group operators that belong together"},
      {OptimizeLevel::kFuse, "fuse", "coplace, and fuse neighbours within a group"},
      {OptimizeLevel::kForward, "forward", "coplace, and let backward operators follow"},
      {OptimizeLevel::kAll, "all", "coplace, fuse, and let backward operators follow"},
  }};
  return kLevels;
}

Optimized optimize(const CostModel& costs, const OptimizeOptions& options) {
  Optimized done = group_and_fuse(costs, options);
  throw_if_cancelled(options.cancel);
  if (options.level < OptimizeLevel::kForward) return done;
  const PassClock clock("forward", done.graph);
  ForwardOnly forward =
      find_forward_only(CostModel(done.graph, costs.cluster()), options.forward_only, &costs);
  if (forward.small.has_value()) {
    done.graph = std::move(forward.small->graph);
    done.expansion = forward.small->expansion.after(done.expansion);
  }
  done.passes.push_back(clock.stop(done.graph, std::move(forward.note)));
  return done;
}

}  // namespace baechi
