// SPDX-License-Identifier: Apache-2.0
// Better and better steps while a plan is made, told to whoever watches. Beyond the paper.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "baechi/plan/request/request.h"

namespace baechi {

// Of what methods and searches find, whether it is better than what was there or not.
inline void tell(const PlanRequest& request, Time step, std::string_view method) {
  if (request.watch) request.watch({.step = step, .method = std::string(method)});
}

// Watches a request for whom made it. Refers to the request, which must outlive it.
class SearchLog {
 public:
  explicit SearchLog(const PlanRequest& request) : request_(request) {}

  // The request, watched by this log; nobody looks where nobody asked.
  PlanRequest watched();

  void add(const SearchNews& news);  // from any thread; requires that somebody watches

 private:
  const PlanRequest& request_;
  std::mutex mutex_;  // of what follows
  SearchNews best_;
};

}  // namespace baechi
