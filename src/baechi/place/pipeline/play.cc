// SPDX-License-Identifier: Apache-2.0
#include "baechi/place/pipeline/play.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <tuple>

#include "baechi/cluster/transfer_queues.h"
#include "baechi/simulate/link_clocks.h"

namespace baechi::pipeline {
namespace {

// In the order in which one moment's events happen.
enum class EventKind : std::uint8_t { kFinish, kReceive, kLook };

struct Event {
  Time at;
  EventKind kind;
  DeviceId device;
  Action action;  // that finishes
  Bytes bytes;    // that a message begins to hold

  friend bool operator>(const Event& a, const Event& b) {
    return std::tie(a.at, a.kind, a.device, a.action.part, a.action.micro_batch) >
           std::tie(b.at, b.kind, b.device, b.action.part, b.action.micro_batch);
  }
};

struct PartState {
  std::uint32_t next = 0;      // the micro-batch that it will run next
  std::uint32_t finished = 0;  // micro-batches
};
struct CopyState {
  std::uint32_t waits_for = 0;
  Time ready;
};
struct DeviceState {
  bool busy = false;
  Time last;
  Bytes held, peak;
  Bytes reserved;           // for later parts of micro-batches that have begun here
  Bytes margin;             // for what comes unasked
  std::uint32_t begun = 0;  // micro-batches
  std::size_t done = 0;     // of a given list
};

}  // namespace

struct Player::State {
  explicit State(const Cluster& cluster)
      : clocks(cluster),
        queues(cluster),
        sends_block(cluster.sends_block()),
        devices(cluster.num_devices()) {}

  void prepare(const StageGraph& of);
  void run();
  void finish(const Event& event);
  void arrive(PartId part, std::uint32_t micro_batch, Time at);
  void look(DeviceId device, Time now);
  void start(DeviceId device, Action action, Time now);
  std::optional<Action> next_given(DeviceId device, Time now);
  std::optional<Action> next_by_rule(DeviceId device, Time now);
  bool may_begin(DeviceId device, PartId part, std::uint32_t micro_batch);
  bool force();
  void end();

  bool ready(PartId part, std::uint32_t micro_batch, Time now) const {
    const CopyState& copy = copies[part.index() * graph->micro_batches() + micro_batch];
    return copy.waits_for == 0 && copy.ready <= now;
  }
  void hold(DeviceState& device, Bytes bytes) {
    device.held += bytes;
    device.peak = std::max(device.peak, device.held);
  }
  // What is reserved for a run of the part: what it takes or, if eager, what it leaves behind.
  Bytes room_for(PartId part) const {
    const StagePart& of = (*graph)[part];
    if (rule == nullptr || !rule->eager) return received[part] + of.takes;
    return std::max(Bytes(0), received[part] + of.takes - of.gives_back);
  }
  std::uint32_t sent_back(StageId stage) const {
    const PartId input = StageGraph::part(stage, Phase::kInput);
    if ((*graph)[input].present) return parts[input].finished;
    const PartId weight = StageGraph::part(stage, Phase::kWeight);
    return (*graph)[weight].present ? parts[weight].finished
                                    : parts[StageGraph::part(stage, Phase::kForward)].next;
  }

  simulation::LinkClocks clocks;
  TransferQueues queues;
  bool sends_block;
  const StageGraph* graph = nullptr;
  const Rule* rule = nullptr;      // or
  const Actions* given = nullptr;  // what to do
  const IdVector<DeviceId, Bytes>* room = nullptr;
  IdVector<PartId, PartState> parts;
  IdVector<PartId, Bytes> received;  // with messages, for one run of the part
  IdVector<DeviceId, Bytes> need;    // of one micro-batch, over all parts of the device
  std::vector<CopyState> copies;
  IdVector<DeviceId, DeviceState> devices;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  std::size_t unfinished = 0;
  Played played;
};

void Player::State::prepare(const StageGraph& of) {
  graph = &of;
  queues.clear();
  parts.assign(of.parts().size(), {});
  received.assign(of.parts().size(), Bytes(0));
  need.assign(devices.size(), Bytes(0));
  copies.resize(of.parts().size() * of.micro_batches());
  devices.assign(devices.size(), {});
  events = {};
  unfinished = 0;
  played = {};
  played.actions = Actions(devices.size());
  played.peaks.assign(devices.size(), Bytes(0));
  for (const PartId part : of.parts()) {
    if (of[part].present) unfinished += of.micro_batches();
    for (std::uint32_t m = 0; m < of.micro_batches(); ++m)
      copies[part.index() * of.micro_batches() + m] = {of[part].waits_for, Time(0)};
    for (const std::uint32_t number : of[part].messages) {
      const StageMessage& message = of.message(number);
      received[*std::min_element(message.readers.begin(), message.readers.end())] += message.held;
    }
  }
  for (const DeviceId device : devices.keys()) {
    DeviceState& state = devices[device];
    hold(state, of.per_step(device).held);
    state.last = of.per_step(device).before;
    Bytes passing;  // the most that a part holds and gives back itself
    for (const PartId part : of.parts_on(device)) {
      const Bytes more = std::max(Bytes(0), of[part].takes - of[part].gives_back);
      passing = std::max(passing, of[part].rise - more);
      if (of[part].phase == Phase::kForward) state.margin += received[part];
      need[device] += room_for(part);
    }
    state.margin += passing;
    if (!of.parts_on(device).empty())
      events.push({state.last, EventKind::kLook, device, {}, Bytes(0)});
  }
}

void Player::State::run() {
  do {
    while (!events.empty()) {
      const Event event = events.top();
      events.pop();
      if (event.kind == EventKind::kFinish)
        finish(event);
      else if (event.kind == EventKind::kReceive)
        hold(devices[event.device], event.bytes);
      else
        look(event.device, event.at);
    }
  } while (unfinished > 0 && force());
  end();
}

void Player::State::finish(const Event& event) {
  const StagePart& part = (*graph)[event.action.part];
  DeviceState& device = devices[event.device];
  device.busy = false;
  device.last = event.at;
  device.held += part.takes - part.gives_back - part.rise;
  ++parts[event.action.part].finished;
  --unfinished;
  for (const PartId follower : part.followers) arrive(follower, event.action.micro_batch, event.at);
  for (const std::uint32_t number : part.messages) {
    const StageMessage& message = graph->message(number);
    const auto service = queues.serve(event.device, message.to, device.last,
                                      clocks.transfer_time(event.device, message.to, message.size));
    events.push({service.start, EventKind::kReceive, message.to, event.action, message.held});
    for (const PartId reader : message.readers)
      arrive(reader, event.action.micro_batch, service.end);
    if (sends_block) device.last = service.end;
  }
  events.push({device.last, EventKind::kLook, event.device, {}, Bytes(0)});
}

void Player::State::arrive(PartId part, std::uint32_t micro_batch, Time at) {
  CopyState& copy = copies[part.index() * graph->micro_batches() + micro_batch];
  copy.ready = std::max(copy.ready, at);
  if (--copy.waits_for == 0)
    events.push({copy.ready, EventKind::kLook, (*graph)[part].device, {}, Bytes(0)});
}

void Player::State::look(DeviceId device, Time now) {
  if (devices[device].busy || now < devices[device].last) return;
  const std::optional<Action> action =
      given != nullptr ? next_given(device, now) : next_by_rule(device, now);
  if (action.has_value()) start(device, *action, now);
}

std::optional<Action> Player::State::next_given(DeviceId device, Time now) {
  const std::vector<Action>& list = (*given)[device];
  DeviceState& state = devices[device];
  if (state.done == list.size()) return std::nullopt;
  const Action action = list[state.done];
  if (!ready(action.part, action.micro_batch, now)) return std::nullopt;
  ++state.done;
  return action;
}

std::optional<Action> Player::State::next_by_rule(DeviceId device, Time now) {
  using Rank = std::tuple<int, std::uint32_t, std::int64_t>;
  std::optional<std::pair<Rank, Action>> best;
  for (const PartId part : graph->parts_on(device)) {
    const std::uint32_t micro_batch = parts[part].next;
    if (micro_batch == graph->micro_batches() || !ready(part, micro_batch, now)) continue;
    const StagePart& of = (*graph)[part];
    int urgency = 1;
    auto place = static_cast<std::int64_t>(of.stage.value());
    if (of.phase == Phase::kForward) {
      if (!may_begin(device, part, micro_batch)) continue;
      urgency = rule->forward_first ? 0 : 2;
      if (rule->later_stages_first) place = -place;
    } else if (of.phase == Phase::kWeight) {
      urgency = rule->weights_at_once ? -1 : 3;
    }
    const Rank rank{urgency, micro_batch, place};
    if (!best.has_value() || rank < best->first) best.emplace(rank, Action{part, micro_batch});
  }
  if (!best.has_value()) return std::nullopt;
  return best->second;
}

bool Player::State::may_begin(DeviceId device, PartId part, std::uint32_t micro_batch) {
  const StageId stage = (*graph)[part].stage;
  if (micro_batch >= sent_back(stage) + rule->most_begun[stage]) return false;
  const DeviceState& state = devices[device];
  if (micro_batch < state.begun) return true;  // its room is reserved
  const bool has_room =
      state.held + state.reserved + need[device] + state.margin <= (*room)[device];
  if (!has_room) played.lacked_room = true;
  return has_room;
}

void Player::State::start(DeviceId device, Action action, Time now) {
  const StagePart& part = (*graph)[action.part];
  DeviceState& state = devices[device];
  state.busy = true;
  ++parts[action.part].next;
  if (action.micro_batch >= state.begun) {
    state.begun = action.micro_batch + 1;
    state.reserved += need[device];
  }
  state.reserved -= room_for(action.part);
  hold(state, part.rise);
  played.actions[device].push_back(action);
  events.push({now + part.time, EventKind::kFinish, device, action, Bytes(0)});
}

// No rule allows anything: begins the first micro-batch that some device has ready, at the price
// of its memory.
bool Player::State::force() {
  if (given != nullptr) return false;
  Time now;
  for (const DeviceState& device : devices) now = std::max(now, device.last);
  std::optional<Action> first;
  for (const PartId part : graph->parts()) {
    const std::uint32_t micro_batch = parts[part].next;
    if (!(*graph)[part].present || micro_batch == graph->micro_batches()) continue;
    if (!ready(part, micro_batch, now)) continue;
    if (!first.has_value() || micro_batch < first->micro_batch) first = Action{part, micro_batch};
  }
  if (!first.has_value()) return false;
  start((*graph)[first->part].device, *first, now);
  return true;
}

void Player::State::end() {
  played.finished = unfinished == 0;
  for (const DeviceId device : devices.keys()) {
    const StageGraph::PerStep& once = graph->per_step(device);
    played.peaks[device] = std::max(devices[device].peak, once.held + once.passing);
    played.makespan = std::max(played.makespan, devices[device].last + once.after);
  }
}

Player::Player(const Cluster& cluster) : state_(std::make_unique<State>(cluster)) {}
Player::~Player() = default;
Player::Player(Player&&) noexcept = default;

const Played& Player::by_rule(const StageGraph& graph, const Rule& rule,
                              const IdVector<DeviceId, Bytes>& room) {
  state_->rule = &rule;
  state_->given = nullptr;
  state_->room = &room;
  state_->prepare(graph);
  state_->run();
  return state_->played;
}

const Played& Player::as_given(const StageGraph& graph, const Actions& actions) {
  state_->rule = nullptr;
  state_->given = &actions;
  state_->prepare(graph);
  state_->run();
  return state_->played;
}

}  // namespace baechi::pipeline
