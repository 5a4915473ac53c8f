// SPDX-License-Identifier: Apache-2.0
// What one device holds, moment by moment, and the most it ever held (docs/reference/semantics.md,
// "Memory at a moment").
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "baechi/base/assert.h"
#include "baechi/base/id.h"
#include "baechi/base/units.h"
#include "baechi/simulate/trace.h"

namespace baechi::simulation {

// Events come in the order of time; those of one moment in any order. Its sums are complete, and
// compared with the peak, when the next moment is entered.
class MemoryAccount {
 public:
  void clear(Bytes permanent, Bytes capacity, bool record) {
    *this = MemoryAccount();
    permanent_ = held_ = permanent;
    capacity_ = capacity;
    record_ = record;
  }

  void enter(Time moment) {
    if (moment != now_) next_moment(moment);
  }
  void take(Bytes bytes) { held_ += bytes; }
  // What is taken until the step ends.
  void keep(Bytes bytes) {
    held_ += bytes;
    kept_ += bytes;
    kept_now_ += bytes;
  }
  // What was taken at this very moment still counts at it.
  void give_back(Bytes bytes, Time taken_at) {
    if (taken_at == now_)
      passing_ += bytes;
    else
      held_ -= bytes;
  }
  // The operator that runs from this moment on, and none from this moment on.
  void run(OpId op) {
    op_ = op;
    running_ = true;
  }
  void rest() { running_ = false; }
  // An operator of no length at this moment.
  void run_at_once(OpId op) {
    if (!ran_at_once_ || op < op_at_once_) op_at_once_ = op;
    ran_at_once_ = true;
  }
  void end_step(Time makespan) {
    enter(makespan);
    held_ -= kept_ - kept_now_;
    passing_ += kept_now_;
    close();
    BAECHI_ASSERT(held_ == permanent_, "a step gives back all that it took");
  }

  // After end_step().
  Bytes peak() const { return peak_; }
  void tell(DeviceTrace& trace) const {
    trace.peak = peak_;
    trace.peak_at = peak_at_;
    trace.peak_op = peak_op_;
    trace.overflow_at = overflow_at_;
    trace.memory = curve_;
  }

 private:
  void next_moment(Time moment) {
    BAECHI_ASSERT(moment > now_, "memory events come in the order of time");
    close();
    now_ = moment;
    kept_now_ = Bytes(0);
    ran_at_once_ = false;
  }
  void close() {
    if (held_ > peak_) new_peak();
    if (record_) [[unlikely]]
      record();
    if (passing_ == Bytes(0)) return;
    held_ -= passing_;
    passing_ = Bytes(0);
    if (record_) [[unlikely]]
      record();
  }
  void new_peak() {
    peak_ = held_;
    peak_at_ = now_;
    peak_op_.reset();
    if (running_)
      peak_op_ = op_;
    else if (ran_at_once_)
      peak_op_ = op_at_once_;
    if (peak_ > capacity_ && !overflow_at_.has_value()) overflow_at_ = now_;
  }
  void record() {
    if (curve_.empty() || curve_.back().bytes != held_) curve_.push_back({now_, held_});
  }

  Time now_;
  Bytes held_;             // everything begun so far and not ended before the end of this moment
  Bytes passing_;          // of these, what begins and ends at this moment
  Bytes kept_, kept_now_;  // of these, what ends with the step; begun at this moment
  bool running_ = false, ran_at_once_ = false;
  OpId op_{0}, op_at_once_{0};  // if so

  Bytes permanent_, capacity_;
  Bytes peak_{-1};  // less than is ever held, so that moment 0 has the first peak
  Time peak_at_;
  std::optional<OpId> peak_op_;
  std::optional<Time> overflow_at_;
  bool record_ = false;
  std::vector<MemoryStep> curve_;
};

}  // namespace baechi::simulation
