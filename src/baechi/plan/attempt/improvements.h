// SPDX-License-Identifier: Apache-2.0
// Better and better steps while a plan is made: told to whoever watches, and kept for the plan.
// Beyond the paper.
#pragma once

#include <chrono>
#include <mutex>
#include <string_view>
#include <vector>

#include "baechi/plan/request/request.h"
#include "baechi/schedule/plan.h"

namespace baechi {

// Of what methods and searches find, whether it is better than what was there or not.
inline void tell(const PlanRequest& request, Time step, std::string_view method) {
  if (request.watch) request.watch({.step = step, .method = std::string(method)});
}

// Watches a request for whom made it. Refers to the request, which must outlive it.
class ImprovementLog {
 public:
  explicit ImprovementLog(const PlanRequest& request) : request_(request) {}

  // The request, watched by this log; nobody looks where nobody asked.
  PlanRequest watched();
  bool is_watched() const { return request_.improvements || request_.watch; }

  void add(const SearchNews& news);  // from any thread
  // All of them; the last is that of the plan, which may be the one in another numbering.
  std::vector<Improvement> take(const Plan& plan);

 private:
  Time elapsed() const;

  using Clock = std::chrono::steady_clock;
  const PlanRequest& request_;
  const Clock::time_point begin_ = Clock::now();
  std::mutex mutex_;  // of what follows
  SearchNews best_;
  std::vector<Improvement> found_;
};

}  // namespace baechi
