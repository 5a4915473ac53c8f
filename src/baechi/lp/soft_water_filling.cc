// SPDX-License-Identifier: Apache-2.0
// The matching-path relaxation to a certified gap: sweeps of soft water-filling while it cools.
#include "baechi/lp/soft_water_filling.h"

#include <algorithm>
#include <limits>

#include "baechi/lp/soft_sweep.h"

namespace baechi::lp {
namespace {

// The temperature mu, steered by what it blurs: soft length - mean length = mu times the entropy of
// the path distribution. It starts at a fifth of the path, hot enough that knobs which compete
// along one path settle in few sweeps (once cold they drift at a speed of mu per sweep), and falls
// whenever the gap left is mostly blur.
class Temperature {
 public:
  // The first guess supposes an entropy of 50; the first sweep corrects it.
  explicit Temperature(double length) : mu_(kStart * length / 50) {}

  double mu() const { return mu_; }

  void update(double length, double gap, double blur) {
    if (!calibrated_ && blur > 0) {
      mu_ *= std::clamp(kStart * length / blur, 0.05, 20.0);
      calibrated_ = true;
    } else if (gap < kMostlyBlur * blur) {
      mu_ *= kCooling;
    }
  }

 private:
  static constexpr double kStart = 0.2, kMostlyBlur = 1.15, kCooling = 0.75;
  double mu_;
  bool calibrated_ = false;
};

}  // namespace

SoftSolution fill_softly(const ReducedGraph& graph, const SoftOptions& options) {
  SoftSolution best;
  best.y.assign(graph.num_edges(), 0);
  best.lower_bound = best.upper_bound = graph.lower_bound;
  best.converged = graph.num_edges() == 0;
  if (best.converged) return best;
  best.upper_bound = std::numeric_limits<double>::infinity();

  SoftSweep forward(graph, SoftSweep::Direction::kForward);
  SoftSweep backward(graph, SoftSweep::Direction::kBackward);
  SoftSweep::pair(forward, backward);
  Temperature temperature(graph.lower_bound);
  backward.run(temperature.mu(), forward);  // the in-groups are still wishful: no upper bound yet

  while (!best.converged && best.sweeps < options.max_sweeps) {
    throw_if_cancelled(options.cancel);
    const bool ahead = best.sweeps++ % 2 == 0;
    SoftSweep& sweep = ahead ? forward : backward;
    sweep.run(temperature.mu(), ahead ? backward : forward);

    const SoftSweep::Flow flow = sweep.flow();
    best.lower_bound = std::max(best.lower_bound, flow.lower_bound);
    const double length = std::max(graph.lower_bound, sweep.hard_length());
    if (length < best.upper_bound) {
      best.upper_bound = length;
      best.y = sweep.knobs(graph);
    }
    best.converged = best.upper_bound <= (1 + options.gap) * best.lower_bound;
    if (ahead && best.sweeps > 1) continue;
    temperature.update(length, sweep.hard_length() - flow.lower_bound,
                       sweep.soft_length() - flow.mean_length);
  }
  return best;
}

}  // namespace baechi::lp
