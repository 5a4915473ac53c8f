// SPDX-License-Identifier: Apache-2.0
// Why one operator is where it is, as text.
#include <cstddef>
#include <string>

#include "baechi/base/short_text.h"
#include "baechi/io/text/quantity_text.h"
#include "baechi/io/text/source_place.h"
#include "baechi/report/text/explanation_text.h"
#include "baechi/report/text/text_table.h"

namespace baechi {
namespace {

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
  std::string name(DeviceId device) const { return printable(cluster_[device].name); }
  std::string change_text(const Alternative& there) const {
    const Time change = there.makespan - plan_.makespan();
    if (change == Time(0)) return "0";
    const double fraction =
        static_cast<double>(change.count()) / static_cast<double>(plan_.makespan().count());
    return (change > Time(0) ? "+" : "-") +
           short_text(Time(change > Time(0) ? change.count() : -change.count())) + " (" +
           baechi::change_text(fraction) + ")";
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

std::string explanation_text(const Explained& of, const OperatorExplanation& told) {
  return OperatorText(of, told).text();
}

}  // namespace baechi
