// SPDX-License-Identifier: Apache-2.0
// Plans for people to look at and for other programs to use.
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/short_text.h"
#include "baechi/io/onnx/write_onnx.h"
#include "baechi/io/text/text_file.h"
#include "baechi/report/export/exports.h"
#include "baechi/report/export/trace_events.h"
#include "baechi/report/html/html_report.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace baechi::python {
namespace {

// Operators are shown by their index, so both plans must be of one graph.
void require_one_graph(const std::vector<PlanHandle>& plans) {
  for (const PlanHandle& handle : plans) {
    if (handle.graph == plans.front().graph) continue;
    const OpGraph &a = *plans.front().graph, &b = *handle.graph;
    bool same = a.num_ops() == b.num_ops();
    for (const OpId op : a.ops()) same = same && a[op].name == b[op].name;
    if (!same) throw InputError("the plans are of different graphs");
  }
}

}  // namespace

void bind_report(nb::module_& m) {
  m.def(
      "html_report",
      [](const std::vector<PlanHandle>& plans, const std::vector<std::string>& labels) {
        if (plans.empty() || plans.size() > 2 || labels.size() != plans.size())
          throw InputError("a report shows one plan or two, each with a label");
        require_one_graph(plans);
        nb::gil_scoped_release unlocked;
        std::vector<ReportPlan> shown;
        for (std::size_t i = 0; i < plans.size(); ++i) shown.push_back({&plans[i].plan, labels[i]});
        return html_report(plans.front().step_graph(), shown);
      },
      "plans"_a, "labels"_a, "One or two plans of a graph as the text of an HTML page.");
  m.def(
      "trace_events",
      [](const PlanHandle& h) {
        nb::gil_scoped_release unlocked;
        return trace_events(h.step_graph(), h.plan);
      },
      "plan"_a, "A plan as the text of a trace that Perfetto and chrome://tracing open.");
  m.def(
      "export_plan",
      [](const PlanHandle& h, const std::string& to, const std::string& form) {
        const ExportFormat& format = find_export_format(to, form);
        check_can_tell(format, h.plan);
        if (h.step == nullptr) return format.write(*h.graph, h.plan);
        return write_export(format, *h.step, *h.micro_batch, h.plan);
      },
      "plan"_a, "to"_a, "form"_a = "", "A plan as the settings of another program.");
  m.def(
      "placed_onnx",
      [](const PlanHandle& h, const nb::bytes& model) {
        const std::string placed =
            placed_onnx({model.c_str(), model.size()}, "<bytes>", *h.graph, h.plan);
        return nb::bytes(placed.data(), placed.size());
      },
      "plan"_a, "model"_a,
      "The ONNX model that the plan's graph was read from, with a device on every node.");
  m.def(
      "export_formats",
      [] {
        std::map<std::string, std::string> formats;
        for (const ExportFormat& format : export_formats())
          formats.emplace(format.name, format.summary);
        return formats;
      },
      "The formats of export_plan, and what they are.");
  m.def(
      "time_text", [](std::int64_t ns) { return short_text(Time(ns)); }, "nanoseconds"_a,
      "12.3 ms: as all that is printed says a time.");
  m.def(
      "bytes_text", [](std::int64_t bytes) { return short_text(Bytes(bytes)); }, "bytes"_a,
      "1.50 GiB: as all that is printed says an amount of memory.");
  m.def("count_text", [](std::int64_t count) { return count_text(count); }, "count"_a, "12,345.");
  m.def(
      "share_text", [](double fraction) { return share_text(fraction); }, "fraction"_a,
      "8.4%, 84%, <0.1%, or 3.5x: as all that is printed says a part of a whole.");
  m.def(
      "change_text", [](double fraction) { return change_text(fraction); }, "fraction"_a,
      "+8.4%, -12%, or 3.5x: how much more or less.");
  m.def(
      "at_most_above",
      [](double fraction, const std::string& what) { return at_most_above(fraction, what); },
      "fraction"_a, "what"_a, "at most 8.5% above `what`: rounded up.");
  m.def(
      "write_text",
      [](const std::filesystem::path& path, const std::string& text) {
        nb::gil_scoped_release unlocked;
        write_text_file(path, text);
      },
      "path"_a, "text"_a, "Writes a file, atomically.");
  m.def(
      "write_bytes",
      [](const std::filesystem::path& path, const nb::bytes& content) {
        write_text_file(path, {content.c_str(), content.size()});
      },
      "path"_a, "content"_a, "Writes a file, atomically.");
}

}  // namespace baechi::python
