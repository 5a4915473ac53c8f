// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/list/favorite_child.h"

#include <algorithm>
#include <utility>

#include "baechi/lp/favorite_matching.h"
#include "baechi/lp/relaxation_solver.h"

namespace baechi {
namespace {

// The link in the middle when the cluster's are sorted by what an average tensor takes.
const Link* median_link(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  const Cluster& cluster = costs.cluster();
  Bytes total;
  for (const TensorId tensor : graph.tensors()) total += graph.size(tensor);
  const auto count = static_cast<std::int64_t>(std::max<std::size_t>(graph.num_tensors(), 1));
  const Bytes average(total.count() / count);

  struct Candidate {
    Time takes;
    std::size_t link;
  };
  std::vector<Candidate> links;
  for (std::size_t link = 0; link < cluster.links().size(); ++link)
    links.push_back({cluster.links()[link].transfer_time(average), link});
  std::stable_sort(links.begin(), links.end(),
                   [](const Candidate& a, const Candidate& b) { return a.takes < b.takes; });
  const std::size_t pairs = cluster.num_devices() * (cluster.num_devices() - 1);
  std::size_t before = 0;  // pairs of links before the candidate
  for (auto first = links.begin(); first != links.end();) {
    auto last = first;
    for (; last != links.end() && last->takes == first->takes; ++last)
      before += cluster.pairs_by_link()[last->link];
    if (before > pairs / 2) return &cluster.links()[first->link];
    first = last;
  }
  return nullptr;
}

FavoriteChildren as_favorites(const CostModel& costs, const lp::FavoriteMatching& matching) {
  FavoriteChildren favorites;
  const auto ids = [&](const std::vector<std::optional<std::uint32_t>>& nodes) {
    IdVector<OpId, std::optional<OpId>> ops(costs.graph().num_ops());
    for (const OpId op : costs.graph().ops())
      if (const auto node = nodes[op.index()]) ops[op] = OpId(*node);
    return ops;
  };
  favorites.child = ids(matching.child);
  favorites.parent = ids(matching.parent);
  favorites.longest_path = Time(matching.longest_path);
  return favorites;
}

// Paper 2.4 and 4.4: the linear relaxation, rounded. Its lower bound holds for every matching.
FavoriteChildren favorites_by_lp(const CostModel& costs, const lp::MatchingPathProblem& problem,
                                 const PlaceOptions& options) {
  const lp::RelaxedSolution relaxed =
      options.favorites == FavoriteMethod::kLpExact
          ? lp::solve_exactly(problem, {.cancel = options.cancel})
          : lp::solve_approximately(problem, {.cancel = options.cancel});
  FavoriteChildren favorites = as_favorites(
      costs, lp::round_to_matching(
                 problem, relaxed.x,
                 {.threshold = options.lp_threshold, .complete = options.complete_matching}));
  favorites.bound = Time(
      std::max(lp::matching_lower_bound(problem), static_cast<std::int64_t>(relaxed.lower_bound)));
  favorites.method = options.favorites;
  return favorites;
}

FavoriteChildren favorites_by_matching(const CostModel& costs,
                                       const lp::MatchingPathProblem& problem,
                                       const PlaceOptions& options) {
  lp::FavoriteMatchingOptions matching;
  matching.cancel = options.cancel;
  FavoriteChildren favorites = as_favorites(costs, lp::find_favorite_matching(problem, matching));
  favorites.bound = Time(lp::matching_lower_bound(problem));
  return favorites;
}

// What rounding the relaxation at 1/2 is proved not to exceed (Paper appendix).
double proved_ratio(double rho) { return (2 + 2 * rho) / (2 + rho); }

}  // namespace

double FavoriteChildren::ratio() const {
  if (bound <= Time(0)) return 1.0;
  return static_cast<double>(longest_path.count()) / static_cast<double>(bound.count());
}

FavoriteProblem favorite_problem(const CostModel& costs) {
  const OpGraph& graph = costs.graph();
  const bool queued = costs.cluster().communication() != CommunicationMode::kParallel;
  FavoriteProblem problem;
  std::optional<std::int64_t> shortest;
  for (const OpId op : graph.ops()) {
    std::optional<Time> fastest;
    for (std::size_t c = 0; c < costs.num_classes(); ++c)
      if (const auto time = costs.class_times(DeviceClassId(c))[op])
        fastest = std::min(fastest.value_or(*time), *time);
    problem.lengths.push_back(fastest.value_or(Time(0)).count());
    if (problem.lengths.back() > 0)
      shortest = std::min(shortest.value_or(problem.lengths.back()), problem.lengths.back());
  }

  const Link* link = median_link(costs);
  std::int64_t longest = 0;
  for (const OpId op : graph.ops()) {
    const std::size_t first = problem.edges.size();
    for (const Edge& edge : graph.in_edges(op)) {  // sorted by parent
      const std::int64_t cost =
          edge.tensor && link ? link->transfer_time(graph.size(*edge.tensor)).count() : 0;
      if (problem.edges.size() > first && problem.edges.back().from == edge.from.value()) {
        std::int64_t& known = problem.edges.back().cost;
        known = queued ? known + cost : std::max(known, cost);
      } else {
        problem.edges.push_back({edge.from.value(), op.value(), cost});
      }
      longest = std::max(longest, problem.edges.back().cost);
    }
  }
  problem.rho = static_cast<double>(longest) / static_cast<double>(shortest.value_or(1));
  return problem;
}

FavoriteChildren find_favorite_children(const CostModel& costs, const PlaceOptions& options) {
  const FavoriteProblem favorite = favorite_problem(costs);
  const lp::MatchingPathProblem problem(favorite.lengths, favorite.edges);
  if (options.favorites != FavoriteMethod::kMatching)
    return favorites_by_lp(costs, problem, options);

  FavoriteChildren favorites = favorites_by_matching(costs, problem, options);
  if (favorites.ratio() <= proved_ratio(favorite.rho)) return favorites;
  PlaceOptions by_lp = options;  // rarely: the relaxation settles what the quick bound cannot
  by_lp.favorites = FavoriteMethod::kLpApprox;
  by_lp.lp_threshold = PlaceOptions().lp_threshold;
  by_lp.complete_matching = true;
  const FavoriteChildren rounded = favorites_by_lp(costs, problem, by_lp);
  favorites.bound = std::max(favorites.bound, rounded.bound);
  if (rounded.longest_path >= favorites.longest_path) return favorites;
  return rounded;
}

}  // namespace baechi
