// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/profile/onnx_runtime_profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/io/json/json_reader.h"

namespace baechi {
namespace {

constexpr std::string_view kKernel = "_kernel_time";  // behind a node's name

struct Event {
  std::string category, name, provider;
  std::optional<Time> duration;
};

std::string_view kind_of(std::string_view provider) {
  constexpr std::array<std::string_view, 5> kOnCpu{
      "CPUExecutionProvider", "DnnlExecutionProvider", "XnnpackExecutionProvider",
      "ACLExecutionProvider", "ArmNNExecutionProvider"};
  if (std::ranges::find(kOnCpu, provider) != kOnCpu.end()) return "cpu";
  if (provider == "QNNExecutionProvider" || provider == "VitisAIExecutionProvider") return "npu";
  return "gpu";
}

Time read_microseconds(JsonReader& json) {
  const double microseconds = json.read_double();
  if (!(microseconds >= 0) || microseconds > 1e12)
    json.fail("expected microseconds from 0 to 10^12");
  return Time(std::llround(microseconds * 1000));
}

Event read_event(JsonReader& json) {
  Event event;
  json.enter_object();
  while (json.next_key()) {
    const std::string_view key = json.key();
    if (key == "cat") {
      event.category = json.read_string();
    } else if (key == "name") {
      event.name = json.read_string();
    } else if (key == "dur") {
      event.duration = read_microseconds(json);
    } else if (key == "args" && json.peek() == JsonReader::Type::kObject) {
      json.enter_object();
      while (json.next_key()) {
        if (json.key() == "provider")
          event.provider = json.read_string();
        else
          json.skip_value();
      }
    } else {
      json.skip_value();
    }
  }
  return event;
}

// The times of one node on one kind of device, by run; in a loop it runs several times in a run.
using NodeKey = std::pair<std::string, std::string_view>;
using NodeTimes = std::map<std::size_t, Time>;

class Measurements {
 public:
  void add(const Event& event) {
    if (event.category == "Session" && event.name == "model_run") ++runs_;
    if (event.category != "Node" || !event.duration.has_value()) return;
    const std::string_view name = event.name;
    if (!name.ends_with(kKernel) || name.size() == kKernel.size()) return;
    const NodeKey key(name.substr(0, name.size() - kKernel.size()), kind_of(event.provider));
    const auto [at, added] = number_.emplace(key, times_.size());
    if (added) times_.emplace_back(key, NodeTimes());
    times_[at->second].second[runs_] += *event.duration;
  }

  bool empty() const { return times_.empty(); }

  Profile profile() const {
    Profile profile;
    const std::size_t counted = runs_ > 1 ? runs_ - 1 : 1;
    profile.source = "ONNX Runtime, " + std::to_string(counted) + (counted == 1 ? " run" : " runs");
    std::map<std::string, std::size_t> number;
    for (const auto& [key, times] : times_) {
      const auto [at, added] = number.emplace(key.first, profile.operators.size());
      if (added) profile.operators.emplace_back().name = key.first;
      profile.operators[at->second].times.push_back({std::string(key.second), median(times)});
    }
    return profile;
  }

 private:
  Time median(const NodeTimes& times) const {
    std::vector<Time> kept;
    for (const auto& [run, time] : times)
      if (run > 0 || times.size() == 1) kept.push_back(time);
    std::ranges::sort(kept);
    return kept[(kept.size() - 1) / 2];
  }

  std::size_t runs_ = 0;  // that have ended
  std::map<NodeKey, std::size_t> number_;
  std::vector<std::pair<NodeKey, NodeTimes>> times_;
};

}  // namespace

bool looks_like_onnx_runtime_profile(std::string_view text) {
  constexpr const char* kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos || text[begin] != '[') return false;
  const std::size_t first = text.find_first_not_of(kSpace, begin + 1);
  return first != text.npos && (text[first] == '{' || text[first] == ']');
}

Profile parse_onnx_runtime_profile(std::string_view text, const std::string& place) {
  JsonReader json(text, place);
  Measurements measurements;
  json.read_array([&] { measurements.add(read_event(json)); });
  json.finish();
  if (measurements.empty())
    throw InputError(place,
                     "no node was measured: is this a profile of ONNX Runtime, of a model whose "
                     "nodes have names?");
  return measurements.profile();
}

}  // namespace baechi
