// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/text/terminal_view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/short_text.h"
#include "baechi/io/json/json_writer.h"
#include "baechi/io/text/quantity_text.h"
#include "baechi/io/text/source_place.h"
#include "baechi/report/facts/bubbles.h"
#include "baechi/report/facts/time_columns.h"
#include "baechi/report/text/pipeline_text.h"
#include "baechi/report/text/plan_text.h"
#include "baechi/simulate/critical_path.h"

namespace baechi {
namespace {

constexpr std::size_t kLabel = 12;   // columns left of the picture
constexpr std::size_t kValues = 22;  // and right of it
constexpr std::size_t kLeastWidth = 40;
constexpr std::size_t kLevels = 9;

constexpr std::string_view kBlue = "34", kYellow = "33", kGreen = "32", kRed = "31", kBold = "1";

// The rightmost columns of a name that is too long say more than its first ones.
std::string fitted(std::string text, std::size_t width) {
  std::size_t length = 0;
  for (const char c : text) length += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  if (length <= width) return text + std::string(width - length, ' ');
  while (length >= width) {  // drop one character, and its continuation bytes
    std::size_t bytes = 1;
    while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80U)
      ++bytes;
    text.erase(0, bytes);
    --length;
  }
  return "~" + text;
}

class Picture {
 public:
  Picture(const StepGraph& step, const Plan& plan, const TerminalStyle& style)
      : step_(step), graph_(step.graph()), plan_(plan), style_(style) {
    passes_ = step.micro_batches() > 1 && !style.load;
    width_ = std::max(style.width, kLeastWidth);
    // In a narrow terminal the picture keeps its room and the values go.
    values_ = width_ >= kLabel + kValues + 30;
    columns_ = width_ - kLabel - 2 - (values_ ? kValues : 0);
  }

  std::string text() {
    const TimeColumns columns = time_columns(graph_, plan_, columns_);
    std::string text = headline(plan_) + "\n" + axis(columns.width);
    for (const DeviceId device : columns.devices.keys())
      text += device_rows(device, columns.devices[device], columns.width);
    text += path_row(columns.width) + legend();
    if (step_.micro_batches() == 1) return text;
    return text + "\n" +
           bubbles_text(plan_, find_bubbles(step_, Cluster(plan_.cluster), plan_.schedule));
  }

 private:
  std::string level(std::size_t number) const {
    static constexpr std::array<std::string_view, kLevels> kBlocks{" ", "▁", "▂", "▃", "▄",
                                                                   "▅", "▆", "▇", "█"};
    static constexpr std::array<std::string_view, kLevels> kAscii{" ", ".", ".", ":", "-",
                                                                  "=", "+", "#", "#"};
    return std::string(style_.ascii ? kAscii[number] : kBlocks[number]);
  }

  // Something is never shown as nothing.
  static std::size_t level_of(std::int64_t part, std::int64_t whole) {
    if (part <= 0 || whole <= 0) return 0;
    const double share = static_cast<double>(part) / static_cast<double>(whole);
    return std::clamp<std::size_t>(static_cast<std::size_t>(std::lround(share * 8)), 1,
                                   kLevels - 1);
  }

  std::string colored(std::string_view color, const std::string& text) const {
    return style_.color ? "\033[" + std::string(color) + "m" + text + "\033[0m" : text;
  }

  // A digit for a forward pass and a letter for a backward one, the last of the number.
  std::string pass(const std::optional<OpId>& op) const {
    static constexpr std::array<std::string_view, 8> kColors{"34", "33", "32", "35",
                                                             "31", "36", "93", "95"};
    if (!op.has_value()) return " ";
    const std::optional<std::uint32_t> number = step_.micro_batch(*op);
    if (!number.has_value()) return "*";
    const char first = graph_[*op].backward ? 'a' : '0';
    const std::string mark(1, static_cast<char>(first + static_cast<char>(*number % 10)));
    return colored(
        std::string(kColors[*number % kColors.size()]) + (graph_[*op].backward ? ";7" : ""), mark);
  }

  std::string row(const std::string& label, const std::string& picture, const std::string& values) {
    const std::string edge = style_.ascii ? "|" : "▏";
    std::string line = label + edge + picture + edge;
    if (values_) line += " " + values;
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
  }

  std::string axis(Time width) const {
    constexpr std::size_t kTick = 16;
    std::string line(kLabel + 1, ' ');
    for (std::size_t c = 0; c + 10 < columns_; c += kTick) {
      std::string tick =
          (style_.ascii ? "|" : "╷") + short_text(width * static_cast<std::int64_t>(c));
      const std::size_t length = tick.size() - (style_.ascii ? 0 : 2);
      if (length < kTick) tick.append(kTick - length, ' ');
      line += tick;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
  }

  std::string device_rows(DeviceId id, const DeviceColumns& columns, Time width) {
    const Device& device = plan_.cluster.devices[id.index()];
    std::string computing, moving, memory;
    Time busy;
    Bytes peak;
    bool moves = false;
    for (std::size_t c = 0; c < columns_; ++c) {
      busy += columns.computing[c];
      peak = std::max(peak, columns.memory[c]);
      moves = moves || columns.moving[c] > Time(0);
      computing += passes_ ? pass(columns.longest[c])
                           : level(level_of(columns.computing[c].count(), width.count()));
      moving += level(level_of(columns.moving[c].count(), width.count()));
      memory += level(level_of(columns.memory[c].count(), device.capacity.count()));
    }
    std::string text = row(colored(kBold, fitted(printable(device.name), kLabel)),
                           passes_ ? computing : colored(kBlue, computing),
                           share_text(busy.count(), plan_.makespan().count()) + " busy");
    if (moves)
      text += row(fitted("  transfers", kLabel), colored(kYellow, moving),
                  short_text(plan_.devices[id].sent) + " sent");
    const bool full = peak.count() > device.capacity.count() / 10 * 9;
    return text + row(fitted("  memory", kLabel), colored(full ? kRed : kGreen, memory),
                      short_text(peak) + " of " + short_text(device.capacity));
  }

  // The device that the critical path is on, by the last digit of its number; ">" where it moves.
  std::string path_row(Time width) {
    CriticalPath path;
    try {
      path = critical_path(graph_, Cluster(plan_.cluster), plan_.schedule);
    } catch (const InputError&) {
      return {};
    }
    std::vector<Time> most(columns_);
    std::string picture(columns_, ' ');
    for (const CriticalLink& link : path.links) {
      const char mark =
          link.transfer.has_value()
              ? '>'
              : static_cast<char>('0' + plan_.schedule.slots[link.op].device.index() % 10);
      for (std::int64_t c = link.start.count() / width.count();
           c < static_cast<std::int64_t>(columns_) && width * c < link.end; ++c) {
        const Time part = std::min(link.end, width * (c + 1)) - std::max(link.start, width * c);
        if (part <= most[static_cast<std::size_t>(c)]) continue;
        most[static_cast<std::size_t>(c)] = part;
        picture[static_cast<std::size_t>(c)] = mark;
      }
    }
    return row(fitted("critical", kLabel), colored(kRed, picture),
               short_text(path.total(CriticalUse::kCompute)) + " computing");
  }

  // Between words, so that no line is wider than the picture may be.
  std::string legend() const {
    constexpr std::string_view kWords =
        "height: share of the time, or of the capacity; critical: the number of the device that "
        "the critical path is on, > in transfers";
    constexpr std::string_view kPassWords =
        "0 to 9: forward pass of the micro-batch, by the last digit of its number; a to j: "
        "backward "
        "pass of 0 to 9; *: once per step; critical: the number of the device that the critical "
        "path is on, > in transfers";
    std::string text, line;
    for (std::string_view rest = passes_ ? kPassWords : kWords; !rest.empty();) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      if (!line.empty() && line.size() + 1 + end > width_) {
        text += line + "\n";
        line.clear();
      }
      line += (line.empty() ? "" : " ") + std::string(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return text + line + "\n";
  }

  const StepGraph step_;
  const OpGraph& graph_;
  const Plan& plan_;
  TerminalStyle style_;
  bool passes_ = false;
  bool values_ = true;
  std::size_t width_ = kLeastWidth, columns_ = 1;
};

}  // namespace

std::string terminal_view(const StepGraph& step, const Plan& plan, const TerminalStyle& style) {
  return Picture(step, plan, style).text();
}

std::string terminal_view_json(const StepGraph& step, const Plan& plan, std::size_t columns) {
  const TimeColumns shown = time_columns(step.graph(), plan, columns);
  IdVector<DeviceId, DeviceBubbles> bubbles;
  if (step.micro_batches() > 1) bubbles = find_bubbles(step, Cluster(plan.cluster), plan.schedule);
  return json_document([&](JsonWriter& json) {
    json.field("makespan_ns", plan.makespan().count());
    json.field("column_ns", shown.width.count());
    if (step.micro_batches() > 1) json.field("micro_batches", step.micro_batches());
    json.begin_array("devices");
    for (const DeviceId device : shown.devices.keys()) {
      const auto write = [&](std::string_view name, const auto& values) {
        json.begin_array(name, JsonWriter::Layout::kInline);
        for (const auto& value : values) json.value(value.count());
        json.end_array();
      };
      json.begin_object();
      json.field("name", plan.cluster.devices[device.index()].name);
      write("computing_ns", shown.devices[device].computing);
      write("moving_ns", shown.devices[device].moving);
      write("memory_bytes", shown.devices[device].memory);
      if (!bubbles.empty()) write_bubbles(json, bubbles[device]);
      json.end_object();
    }
    json.end_array();
  });
}

}  // namespace baechi
