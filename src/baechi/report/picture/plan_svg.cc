// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/picture/plan_svg.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string_view>
#include <vector>

#include "baechi/base/short_text.h"
#include "baechi/cluster/cluster.h"
#include "baechi/report/facts/bubbles.h"
#include "baechi/report/facts/timeline_bars.h"

namespace baechi {
namespace {

// In pixels.
constexpr int kPictureWidth = 960, kGutter = 76, kValueWidth = 58, kTop = 34, kLaneHeight = 34,
              kLaneStep = 42, kAxisHeight = 26, kLegendHeight = 26;
constexpr double kPlotWidth = kPictureWidth - kGutter - kValueWidth;
constexpr std::size_t kMostBars = 10'000;

// Backward passes have these colours, forward passes a lighter shade.
constexpr std::array<std::string_view, 8> kMicroBatchColors{
    "#5b8def", "#f0a03c", "#45b37f", "#a67be0", "#e06c82", "#33b3d1", "#c2a92a", "#d983c0"};
constexpr std::string_view kStepColor = "#8a94a3";  // what runs once per step
constexpr std::array<std::string_view, kBubbleCauses.size()> kCauseColors{
    "#dfe5ee", "#c3cddc", "#f3c1b8", "#bfe3ec", "#d6c8f5"};

struct Pass {
  OpId op{0};  // one of it
  Time start, end;
};

// With what XML reserves escaped, and control characters as spaces.
std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 && c != '\n' ? ' ' : c;
    }
  }
  return out;
}

std::string decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

class PlanSvg {
 public:
  PlanSvg(const StepGraph& step, const Plan& plan)
      : step_(step), plan_(plan), cluster_(plan.cluster) {}

  std::string write() {
    const DeviceOrder order = order_of(plan_.schedule, step_.graph(), cluster_.num_devices());
    const auto bars = timeline_bars(plan_.schedule, order, kMostBars);
    const auto bubbles = find_bubbles(step_, cluster_, plan_.schedule);
    begin();
    for (const DeviceId device : cluster_.devices()) lane(device, bars[device], bubbles[device]);
    axis();
    legend(bubbles);
    return out_ + "</svg>\n";
  }

 private:
  bool numbered() const { return step_.micro_batches() > 1; }
  // Absent: it runs once per step of several micro-batches.
  std::optional<std::uint32_t> micro_batch(OpId op) const {
    return numbered() ? step_.micro_batch(op) : 0;
  }
  int bottom() const { return kTop + kLaneStep * static_cast<int>(cluster_.num_devices()); }
  double x(Time time) const {
    const double whole = static_cast<double>(std::max<std::int64_t>(1, plan_.makespan().count()));
    return kGutter + kPlotWidth * static_cast<double>(time.count()) / whole;
  }

  void begin() {
    const std::string height = std::to_string(bottom() + kAxisHeight + kLegendHeight);
    const std::string width = std::to_string(kPictureWidth);
    const std::string name = step_.graph().name().empty() ? "plan" : step_.graph().name();
    const std::string title =
        xml_text(name) + ": " +
        (numbered() ? std::to_string(step_.micro_batches()) + " micro-batches in " : "a step of ") +
        short_text(plan_.makespan());
    out_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + width + "\" height=\"" + height +
           "\" viewBox=\"0 0 " + width + " " + height + "\" role=\"img\">\n<title>" + title +
           "</title>\n<style>text{font:12px system-ui,sans-serif;fill:#1b1f24}.t{font-weight:600;"
           "font-size:14px}.d{font-weight:600}.s{font-size:11px;fill:#4b5563}.n{font-size:12px;"
           "font-weight:600;text-anchor:middle;pointer-events:none}.f{fill-opacity:.5}.e{"
           "text-anchor:end}.m{text-anchor:middle}</style>\n"
           "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
    text("t", kGutter, 18, title);
  }

  void text(std::string_view kind, double x, double y, const std::string& words) {
    out_ += "<text class=\"" + std::string(kind) + "\" x=\"" + decimal(x) + "\" y=\"" + decimal(y) +
            "\">" + words + "</text>\n";
  }

  void box(double left, double top, double width, double height, std::string_view color,
           std::string_view kind, const std::string& words) {
    out_ += "<rect x=\"" + decimal(left) + "\" y=\"" + decimal(top) + "\" width=\"" +
            decimal(std::max(width, 0.3)) + "\" height=\"" + decimal(height) + "\" fill=\"" +
            std::string(color) + "\"" +
            (kind.empty() ? "" : " class=\"" + std::string(kind) + "\"");
    out_ += words.empty() ? "/>\n" : "><title>" + xml_text(words) + "</title></rect>\n";
  }

  std::string when(Time start, Time end) const {
    return short_text(end - start) + " from " + short_text(start) + " to " + short_text(end);
  }

  void lane(DeviceId device, const std::vector<TimelineBar>& bars, const DeviceBubbles& idle) {
    const int top = kTop + kLaneStep * static_cast<int>(device.index());
    const double middle = top + kLaneHeight / 2.0 + 4;
    text("d", 8, middle, xml_text(cluster_[device].name));
    for (const Bubble& bubble : idle.bubbles) {
      const auto cause = static_cast<std::size_t>(bubble.cause);
      box(x(bubble.start), top, x(bubble.end) - x(bubble.start), kLaneHeight, kCauseColors[cause],
          "", "idle, " + std::string(kBubbleCauses[cause]) + ": " + when(bubble.start, bubble.end));
    }
    for (const Pass& pass : passes_of(bars)) draw(pass, top);
    const Time busy = plan_.makespan() - idle.idle();
    text("s e", kPictureWidth - 4, middle,
         share_text(busy.count(), plan_.makespan().count()) + " busy");
  }

  bool one_pass(OpId a, OpId b) const {
    return step_.micro_batch(a) == step_.micro_batch(b) &&
           step_.graph()[a].backward == step_.graph()[b].backward;
  }

  // Gaps that nobody sees do not part a pass.
  std::vector<Pass> passes_of(const std::vector<TimelineBar>& bars) const {
    std::vector<Pass> passes;
    for (const TimelineBar& bar : bars) {
      if (bar.end == bar.start) continue;
      if (!passes.empty() && one_pass(passes.back().op, bar.op) &&
          x(bar.start) - x(passes.back().end) < 0.5)
        passes.back().end = bar.end;
      else
        passes.push_back({bar.op, bar.start, bar.end});
    }
    return passes;
  }

  void draw(const Pass& pass, int top) {
    const std::optional<std::uint32_t> number = micro_batch(pass.op);
    const bool backward = step_.graph()[pass.op].backward;
    const double left = x(pass.start), width = x(pass.end) - left;
    const std::string words = !number.has_value() ? "once per step"
                              : numbered()        ? "micro-batch " + std::to_string(*number) +
                                                        (backward ? ", backward" : ", forward")
                              : backward          ? "backward"
                                                  : "forward";
    const double shown = width > 3 ? width - 0.8 : width;
    box(left, top, shown, kLaneHeight,
        number.has_value() ? kMicroBatchColors[*number % kMicroBatchColors.size()] : kStepColor,
        number.has_value() && !backward ? "f" : "", words + ": " + when(pass.start, pass.end));
    once_per_step_ = once_per_step_ || !number.has_value();
    if (!number.has_value() || !numbered()) return;
    const std::string label = std::to_string(*number);
    if (width > 2.5 + 6.5 * static_cast<double>(label.size()))
      text("n", left + width / 2, top + kLaneHeight / 2.0 + 4, label);
  }

  // Ticks at round times.
  void axis() {
    std::int64_t step = 1;
    for (std::int64_t power = 1; plan_.makespan().count() / step > 8; power *= 10)
      for (const std::int64_t factor : {1, 2, 5})
        if (plan_.makespan().count() / step > 8) step = power * factor;
    const int y = bottom();
    for (std::int64_t at = 0; at <= plan_.makespan().count(); at += step) {
      box(x(Time(at)), y - 6, 1, 5, "#9aa4b1", "", "");
      text(at == 0 ? "s" : "s m", x(Time(at)), y + 10, at == 0 ? "0" : short_text(Time(at)));
      if (plan_.makespan().count() - at < step) break;
    }
  }

  void legend(const IdVector<DeviceId, DeviceBubbles>& bubbles) {
    std::array<Time, kBubbleCauses.size()> total = {};
    for (const DeviceBubbles& device : bubbles)
      for (std::size_t cause = 0; cause < total.size(); ++cause)
        total[cause] += device.total[cause];
    const double y = bottom() + kAxisHeight;
    double left = kGutter;
    const auto entry = [&](std::string_view color, std::string_view kind,
                           const std::string& words) {
      box(left, y, 12, 12, color, kind, "");
      text("s", left + 17, y + 10, words);
      left += 34 + 6.1 * static_cast<double>(words.size());
    };
    entry(kMicroBatchColors[0], "f", "forward");
    entry(kMicroBatchColors[0], "", "backward");
    if (once_per_step_) entry(kStepColor, "", "once per step");
    const double all = static_cast<double>(std::max<std::int64_t>(1, plan_.makespan().count())) *
                       static_cast<double>(bubbles.size());
    for (std::size_t cause = 0; cause < total.size(); ++cause)
      if (total[cause] > Time(0))
        entry(kCauseColors[cause], "",
              "idle, " + std::string(kBubbleCauses[cause]) + " " +
                  share_text(static_cast<double>(total[cause].count()) / all));
  }

  const StepGraph step_;
  const Plan& plan_;
  const Cluster cluster_;
  std::string out_;
  bool once_per_step_ = false;  // something was drawn that runs once per step
};

}  // namespace

std::string plan_svg(const StepGraph& step, const Plan& plan) {
  return PlanSvg(step, plan).write();
}

}  // namespace baechi
