// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/html/study_page.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "baechi/base/short_text.h"
#include "baechi/base/version.h"
#include "baechi/report/html/html_parts.h"
#include "baechi/report/picture/svg_text.h"

namespace baechi {
namespace {

// In pixels.
constexpr double kWidth = 900, kLeft = 220, kRight = 150, kRow = 30;
constexpr double kCurveHeight = 340, kCurveLeft = 90, kCurveBottom = 46, kCurveTop = 14;

constexpr std::string_view kChartStyle =
    "svg{display:block;max-width:100%;height:auto}svg text{font:12px system-ui,sans-serif;"
    "fill:var(--ink)}svg .soft{fill:var(--soft)}svg .end{text-anchor:end}"
    "svg .mid{text-anchor:middle}svg .rule{stroke:var(--line)}"
    "svg polyline{fill:none;stroke-width:2}";

std::string number(double value) {  // tenths of a pixel are enough
  const std::int64_t tenths = std::lround(value * 10);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
}

std::string text_at(double x, double y, std::string_view style, std::string_view text) {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" class=\"" + std::string(style) +
         "\">" + xml_text(text) + "</text>\n";
}

std::string line_between(double x1, double y1, double x2, double y2) {
  return "<line class=\"rule\" x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" +
         number(x2) + "\" y2=\"" + number(y2) + "\"/>\n";
}

std::string svg(double height, std::string_view label, const std::string& content) {
  return "<svg viewBox=\"0 0 " + number(kWidth) + " " + number(height) +
         "\" role=\"img\">\n<title>" + xml_text(label) + "</title>\n" + content + "</svg>\n";
}

struct Table {
  std::vector<std::string> head;
  std::size_t words = 0;  // how many columns, from the left, are words: the others are figures
  std::vector<std::vector<std::string>> rows;
};

std::string table_text(const Table& table) {
  const auto row = [&](const char* tag, const std::vector<std::string>& cells) {
    std::string text = "<tr>";
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const bool figure = i >= table.words && i + 1 < table.head.size();
      text += std::string("<") + tag + (figure ? " class=\"number\">" : ">") + xml_text(cells[i]) +
              "</" + tag + ">";
    }
    return text + "</tr>\n";
  };
  std::string text =
      "<div class=\"scroll\"><table><thead>" + row("th", table.head) + "</thead><tbody>\n";
  for (const std::vector<std::string>& cells : table.rows) text += row("td", cells);
  return text + "</tbody></table></div>\n";
}

std::string page(std::string_view title, std::string_view what, const std::string& chart,
                 const Table& table) {
  const std::string name = xml_text(title.empty() ? "plan" : title);
  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
         "style-src 'unsafe-inline'; img-src data:\">\n<link rel=\"icon\" "
         "href=\"data:,\">\n<title>" +
         name + ": " + std::string(what) + " · baechi</title>\n<style>\n" +
         std::string(html::kStyle) + std::string(kChartStyle) +
         "\n</style>\n</head>\n<body>\n<header><h1>" + name + "</h1><span class=\"facts\">" +
         std::string(what) +
         "</span></header>\n<main>\n<section class=\"card\"><h2>Step time</h2>\n" + chart +
         "</section>\n<section class=\"card\"><h2>All figures</h2>\n" + table_text(table) +
         "</section>\n</main>\n<footer>Made by baechi " + std::string(version()) +
         ". Predicted by its execution simulator; equal input gives an equal page.</footer>\n"
         "</body>\n</html>\n";
}

double as_double(Time time) { return static_cast<double>(time.count()); }

std::string change_from(const ScenarioOutcome& base, const ScenarioOutcome& other) {
  if (&base == &other || !base.makespan.has_value() || !other.makespan.has_value() ||
      *base.makespan == Time(0))
    return "";
  return change_text(as_double(*other.makespan) / as_double(*base.makespan) - 1);
}

// What every outcome's row ends with: figures, who found it or why there is none.
void add_figures(const ScenarioOutcome& outcome, std::vector<std::string>& cells) {
  const bool fits = outcome.makespan.has_value();
  cells.push_back(fits ? short_text(*outcome.makespan) : "");
  cells.push_back(outcome.gap.has_value() ? share_text(*outcome.gap) : "");
  cells.push_back(fits ? short_text(outcome.highest_peak) : "");
  cells.push_back(fits ? "by " + outcome.method : "does not fit: " + outcome.reason);
}

// A bar for each scenario, with the bound of every plan as a mark.
std::string bars(const std::vector<ScenarioOutcome>& outcomes) {
  double longest = 1;
  for (const ScenarioOutcome& outcome : outcomes)
    longest = std::max(longest, as_double(outcome.makespan.value_or(Time(0))));
  std::string content;
  double top = 0;
  for (const ScenarioOutcome& outcome : outcomes) {
    const double middle = top + kRow / 2 + 4;
    content += text_at(kLeft - 10, middle, "end", outcome.name);
    if (!outcome.makespan.has_value()) {
      content += text_at(kLeft + 4, middle, "soft", "does not fit");
    } else {
      const double width = (kWidth - kLeft - kRight) * as_double(*outcome.makespan) / longest;
      const bool base = &outcome == &outcomes.front();
      content += "<rect x=\"" + number(kLeft) + "\" y=\"" + number(top + 5) + "\" width=\"" +
                 number(width) + "\" height=\"" + number(kRow - 10) + "\" rx=\"3\" fill=\"var(" +
                 (base ? "--other" : "--c0") + ")\"/>\n";
      if (outcome.gap.has_value()) {
        const double bound = kLeft + width / (1 + *outcome.gap);
        content += "<rect x=\"" + number(bound - 1) + "\" y=\"" + number(top + 3) +
                   "\" width=\"2\" height=\"" + number(kRow - 6) +
                   "\" fill=\"var(--ink)\"><title>no plan is faster</title></rect>\n";
      }
      const std::string change = change_from(outcomes.front(), outcome);
      content += text_at(kLeft + width + 8, middle, "",
                         short_text(*outcome.makespan) + (change.empty() ? "" : ", " + change));
    }
    top += kRow;
  }
  return svg(top, "Step time of each scenario", content) +
         "<p class=\"hint\">The mark in a bar: no plan is faster than that.</p>\n";
}

struct Curve {
  std::string name;
  std::map<double, const ScenarioOutcome*> points;
};

class Curves {
 public:
  Curves(std::vector<Curve> curves, std::string axis)
      : curves_(std::move(curves)), axis_(std::move(axis)) {
    for (const Curve& curve : curves_)
      for (const auto& [x, outcome] : curve.points) {
        xs_.insert(x);
        if (outcome->makespan.has_value())
          longest_ = std::max(longest_, as_double(*outcome->makespan));
      }
  }

  std::string draw() const {
    std::string content = axes();
    for (std::size_t i = 0; i < curves_.size(); ++i) content += draw(curves_[i], i % 8);
    std::string legend = "<div class=\"legend\">";
    for (std::size_t i = 0; i < curves_.size(); ++i)
      legend += "<span class=\"mark\"><span class=\"swatch\" style=\"background:var(--c" +
                std::to_string(i % 8) + ")\"></span>" + xml_text(curves_[i].name) + "</span>";
    return svg(kCurveHeight, "Step time over the " + axis_, content) + legend + "</div>\n";
  }

 private:
  double x(double value) const {
    const double first = *xs_.begin(), last = *xs_.rbegin();
    const double share = last > first ? (value - first) / (last - first) : 0.5;
    return kCurveLeft + 20 + share * (kWidth - kCurveLeft - 60);
  }
  double y(double time) const {
    const double height = kCurveHeight - kCurveTop - kCurveBottom;
    return kCurveTop + height * (1 - time / (longest_ * 1.05));
  }

  std::string axes() const {
    const double bottom = y(0);
    std::string content = line_between(kCurveLeft, bottom, kWidth - 20, bottom);
    for (const double part : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      const double time = part * longest_;
      content += line_between(kCurveLeft, y(time), kWidth - 20, y(time)) +
                 text_at(kCurveLeft - 8, y(time) + 4, "end soft",
                         part == 0 ? "0" : short_text(Time(static_cast<std::int64_t>(time))));
    }
    for (const double value : xs_)
      content += text_at(
          x(value), bottom + 18, "mid soft",
          axis_ == "devices" ? count_text(static_cast<std::uint64_t>(value)) : share_text(value));
    return content + text_at((kCurveLeft + kWidth) / 2, bottom + 38, "mid",
                             axis_ == "devices" ? "devices" : "of each device's memory");
  }

  // A line breaks where a plan does not fit.
  std::string draw(const Curve& curve, std::size_t color) const {
    const std::string ink = "var(--c" + std::to_string(color) + ")";
    std::string lines, dots, run;
    const auto end_run = [&] {
      if (!run.empty()) lines += "<polyline stroke=\"" + ink + "\" points=\"" + run + "\"/>\n";
      run.clear();
    };
    for (const auto& [value, outcome] : curve.points) {
      if (!outcome->makespan.has_value()) {
        end_run();
        continue;
      }
      const std::string cx = number(x(value)), cy = number(y(as_double(*outcome->makespan)));
      run += (run.empty() ? "" : " ") + cx + "," + cy;
      dots += "<circle cx=\"" + cx + "\" cy=\"" + cy + "\" r=\"4\" fill=\"" + ink + "\"><title>" +
              xml_text(curve.name + ": " + short_text(*outcome->makespan)) + "</title></circle>\n";
    }
    end_run();
    return lines + dots;
  }

  std::vector<Curve> curves_;
  std::string axis_;
  std::set<double> xs_;
  double longest_ = 1;
};

double share_of(Factor memory) {
  return static_cast<double>(memory.count()) / static_cast<double>(kFullSpeed.count());
}

}  // namespace

std::string what_if_page(std::string_view title, const std::vector<ScenarioOutcome>& outcomes) {
  Table table{{"what if", "devices", "used", "change", "step time", "above bound", "highest peak",
               "remarks"},
              1,
              {}};
  for (const ScenarioOutcome& outcome : outcomes) {
    std::vector<std::string> cells{
        outcome.name, count_text(outcome.devices),
        outcome.makespan.has_value() ? count_text(outcome.devices_used) : "",
        change_from(outcomes.front(), outcome)};
    add_figures(outcome, cells);
    table.rows.push_back(std::move(cells));
  }
  return page(title, "what if", bars(outcomes), table);
}

std::string sweep_page(std::string_view title, const std::vector<GridPoint>& points) {
  std::set<std::size_t> devices;
  std::set<Factor> memories;
  for (const GridPoint& point : points) {
    devices.insert(point.devices);
    memories.insert(point.memory);
  }
  const bool over_devices = devices.size() > 1 || memories.size() == 1;
  std::vector<Curve> curves;
  Table table{
      {"devices", "memory", "method", "step time", "above bound", "highest peak", "remarks"},
      0,
      {}};
  for (const GridPoint& point : points) {
    std::string name = point.method;
    if (over_devices && memories.size() > 1)
      name += ", memory " + share_text(share_of(point.memory));
    auto curve = std::ranges::find(curves, name, &Curve::name);
    if (curve == curves.end()) curve = curves.insert(curves.end(), {name, {}});
    const double at = over_devices ? static_cast<double>(point.devices) : share_of(point.memory);
    curve->points.emplace(at, &point.outcome);
    std::vector<std::string> cells{count_text(point.devices), share_text(share_of(point.memory)),
                                   point.method};
    add_figures(point.outcome, cells);
    table.rows.push_back(std::move(cells));
  }
  const Curves chart(std::move(curves), over_devices ? "devices" : "memory");
  return page(title, "sweep", chart.draw(), table);
}

}  // namespace baechi
