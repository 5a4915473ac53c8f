// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/picture/plan_svg.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "baechi/base/short_text.h"
#include "baechi/report/picture/picture_layout.h"
#include "baechi/report/picture/plan_picture.h"
#include "baechi/report/picture/svg_text.h"

namespace baechi {
namespace {

// In pixels.
constexpr std::int64_t kNodeWidth = 150, kNodeHeight = 34, kGapX = 14, kGapY = 40;
constexpr std::int64_t kMargin = 16, kLanePadding = 12, kLaneGap = 18, kHeader = 64;
constexpr std::size_t kMostCharacters = 20;  // of a line in a node
constexpr std::size_t kMostLabels = 40;      // on edges between devices: the heaviest

// Stripes that tell neighbouring groups apart.
constexpr std::array<std::string_view, 6> kStripes{"#1f78b4", "#e31a1c", "#33a02c",
                                                   "#6a3d9a", "#ff7f00", "#b15928"};

// The end of a long name says more than its beginning.
std::string shortened(std::string_view text) {
  std::size_t length = 0;
  for (const char c : text) length += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  if (length <= kMostCharacters) return std::string(text);
  for (; length >= kMostCharacters; --length) {
    std::size_t bytes = 1;
    while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80U)
      ++bytes;
    text.remove_prefix(bytes);
  }
  return "…" + std::string(text);
}

std::string attribute(std::string_view name, std::int64_t value) {
  return " " + std::string(name) + "=\"" + std::to_string(value) + "\"";
}

class SvgWriter {
 public:
  SvgWriter(const OpGraph& graph, const Plan& plan, std::size_t max_nodes)
      : graph_(graph),
        plan_(plan),
        picture_(plan_picture(graph, plan, max_nodes)),
        layout_(layout_picture(picture_, plan.cluster.devices.size())),
        lane_left_(plan.cluster.devices.size(), 0) {
    std::int64_t left = kMargin;
    for (const DeviceId device : layout_.lanes.keys()) {
      lane_left_[device] = left;
      if (layout_.lanes[device].width > 0) left += lane_width(device) + kLaneGap;
    }
    width_ = std::max<std::int64_t>(left - kLaneGap + kMargin, 320);
    height_ = kHeader + static_cast<std::int64_t>(layout_.rows) * (kNodeHeight + kGapY) + kMargin;
  }

  std::string write() {
    out_ = "<svg xmlns=\"http://www.w3.org/2000/svg\"" + attribute("width", width_) +
           attribute("height", height_) + " viewBox=\"0 0 " + std::to_string(width_) + " " +
           std::to_string(height_) + "\" role=\"img\">\n";
    out_ += "<title>" + xml_text(graph_.name().empty() ? "plan" : graph_.name()) + ": " +
            count_text(graph_.num_ops()) + " operators, a step of " + short_text(plan_.makespan()) +
            "</title>\n";
    out_ +=
        "<style>text{font:12px system-ui,sans-serif;fill:#1b1f24}.s{font-size:10px;fill:#4b5563}"
        ".d{font-weight:600;font-size:13px}.e{fill:none;stroke:#9aa4b1;stroke-opacity:.75}"
        ".x{stroke:#b42318;stroke-opacity:.85}.c{stroke-dasharray:3 3}"
        ".l{font-size:10px;fill:#b42318;paint-order:stroke;stroke:#fff;stroke-width:3px}</style>\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
    for (const DeviceId device : layout_.lanes.keys()) write_lane(device);
    for (const PictureEdge& edge : picture_.edges) write_edge(edge);
    for (std::size_t n = 0; n < picture_.nodes.size(); ++n) write_node(n);
    for (const PictureEdge& edge : heaviest_crossings()) write_label(edge);
    return out_ + "</svg>\n";
  }

 private:
  std::int64_t lane_width(DeviceId device) const {
    return static_cast<std::int64_t>(layout_.lanes[device].width) * (kNodeWidth + kGapX) - kGapX +
           2 * kLanePadding;
  }
  std::int64_t left(std::size_t node) const {
    const DeviceId device = picture_.nodes[node].device;
    const std::size_t column = layout_.column[node] - layout_.lanes[device].first;
    return lane_left_[device] + kLanePadding +
           static_cast<std::int64_t>(column) * (kNodeWidth + kGapX);
  }
  std::int64_t top(std::size_t node) const {
    return kHeader + static_cast<std::int64_t>(layout_.row[node]) * (kNodeHeight + kGapY);
  }

  void write_lane(DeviceId device) {
    if (layout_.lanes[device].width == 0) return;
    const Device& spec = plan_.cluster.devices[device.index()];
    out_ += "<rect" + attribute("x", lane_left_[device]) + attribute("y", kMargin) +
            attribute("width", lane_width(device)) + attribute("height", height_ - 2 * kMargin) +
            " rx=\"8\" fill=\"" + std::string(device_fill(device)) +
            "\" fill-opacity=\".18\" stroke=\"" + std::string(device_fill(device)) + "\"/>\n";
    const std::string used = device.index() < plan_.devices.size()
                                 ? short_text(plan_.devices[device].peak) + " of "
                                 : std::string();
    out_ += "<text class=\"d\"" + attribute("x", lane_left_[device] + kLanePadding) +
            attribute("y", kMargin + 19) + ">" + xml_text(spec.name) +
            "</text>\n<text class=\"s\"" + attribute("x", lane_left_[device] + kLanePadding) +
            attribute("y", kMargin + 34) + ">" + xml_text(used + short_text(spec.capacity)) +
            "</text>\n";
  }

  void write_node(std::size_t n) {
    const PictureNode& node = picture_.nodes[n];
    const std::string second =
        node.kind.empty() && node.operators > 1
            ? count_text(node.operators) + " ops, " + short_text(node.time)
            : (node.kind.empty() ? "" : node.kind + ", ") + short_text(node.time);
    std::string told = node.name + "\n" + second + ", from " + short_text(node.start);
    out_ += "<g>";
    std::string stripe;
    if (node.group.has_value()) {
      const std::string_view group =
          graph_.colocation_names(graph_.members(*node.group).front()).front();
      told += "\ncolocated as " + std::string(group);
      stripe = "<rect" + attribute("x", left(n)) + attribute("y", top(n)) + " width=\"5\"" +
               attribute("height", kNodeHeight) + " rx=\"2\" fill=\"" +
               std::string(kStripes[node.group->index() % kStripes.size()]) + "\"/>";
    }
    out_ +=
        "<title>" + xml_text(told) + "</title><rect" + attribute("x", left(n)) +
        attribute("y", top(n)) + attribute("width", kNodeWidth) + attribute("height", kNodeHeight) +
        " rx=\"5\" stroke=\"#6b7280\" fill=\"" + std::string(device_fill(node.device)) + "\"/>" +
        stripe + "<text" + attribute("x", left(n) + 10) + attribute("y", top(n) + 15) + ">" +
        xml_text(shortened(node.name)) + "</text><text class=\"s\"" + attribute("x", left(n) + 10) +
        attribute("y", top(n) + 28) + ">" + xml_text(shortened(second)) + "</text></g>\n";
  }

  bool crosses(const PictureEdge& edge) const {
    return picture_.nodes[edge.from].device != picture_.nodes[edge.to].device;
  }

  // Down from the bottom of one node to the top of the other; an edge that goes up leaves and
  // enters at the sides.
  void write_edge(const PictureEdge& edge) {
    const bool down = layout_.row[edge.from] < layout_.row[edge.to];
    const std::int64_t x1 = left(edge.from) + (down ? kNodeWidth / 2 : kNodeWidth);
    const std::int64_t x2 = left(edge.to) + (down ? kNodeWidth / 2 : kNodeWidth);
    const std::int64_t y1 = top(edge.from) + (down ? kNodeHeight : kNodeHeight / 2);
    const std::int64_t y2 = top(edge.to) + (down ? 0 : kNodeHeight / 2);
    const std::int64_t bend = std::clamp<std::int64_t>((y2 - y1) / 2, 18, 120);
    const auto point = [](std::int64_t x, std::int64_t y) {
      return std::to_string(x) + "," + std::to_string(y);
    };
    const std::string control = down ? point(x1, y1 + bend) + " " + point(x2, y2 - bend)
                                     : point(x1 + 60, y1) + " " + point(x2 + 60, y2);
    // A pixel more for every factor of 16.
    const auto size = static_cast<std::uint64_t>(edge.bytes.count() / 1024 + 1);
    const int wide = 1 + std::min(4, (static_cast<int>(std::bit_width(size)) - 1) / 4);
    out_ += std::string("<path class=\"e") + (crosses(edge) ? " x" : "") +
            (edge.control ? " c" : "") + "\" stroke-width=\"" + std::to_string(wide) + "\" d=\"M" +
            point(x1, y1) + " C" + control + " " + point(x2, y2) + "\"/>\n";
  }

  std::vector<PictureEdge> heaviest_crossings() const {
    std::vector<PictureEdge> crossings;
    for (const PictureEdge& edge : picture_.edges)
      if (crosses(edge) && edge.bytes > Bytes(0)) crossings.push_back(edge);
    std::ranges::stable_sort(crossings, std::greater<>(), &PictureEdge::bytes);
    if (crossings.size() > kMostLabels) crossings.resize(kMostLabels);
    return crossings;
  }

  void write_label(const PictureEdge& edge) {
    const std::int64_t x = (left(edge.from) + left(edge.to) + kNodeWidth) / 2;
    const std::int64_t y = (top(edge.from) + top(edge.to) + kNodeHeight) / 2;
    out_ += "<text class=\"l\" text-anchor=\"middle\"" + attribute("x", x) + attribute("y", y + 4) +
            ">" + xml_text(short_text(edge.bytes)) + "</text>\n";
  }

  const OpGraph& graph_;
  const Plan& plan_;
  const PlanPicture picture_;
  const PictureLayout layout_;
  IdVector<DeviceId, std::int64_t> lane_left_;
  std::int64_t width_ = 0, height_ = 0;
  std::string out_;
};

}  // namespace

std::string plan_svg(const OpGraph& graph, const Plan& plan, std::size_t max_nodes) {
  return SvgWriter(graph, plan, max_nodes).write();
}

}  // namespace baechi
