// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/text/explanation_text.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "baechi/io/text/quantity_text.h"
#include "baechi/io/text/source_place.h"
#include "baechi/report/text/plan_text.h"
#include "baechi/report/text/text_table.h"

namespace baechi {
namespace {

constexpr std::size_t kMostSegments = 16;  // rows of the critical path
constexpr std::size_t kMostHolders = 4;    // per device

std::string share_text(std::int64_t part, std::int64_t whole) {
  if (whole == 0) return "0%";
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  if (part > 0 && percent < 0.5) return "<1%";
  return std::to_string(std::lround(percent)) + "%";
}

// Long names lose their middle, which tells the least.
std::string elided(std::string_view raw) {
  constexpr std::size_t kLongest = 44, kEnd = 26;
  const std::string name = printable(raw, std::string::npos);
  if (name.size() <= kLongest) return name;
  std::size_t first = kLongest - kEnd - 3, last = name.size() - kEnd;
  while (first > 0 && (static_cast<unsigned char>(name[first]) & 0xC0U) == 0x80U) --first;
  while (last < name.size() && (static_cast<unsigned char>(name[last]) & 0xC0U) == 0x80U) ++last;
  return name.substr(0, first) + "..." + name.substr(last);
}

std::string device_name(const Cluster& cluster, DeviceId device) {
  return printable(cluster[device].name);
}

std::string counted(std::size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

class PlanText {
 public:
  PlanText(const Explained& of, const PlanExplanation& told)
      : graph_(of.graph),
        cluster_(of.cluster),
        plan_(of.plan),
        pipeline_(of.pipeline),
        told_(told) {}

  std::string text() const {
    if (graph_.num_ops() == 0) return "the graph has no operators\n";
    return "step " + short_text(plan_.makespan()) + order_words(plan_) + ", " + bottleneck_words() +
           "\n" + times_words() + gap_words() + "\n" +
           (pipeline_ == nullptr ? "" : pipeline_text(plan_, *pipeline_) + "\n") + path_table() +
           "\n" + memory_table() + second_runs_words() + full_words();
  }

 private:
  std::string of_step(Time time) const {
    return short_text(time) + " (" + share_text(time.count(), plan_.makespan().count()) + ")";
  }
  std::string quoted(OpId op) const { return "'" + elided(graph_[op].name) + "'"; }
  Time total(CriticalUse use) const { return told_.path.total(use); }

  std::string busiest_words() const {
    return device_name(cluster_, *told_.busiest) + " computes for " +
           of_step(plan_.devices[*told_.busiest].busy);
  }

  std::string bottleneck_words() const {
    switch (told_.bottleneck) {
      case Bottleneck::kDeviceLoad:
        return "bound by device load: " + busiest_words();
      case Bottleneck::kSharedDevices:
        return "bound by sharing devices: for " + of_step(total(CriticalUse::kDeviceWait)) +
               " what could run waits for its device";
      case Bottleneck::kCommunication:
        return "bound by communication: " +
               of_step(total(CriticalUse::kTransfer) + total(CriticalUse::kQueueWait)) +
               " in transfers and queues";
      case Bottleneck::kDependencies:
        break;
    }
    return "bound by dependencies: " + of_step(total(CriticalUse::kCompute)) +
           " in operators that need each other";
  }

  std::string times_words() const {
    std::size_t transfers = 0;
    for (const CriticalLink& link : told_.path.links) transfers += link.transfer.has_value();
    return "critical path: " + counted(told_.path.links.size() - transfers, "operator") + ", " +
           counted(transfers, "transfer") + "\n  " + of_step(total(CriticalUse::kCompute)) +
           " computing what comes next needs\n  " + of_step(total(CriticalUse::kDeviceWait)) +
           " waiting while a device computes something else\n  " +
           of_step(total(CriticalUse::kTransfer)) + " in transfers\n  " +
           of_step(total(CriticalUse::kQueueWait)) + " waiting while a queue serves others\n" +
           "busiest device: " + busiest_words() + "\n";
  }

  std::string gap_words() const {
    if (!plan_.gap().has_value()) return "";
    const NamedBound& bound = plan_.bounds.front();
    if (plan_.makespan() == bound.value)
      return "what can be gained: nothing, the " + bound.name + " bound is met\n";
    return "what can be gained: at most " +
           share_text((plan_.makespan() - bound.value).count(), plan_.makespan().count()) +
           ", no plan is shorter than " + short_text(bound.value) + " (" + bound.name + " bound)\n";
  }

  std::string ops_words(const CriticalSegment& segment) const {
    std::string text = device_name(cluster_, *segment.device) + " runs " +
                       quoted(told_.path.links[segment.first].op);
    if (segment.last > segment.first)
      text += " to " + quoted(told_.path.links[segment.last].op) + ", " +
              counted(segment.last - segment.first + 1, "operator");
    return text;
  }

  std::string transfers_words(const CriticalSegment& segment) const {
    const CriticalLink& last = told_.path.links[segment.last];
    const Transfer& transfer = plan_.schedule.transfers[*last.transfer];
    std::string text = device_name(cluster_, transfer.from) + " sends " +
                       short_text(graph_.size(transfer.tensor)) + " of " + quoted(last.op) +
                       " to " + device_name(cluster_, transfer.to);
    if (segment.last == segment.first) return text;
    return text + ", queued behind " + counted(segment.last - segment.first, "other transfer");
  }

  // The longest segments stay; neighbours that do not are told in one row.
  std::vector<bool> kept_segments() const {
    std::vector<std::size_t> longest(told_.segments.size());
    for (std::size_t i = 0; i < longest.size(); ++i) longest[i] = i;
    std::stable_sort(longest.begin(), longest.end(), [&](std::size_t a, std::size_t b) {
      const CriticalSegment &x = told_.segments[a], &y = told_.segments[b];
      return x.end - x.start > y.end - y.start;
    });
    std::vector<bool> kept(longest.size(), longest.size() <= kMostSegments);
    for (std::size_t i = 0; i < std::min(kMostSegments, longest.size()); ++i)
      kept[longest[i]] = true;
    for (std::size_t i = 0; i < kept.size(); ++i)  // one alone takes a row anyway
      if ((i == 0 || kept[i - 1]) && (i + 1 == kept.size() || kept[i + 1])) kept[i] = true;
    return kept;
  }

  std::string path_table() const {
    TextTable table({{"from", Align::kRight},
                     {"takes", Align::kRight},
                     {"share", Align::kRight},
                     {"waiting", Align::kRight},
                     {"on the critical path"}});
    const std::vector<bool> kept = kept_segments();
    const auto add = [&](Time start, Time end, Time waiting, const std::string& words) {
      table.add_row({short_text(start), short_text(end - start),
                     share_text((end - start).count(), plan_.makespan().count()),
                     waiting > Time(0) ? short_text(waiting) : "", words});
    };
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const CriticalSegment& segment = told_.segments[i];
      if (kept[i]) {
        add(segment.start, segment.end, segment.waiting,
            segment.device.has_value() ? ops_words(segment) : transfers_words(segment));
        continue;
      }
      std::size_t last = i;
      Time waiting = segment.waiting;
      while (last + 1 < kept.size() && !kept[last + 1]) waiting += told_.segments[++last].waiting;
      add(segment.start, told_.segments[last].end, waiting,
          "... " + counted(last - i + 1, "shorter piece"));
      i = last;
    }
    return table.text();
  }

  std::string holder_words(const MemoryHolder& holder) const {
    std::string text = short_text(holder.total()) + " " + quoted(holder.op);
    if (holder.num_ops > 1) text += " and " + std::to_string(holder.num_ops - 1) + " of its group";
    std::string parts;
    const auto add = [&](Bytes bytes, const char* what) {
      if (bytes == holder.total())
        parts = what;
      else if (bytes > Bytes(0))
        parts += (parts.empty() ? "" : ", ") + short_text(bytes) + " " + what;
    };
    add(holder.permanent, "permanent");
    add(holder.temporary, "temporary");
    add(holder.outputs, "outputs");
    add(holder.copies, "received");
    return text + " (" + parts + ")";
  }

  std::string memory_table() const {
    std::vector<Column> columns{{"device"},
                                {"peak", Align::kRight},
                                {"full", Align::kRight},
                                {"at", Align::kRight},
                                {"permanent", Align::kRight},
                                {"temporary", Align::kRight},
                                {"outputs", Align::kRight},
                                {"received", Align::kRight},
                                {"while it runs"}};
    const bool has_run = plan_.has_run_peaks();
    if (has_run) columns.insert(columns.begin() + 1, {"in the run", Align::kRight});
    TextTable table(columns);
    std::string holders;
    for (const DeviceId device : told_.peaks.keys()) {
      const DevicePeak& peak = told_.peaks[device];
      const PlanDevice& seen = plan_.devices[device];
      std::vector<std::string> row{
          device_name(cluster_, device),
          short_text(seen.peak),
          share_text(seen.highest().count(), cluster_[device].capacity.count()),
          short_text(seen.peak_at),
          short_text(peak.permanent),
          short_text(peak.temporary),
          short_text(peak.outputs),
          short_text(peak.copies),
          seen.peak_op.has_value() ? elided(graph_[*seen.peak_op].name) : ""};
      if (has_run) row.insert(row.begin() + 1, short_text(seen.highest()));
      table.add_row(row);
      if (peak.holders.empty()) continue;
      holders += "\nmost of " + device_name(cluster_, device) + "'s peak is held by\n";
      const std::size_t shown = std::min(kMostHolders, peak.holders.size());
      for (std::size_t i = 0; i < shown; ++i)
        holders += "  " + holder_words(peak.holders[i]) + "\n";
      Bytes rest;
      for (std::size_t i = shown; i < peak.holders.size(); ++i) rest += peak.holders[i].total();
      if (rest > Bytes(0))
        holders +=
            "  " + short_text(rest) + " " + counted(peak.holders.size() - shown, "other") + "\n";
    }
    return table.text() + holders;
  }

  std::string second_runs_words() const {
    if (told_.second_runs.empty()) return "";
    const auto number = static_cast<std::int64_t>(plan_.micro_batches);
    Time time;
    Bytes bytes;
    for (const SecondRunFacts& run : told_.second_runs) {
      time += run.time * number;
      bytes += run.bytes;
    }
    std::string text = "\n" + counted(told_.second_runs.size(), "operator") + " run a second time" +
                       (number > 1 ? " in every micro-batch, " : ", ") + short_text(time) +
                       " in all, so that " + short_text(bytes) + (number > 1 ? " of each" : "") +
                       " need not be held from one run to the other; what saves most\n";
    constexpr std::size_t kMostRuns = 5;
    for (std::size_t i = 0; i < std::min(kMostRuns, told_.second_runs.size()); ++i)
      text += second_run_words(told_.second_runs[i]);
    return text;
  }

  // What one buys, and what it costs.
  std::string second_run_words(const SecondRunFacts& run) const {
    const auto number = static_cast<std::int64_t>(plan_.micro_batches);
    std::string text = "  '" + elided(run.name) + "' on " + device_name(cluster_, run.device) +
                       ": " + short_text(run.bytes);
    if (number > 1)
      text += run.at_once > 1
                  ? " of up to " + std::to_string(run.at_once) + " micro-batches at once"
                  : " of one micro-batch at a time";
    const Time mean(run.dropped().count() / number);
    text += " not held for " + of_step(mean) + (number > 1 ? " each" : "") + ", for ";
    if (number > 1) text += std::to_string(number) + " x ";
    return text + short_text(run.time) + " of computing\n";
  }

  std::string full_words() const {
    if (told_.full.empty()) return "";
    std::string names;
    for (const DeviceId device : told_.full)
      names += (names.empty() ? "" : ", ") + device_name(cluster_, device);
    return "\nmemory leaves little choice: less than 5% of " + names +
           " is free at the peak; `baechi what-if` tells what more memory would bring\n";
  }

  const OpGraph& graph_;
  const Cluster& cluster_;
  const Plan& plan_;
  const PipelineExplanation* pipeline_;
  const PlanExplanation& told_;
};

class OperatorText {
 public:
  OperatorText(const Explained& of, const OperatorExplanation& told)
      : graph_(of.graph), cluster_(of.cluster), plan_(of.plan), told_(told) {}

  std::string text() const {
    const Operator& op = graph_[told_.op];
    std::string text = "'" + printable(op.name) + "'" +
                       (op.kind.empty() ? "" : " (" + printable(op.kind) + ")") + " runs on " +
                       name(told_.device) + " from " + short_text(told_.start) + " to " +
                       short_text(told_.end) + "\n";
    text += told_.ready == told_.start
                ? "it starts the moment its inputs are there"
                : "its inputs are there at " + short_text(told_.ready) + "; it waits " +
                      short_text(told_.start - told_.ready) + " for the device";
    text +=
        told_.critical ? "; it is on the critical path\n" : "; it is not on the critical path\n";
    if (!told_.moves_along.empty())
      text += "its colocation group moves with it: " +
              counted(told_.moves_along.size(), "other operator") + "\n";
    return text + "\n" + table() + "\n" + verdict() + "\n";
  }

 private:
  std::string name(DeviceId device) const { return device_name(cluster_, device); }
  std::string change_text(const Alternative& there) const {
    const Time change = there.makespan - plan_.makespan();
    if (change == Time(0)) return "0";
    const double fraction =
        static_cast<double>(change.count()) / static_cast<double>(plan_.makespan().count());
    return (change > Time(0) ? "+" : "-") +
           short_text(Time(change > Time(0) ? change.count() : -change.count())) + " (" +
           percent_text(fraction) + ")";
  }

  std::string table() const {
    TextTable table({{""},
                     {"device"},
                     {"inputs there", Align::kRight},
                     {"earliest start", Align::kRight},
                     {"finish", Align::kRight},
                     {"step if moved", Align::kRight},
                     {"change", Align::kRight},
                     {"peak", Align::kRight},
                     {"capacity", Align::kRight},
                     {"remarks"}});
    for (const Alternative& there : told_.alternatives) {
      const std::string mark = there.device == told_.device ? "*" : "";
      const std::string capacity = short_text(cluster_[there.device].capacity);
      if (!there.obstacle.empty()) {
        table.add_row({mark, name(there.device), "", "", "", "", "", "", capacity,
                       "cannot run: " + there.obstacle});
        continue;
      }
      table.add_row(
          {mark, name(there.device), short_text(there.inputs), short_text(there.start),
           short_text(there.finish), short_text(there.makespan), change_text(there),
           short_text(there.peak), capacity,
           there.runs_over.has_value()
               ? name(*there.runs_over) + " runs out of memory: " + short_text(there.over) + " over"
               : ""});
    }
    return table.text();
  }

  const Alternative* best_other() const {
    const Alternative* best = nullptr;
    for (const Alternative& there : told_.alternatives) {
      if (there.device == told_.device || !there.obstacle.empty() || there.runs_over.has_value())
        continue;
      if (best == nullptr || there.makespan < best->makespan) best = &there;
    }
    return best;
  }

  std::string verdict() const {
    std::size_t able = 0, fitting = 0;
    for (const Alternative& there : told_.alternatives) {
      if (there.device == told_.device || !there.obstacle.empty()) continue;
      ++able;
      fitting += !there.runs_over.has_value();
    }
    if (cluster_.num_devices() == 1) return "why here: there is no other device";
    if (able == 0) return "why here: no other device may run it";
    if (fitting == 0) return "why here: moved anywhere else, a device runs out of memory";
    const Alternative& best = *best_other();
    const Time change = best.makespan - plan_.makespan();
    if (change > Time(0))
      return "why here: every other device makes the step longer, " + name(best.device) +
             " the least, by " + short_text(change);
    if (change == Time(0))
      return "why here: it is all the same, " + name(best.device) + " gives the same step";
    return "the plan can be better: on " + name(best.device) + " the step is " +
           short_text(Time(-change.count())) +
           " shorter; a longer search (`baechi place --budget`) may find more";
  }

  const OpGraph& graph_;
  const Cluster& cluster_;
  const Plan& plan_;
  const OperatorExplanation& told_;
};

}  // namespace

const char* bottleneck_name(Bottleneck bottleneck) {
  switch (bottleneck) {
    case Bottleneck::kDeviceLoad:
      return "device load";
    case Bottleneck::kSharedDevices:
      return "shared devices";
    case Bottleneck::kCommunication:
      return "communication";
    case Bottleneck::kDependencies:
      break;
  }
  return "dependencies";
}

std::string explanation_text(const Explained& of, const PlanExplanation& told) {
  return PlanText(of, told).text();
}

std::string explanation_text(const Explained& of, const OperatorExplanation& told) {
  return OperatorText(of, told).text();
}

}  // namespace baechi
