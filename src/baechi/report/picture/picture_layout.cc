// SPDX-License-Identifier: Apache-2.0
#include "baechi/report/picture/picture_layout.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace baechi {
namespace {

constexpr int kSweeps = 6;
constexpr std::size_t kMostInRow = 5;  // of one device

class LayeredLayout {
 public:
  LayeredLayout(const PlanPicture& picture, std::size_t num_devices)
      : picture_(picture), neighbours_(picture.nodes.size()) {
    result_.row.assign(picture.nodes.size(), 0);
    result_.column.assign(picture.nodes.size(), 0);
    result_.lanes.assign(num_devices, {});
    for (const PictureEdge& edge : picture.edges) {
      neighbours_[edge.from].push_back(edge.to);
      neighbours_[edge.to].push_back(edge.from);
    }
  }

  PictureLayout run() {
    find_rows();
    find_cells();
    find_lanes();
    for (int sweep = 0; sweep < kSweeps; ++sweep) straighten();
    place();
    return std::move(result_);
  }

 private:
  using Cell = std::pair<DeviceId, std::size_t>;  // a device's nodes in a row

  // The longest path to each node, over the edges that follow the order of starts.
  void find_rows() {
    std::vector<std::size_t> order(picture_.nodes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t n) { return picture_.nodes[n].start; });
    std::vector<std::size_t> rank(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) rank[order[i]] = i;
    std::vector<std::vector<std::size_t>> next(order.size());
    for (const PictureEdge& edge : picture_.edges)
      if (rank[edge.from] < rank[edge.to]) next[edge.from].push_back(edge.to);
    for (const std::size_t node : order)
      for (const std::size_t child : next[node])
        result_.row[child] = std::max(result_.row[child], result_.row[node] + 1);
    for (const std::size_t row : result_.row) result_.rows = std::max(result_.rows, row + 1);
    // What waits for nothing stands right above what uses it first; what nothing uses, below all.
    std::vector<bool> fed(order.size(), false);
    for (const auto& children : next)
      for (const std::size_t child : children) fed[child] = true;
    for (const std::size_t node : order) {
      if (fed[node]) continue;
      std::size_t first = neighbours_[node].empty() ? result_.rows + 1 : result_.row[node] + 1;
      if (!next[node].empty()) {
        first = result_.rows;
        for (const std::size_t child : next[node]) first = std::min(first, result_.row[child]);
      }
      result_.row[node] = first - 1;
    }
  }

  // A row that is too wide on some device becomes several.
  void find_cells() {
    std::map<std::size_t, std::map<DeviceId, std::vector<std::size_t>>> rows;
    for (std::size_t n = 0; n < picture_.nodes.size(); ++n)
      rows[result_.row[n]][picture_.nodes[n].device].push_back(n);
    result_.rows = 0;
    for (const auto& [row, by_device] : rows) {
      std::size_t height = 1;
      for (const auto& [device, nodes] : by_device)
        height = std::max(height, (nodes.size() + kMostInRow - 1) / kMostInRow);
      for (const auto& [device, nodes] : by_device)
        for (std::size_t i = 0; i < nodes.size(); ++i) {
          result_.row[nodes[i]] = result_.rows + i / kMostInRow;
          cells_[{device, result_.row[nodes[i]]}].push_back(nodes[i]);
        }
      result_.rows += height;
    }
  }

  void find_lanes() {
    for (const auto& [cell, nodes] : cells_) {
      LaneExtent& lane = result_.lanes[cell.first];
      lane.width = std::max(lane.width, nodes.size());
    }
    for (LaneExtent& lane : result_.lanes) {
      lane.first = result_.columns;
      result_.columns += lane.width;
    }
    place();
  }

  // Orders the nodes of each cell by the mean column of what they are connected to.
  void straighten() {
    for (auto& [cell, nodes] : cells_) {
      std::vector<std::pair<double, std::size_t>> wanted;
      for (const std::size_t node : nodes) {
        double sum = 0;
        for (const std::size_t other : neighbours_[node])
          sum += static_cast<double>(result_.column[other]);
        const auto count = static_cast<double>(neighbours_[node].size());
        wanted.emplace_back(count > 0 ? sum / count : static_cast<double>(result_.column[node]),
                            node);
      }
      std::ranges::stable_sort(wanted, {}, &std::pair<double, std::size_t>::first);
      for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i] = wanted[i].second;
    }
    place();
  }

  // In the middle of the lane.
  void place() {
    for (const auto& [cell, nodes] : cells_) {
      const LaneExtent& lane = result_.lanes[cell.first];
      const std::size_t left = lane.first + (lane.width - nodes.size()) / 2;
      for (std::size_t i = 0; i < nodes.size(); ++i) result_.column[nodes[i]] = left + i;
    }
  }

  const PlanPicture& picture_;
  std::vector<std::vector<std::size_t>> neighbours_;
  std::map<Cell, std::vector<std::size_t>> cells_;
  PictureLayout result_;
};

}  // namespace

PictureLayout layout_picture(const PlanPicture& picture, std::size_t num_devices) {
  return LayeredLayout(picture, num_devices).run();
}

}  // namespace baechi
