// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/text/explanation_text.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "baechi/base/short_text.h"
#include "baechi/io/text/quantity_text.h"
#include "baechi/io/text/source_place.h"
#include "baechi/report/text/plan_text.h"
#include "baechi/report/text/text_table.h"

namespace baechi {
namespace {

constexpr std::size_t kMostSegments = 16;  // rows of the critical path
constexpr std::size_t kMostHolders = 4;    // per device

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
           "\n" + memory_table() + second_runs_words() + host_words() + full_words();
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
      return "what can be gained: nothing, the " + bound.name + " bound" + with_replicas(plan_) +
             " is met\n";
    return "what can be gained: at most " +
           at_most_share((plan_.makespan() - bound.value).count(), plan_.makespan().count()) +
           ", no plan" + with_replicas(plan_) + " is shorter than " + short_text(bound.value) +
           " (" + bound.name + " bound)\n";
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
    if (holder.num_ops > 1) text += " and " + count_text(holder.num_ops - 1) + " of its group";
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

  std::string host_words() const {
    if (told_.host.links.empty()) return "";
    std::string text = "\n";
    for (const LinkFacts& link : told_.host.links)
      text += plan_.residency.store + " sends " + device_name(cluster_, link.device) + " " +
              short_text(link.fetched) + " in " + std::to_string(link.fetches) + " fetches" +
              ", for which the link is busy " +
              share_text(link.fetching.count(), plan_.makespan().count()) +
              " of the step, and gets " + short_text(link.put) + ", " +
              share_text(link.putting.count(), plan_.makespan().count()) + "\n";
    if (!told_.host.fetches.empty()) text += "what comes latest\n";
    constexpr std::size_t kMostFetches = 5;
    for (std::size_t i = 0; i < std::min(kMostFetches, told_.host.fetches.size()); ++i)
      text += fetch_words(told_.host.fetches[i]);
    return text;
  }

  std::string fetch_words(const FetchFacts& fetch) const {
    return "  " + quoted(fetch.of) + " (" + short_text(fetch.bytes) + ") is fetched " +
           (fetch.during.has_value() ? "during " + quoted(*fetch.during) : "at the start") +
           ", in " + short_text(fetch.end - fetch.start) + ", and is there " +
           short_text(fetch.early) + " before " + quoted(fetch.reader) + "\n";
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

}  // namespace baechi
