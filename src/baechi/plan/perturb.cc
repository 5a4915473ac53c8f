// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/perturb.h"

#include <algorithm>
#include <string>

#include "baechi/base/error.h"
#include "baechi/base/number_text.h"
#include "baechi/base/parallel.h"
#include "baechi/base/random.h"
#include "baechi/graph/recosted.h"
#include "baechi/simulate/simulator.h"

namespace baechi {
namespace {

constexpr std::int64_t kMillion = 1'000'000;

}  // namespace

OpGraph perturbed(const OpGraph& graph, double fraction, std::uint64_t seed) {
  if (!(fraction >= 0 && fraction <= 1))
    throw InputError("costs can be off by a part from 0 to 1, not by " + number_text(fraction));
  const auto most = static_cast<std::int64_t>(fraction * static_cast<double>(kMillion));
  Random random(Random(seed).next());  // neighbouring seeds start far apart
  IdVector<OpId, std::int64_t> times(graph.num_ops());
  IdVector<TensorId, std::int64_t> sizes(graph.num_tensors());
  for (std::int64_t& factor : times) factor = kMillion + random.between(-most, most);
  for (std::int64_t& factor : sizes) factor = kMillion + random.between(-most, most);
  return recosted(graph,
                  {.time =
                       [&](OpId op, Time time) {
                         return Time(scale_up(time.count(), times[op], kMillion, "compute time"));
                       },
                   .output =
                       [&](TensorId tensor, Bytes size) {
                         return Bytes(scale_up(size.count(), sizes[tensor], kMillion, "memory"));
                       }});
}

std::vector<Time> worst_steps(const CostModel& costs, const std::vector<const PlacedGraph*>& placed,
                              const Perturbations& perturbations) {
  std::vector<std::vector<Time>> steps(perturbations.samples);
  parallel_for(perturbations.samples, perturbations.threads, [&](std::size_t sample) {
    throw_if_cancelled(perturbations.cancel);
    const OpGraph graph =
        perturbed(costs.graph(), perturbations.fraction, perturbations.seed + sample);
    const CostModel other(graph, costs.cluster());
    Simulator simulator(other);
    for (const PlacedGraph* candidate : placed)
      steps[sample].push_back(simulator.makespan(*candidate));
  });
  std::vector<Time> worst(placed.size());
  for (const std::vector<Time>& sample : steps)
    for (std::size_t i = 0; i < placed.size(); ++i) worst[i] = std::max(worst[i], sample[i]);
  return worst;
}

}  // namespace baechi
