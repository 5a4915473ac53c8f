// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/attempt/improvements.h"

#include <utility>

namespace baechi {

PlanRequest ImprovementLog::watched() {
  PlanRequest request = request_;
  if (is_watched()) request.watch = [this](const SearchNews& news) { add(news); };
  return request;
}

void ImprovementLog::add(const SearchNews& news) {
  const std::scoped_lock lock(mutex_);
  const bool faster = news.step.has_value() && (!best_.step.has_value() || news.step < best_.step);
  const bool closer =
      news.bound.has_value() && (!best_.bound.has_value() || news.bound > best_.bound);
  if (faster) {
    best_.step = news.step;
    best_.method = news.method;
    found_.push_back({elapsed(), *news.step, news.method});
  }
  if (closer) best_.bound = news.bound;
  if (best_.step.has_value() && (faster || closer) && request_.watch) request_.watch(best_);
}

std::vector<Improvement> ImprovementLog::take(const Plan& plan) {
  if (!request_.improvements) return {};
  if (found_.empty() || found_.back().step != plan.makespan())
    found_.push_back({elapsed(), plan.makespan(), plan.method});
  return std::move(found_);
}

Time ImprovementLog::elapsed() const {
  return Time(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin_).count());
}

}  // namespace baechi
