// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/attempt/search_log.h"

namespace baechi {

PlanRequest SearchLog::watched() {
  PlanRequest request = request_;
  if (request_.watch) request.watch = [this](const SearchNews& news) { add(news); };
  return request;
}

void SearchLog::add(const SearchNews& news) {
  const std::scoped_lock lock(mutex_);
  const bool faster = news.step.has_value() && (!best_.step.has_value() || news.step < best_.step);
  const bool closer =
      news.bound.has_value() && (!best_.bound.has_value() || news.bound > best_.bound);
  if (faster) {
    best_.step = news.step;
    best_.method = news.method;
  }
  if (closer) best_.bound = news.bound;
  if (best_.step.has_value() && (faster || closer)) request_.watch(best_);
}

}  // namespace baechi
