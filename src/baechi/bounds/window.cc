// SPDX-License-Identifier: Apache-2.0
#include "baechi/bounds/window.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/base/wide.h"

namespace baechi::bounds {
namespace {

// The sums of the `count` smallest values from each position of an ascending list on.
std::vector<Ns> sums_of_next(const std::vector<Ns>& ascending, std::size_t count) {
  std::vector<Ns> sums(ascending.size(), 0);
  Ns sum = 0;
  for (std::size_t i = ascending.size(); i-- > 0;) {
    sum += ascending[i];
    if (i + count < ascending.size()) sum -= ascending[i + count];
    sums[i] = sum;
  }
  return sums;
}

struct Job {
  Ns b, q;
  std::int64_t work;  // weighted, so that a device of weight 1 would take that long
};

// Sweeps the sets {b >= r, q >= s} for some r and all s. Sum is a type that holds weighted totals.
template <class Sum>
class Windows {
 public:
  Windows(std::vector<Job> jobs, std::int64_t weight, std::size_t equal_devices)
      : jobs_(std::move(jobs)), weight_(weight), devices_(equal_devices) {
    std::sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) { return a.q > b.q; });
    for (const Job& job : jobs_) heads_.push_back(job.b);
    std::sort(heads_.begin(), heads_.end());
    if (devices_ > 0) head_sums_ = sums_of_next(heads_, devices_);
  }

  Ns strongest() {
    Ns best = 0;
    const std::size_t stride = std::max<std::size_t>(1, heads_.size() / kThresholds);
    for (std::size_t i = 0; i < heads_.size(); i += stride) {
      const Ns r = heads_[i];
      std::erase_if(jobs_, [r](const Job& job) { return job.b < r; });
      const auto first = std::lower_bound(heads_.begin(), heads_.end(), r) - heads_.begin();
      const Sum most =
          devices_ > 0 ? sweep_equal(head_sums_[static_cast<std::size_t>(first)]) : sweep(r);
      best = std::max(best, ceil_divide(most, weight_));
    }
    return best;
  }

 private:
  static constexpr std::size_t kThresholds = 32;

  Sum sweep(Ns r) const {
    Sum work = 0, best = 0;
    for (const Job& job : jobs_) {
      work += job.work;
      best = std::max(best, work + static_cast<Sum>(r + job.q) * weight_);
    }
    return best;
  }

  // On n equal devices the first and the last operators of all devices differ: the n smallest heads
  // and the n smallest tails count, not n times the smallest. (Fewer than n operators are left to
  // the star bound.)
  Sum sweep_equal(Ns heads) {
    Sum work = 0, best = 0;
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      work += jobs_[i].work + jobs_[i].q;  // the tails of the last n jobs, work of all
      if (i >= devices_) work -= jobs_[i - devices_].q;
      if (i + 1 >= devices_) best = std::max(best, work);
    }
    return best > 0 ? best + heads : best;
  }

  std::vector<Job> jobs_;  // those with b >= r, by tail, longest first
  const std::int64_t weight_;
  const std::size_t devices_;  // 0 when they are unequal
  std::vector<Ns> heads_, head_sums_;
};

}  // namespace

Ns window(const Relaxation& relaxed, const HeadsTails& ends, const LoadWeights& weights) {
  const std::size_t num_types = relaxed.num_types();
  std::vector<Job> jobs;
  jobs.reserve(relaxed.k_min.size());
  for (std::size_t op = 0; op < relaxed.k_min.size(); ++op) {
    Job job{kNever, kNever, 0};
    std::optional<WideInt> work;
    for (std::size_t type = 0; type < num_types; ++type) {
      const std::size_t at = op * num_types + type;
      if (relaxed.k[at] >= kNever || ends.b[at] >= kNever || ends.q[at] >= kNever) continue;
      job.b = std::min(job.b, ends.b[at]);
      job.q = std::min(job.q, ends.q[at]);
      const WideInt weighted = static_cast<WideInt>(weights.y[type]) * relaxed.k[at];
      if (!work.has_value() || weighted < *work) work = weighted;
    }
    if (!work.has_value()) return kNever;
    // Totals stay below 2^60 nanoseconds, weights below 2^20: what does not fit is left out.
    job.work = static_cast<std::int64_t>(std::min(*work, static_cast<WideInt>(kNever)));
    jobs.push_back(job);
  }
  if (jobs.empty()) return 0;
  const std::int64_t weight = total_weight(relaxed, weights);
  const std::size_t equal_devices = num_types == 1 ? relaxed.num_devices : 0;
  // Plain integers where they suffice: they are much faster.
  WideInt largest = 0, work = 0;
  for (const Job& job : jobs) {
    largest = std::max(largest, static_cast<WideInt>(job.b) + job.q);
    work += job.work;
  }
  if (work + largest * (weight + 1) * 2 < kNever)
    return Windows<Ns>(std::move(jobs), weight, equal_devices).strongest();
  return Windows<WideInt>(std::move(jobs), weight, equal_devices).strongest();
}

}  // namespace baechi::bounds
