// SPDX-License-Identifier: Apache-2.0
#include "baechi/verify/check_schedule.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baechi/graph/op_graph_builder.h"
#include "unit/graphs.h"

namespace baechi {
namespace {

// All operators take 10 ns, have 100 bytes permanent and 10 temporary; outputs are of 8 bytes.
//
//         +--> left ---+
//   src --+--> right --+--> sink       left -.-> far and right -.-> mark are control edges,
//         +--> far ----+               mark takes no time
//
// src and left share a colocation group, far is pinned to gpu:2, mark runs only on kind "gpu".
OpGraph diamond() {
  OpGraphBuilder builder;
  const auto add = [&](const char* name, std::optional<std::string_view> pin = {}) {
    return testing::timed(
        builder, {.name = name, .permanent = Bytes(100), .temporary = Bytes(10), .pin = pin},
        Time(10), "*");
  };
  const OpId src = add("src"), left = add("left"), right = add("right"), far = add("far", "gpu:2");
  const OpId sink = add("sink");
  const OpId mark = testing::timed(builder, {.name = "mark"}, Time(0));
  builder.add_to_group(src, "weights");
  builder.add_to_group(left, "weights");
  const TensorId shared = builder.add_output(src, Bytes(8));
  for (const OpId op : {left, right, far}) {
    builder.connect(shared, op);
    builder.connect(builder.add_output(op, Bytes(8)), sink);
  }
  builder.add_output(sink, Bytes(4));
  builder.add_control_edge(left, far);
  builder.add_control_edge(right, mark);
  return std::move(builder).build();
}

constexpr DeviceId kGpu0{0}, kGpu1{1}, kGpu2{2}, kCpu{3};
constexpr OpId kSrc{0}, kLeft{1}, kFar{3}, kSink{4}, kMark{5};

// Three GPUs of the given capacity and a CPU; every transfer takes 5 ns.
Cluster workstation(CommunicationMode mode, Bytes capacity = Bytes(338)) {
  ClusterSpec spec = uniform_cluster(
      {.count = 4, .capacity = capacity, .latency = Time(5), .communication = mode});
  spec.devices[3].name = "cpu:0";
  spec.devices[3].kind = "cpu";
  return Cluster(std::move(spec));
}

//          0    5    10   15   20   25   30   35   40   45
//   gpu:0  [  src    ][  left  ]              [  sink  ]
//   gpu:1                 [  right ][mark
//   gpu:2                      [  far   ]
//   sent             >g1  >g2       r>g0 f>g0
Schedule worked_by_hand() {
  const auto slot = [](DeviceId device, std::int64_t start, std::int64_t end) {
    return OpSlot{device, Time(start), Time(end)};
  };
  const auto transfer = [](int tensor, DeviceId from, DeviceId to, std::int64_t requested,
                           std::int64_t start) {
    return Transfer{TensorId(tensor), from, to, Time(requested), Time(start), Time(start + 5)};
  };
  return {{slot(kGpu0, 0, 10), slot(kGpu0, 10, 20), slot(kGpu1, 15, 25), slot(kGpu2, 20, 30),
           slot(kGpu0, 35, 45), slot(kGpu1, 25, 25)},
          {transfer(0, kGpu0, kGpu1, 10, 10), transfer(0, kGpu0, kGpu2, 10, 15),
           transfer(2, kGpu1, kGpu0, 25, 25), transfer(3, kGpu2, kGpu0, 30, 30)},
          Time(45)};
}

IdVector<DeviceId, Bytes> peak_bytes(const OpGraph& graph, const Cluster& cluster,
                                     const Schedule& schedule) {
  IdVector<DeviceId, Bytes> bytes;
  for (const HeldMost& most : checked_peaks(graph, cluster, schedule)) bytes.push_back(most.bytes);
  return bytes;
}

TEST_CASE("verify: a right plan breaks no rule, and its peaks are those worked out by hand") {
  const OpGraph graph = diamond();
  const Cluster cluster = workstation(CommunicationMode::kSequential);
  CHECK(check_schedule(graph, cluster, worked_by_hand()).empty());
  // gpu:0 at 35 ns: three operators, sink's temporary and output, three inputs. gpu:1 at 15 ns:
  // right, mark, the copy of src's output and right's own. gpu:2 likewise without mark.
  CHECK(peak_bytes(graph, cluster, worked_by_hand()) ==
        IdVector<DeviceId, Bytes>{Bytes(338), Bytes(126), Bytes(126), Bytes(0)});
}

struct Mutation {
  const char* what;
  void (*apply)(Schedule&);
  const char* found;  // the sentences, a line each
};

const Mutation kMutations[] = {
    {"starts before the step", [](Schedule& s) { s.slots[kSrc].start = Time(-1); },
     "operator 'src' on 'gpu:0' starts before the step does\n"
     "operator 'src' on 'gpu:0' takes 10 ns, not 11 ns"},
    {"takes longer than it costs", [](Schedule& s) { s.slots[kSink].end = Time(46); },
     "operator 'sink' on 'gpu:0' takes 10 ns, not 11 ns\n"
     "the last operator finishes at 46 ns, the plan claims a makespan of 45 ns"},
    {"takes shorter than it costs", [](Schedule& s) { s.slots[kSink].start = Time(36); },
     "operator 'sink' on 'gpu:0' takes 10 ns, not 9 ns\n"
     "operator 'sink' on 'gpu:0' starts at 36 ns although it could start at 35 ns"},
    {"a whole slot later than need be",
     [](Schedule& s) { s.slots[kSink] = {kGpu0, Time(36), Time(46)}; },
     "operator 'sink' on 'gpu:0' starts at 36 ns although it could start at 35 ns\n"
     "the last operator finishes at 46 ns, the plan claims a makespan of 45 ns"},
    {"a zero-time operator that takes time", [](Schedule& s) { s.slots[kMark].end = Time(26); },
     "operator 'mark' on 'gpu:1' takes 0 ns, not 1 ns"},
    {"before a transfer arrives",
     [](Schedule& s) {
       s.slots[kFar].start = Time(19);
       s.slots[kFar].end = Time(29);
     },
     "the transfer of the output of 'far' from 'gpu:2' to 'gpu:0' is requested at 30 ns, but "
     "operator 'far' finishes at 29 ns\n"
     "operator 'far' on 'gpu:2' starts at 19 ns, before the output of 'src' arrives at 20 ns"},
    {"before a control edge allows",
     [](Schedule& s) { s.slots[kMark] = {kGpu1, Time(24), Time(24)}; },
     "operator 'mark' on 'gpu:1' starts at 24 ns, before operator 'right', which it waits for, "
     "finishes at 25 ns\n"
     "operator 'mark' on 'gpu:1' starts at 24 ns, while operator 'right' runs there until 25 ns"},
    {"before a local input is finished",
     [](Schedule& s) { s.slots[kLeft] = {kGpu0, Time(9), Time(19)}; },
     "operator 'left' on 'gpu:0' starts at 9 ns, before operator 'src', which it waits for, "
     "finishes at 10 ns\n"
     "operator 'left' on 'gpu:0' starts at 9 ns, while operator 'src' runs there until 10 ns"},
    {"two at once on one device",
     [](Schedule& s) {
       s.slots[kMark].device = kGpu0;
       s.slots[kMark].start = s.slots[kMark].end = Time(40);
     },
     "operator 'mark' on 'gpu:0' starts at 40 ns, while operator 'sink' runs there until 45 ns"},
    {"pinned elsewhere", [](Schedule& s) { s.slots[kFar].device = kGpu1; },
     "operator 'far' is pinned to 'gpu:2' but runs on 'gpu:1'\n"
     "the output of 'src' is sent to 'gpu:2', where nobody reads it\n"
     "the transfer of the output of 'far' from 'gpu:2' to 'gpu:0' does not start at 'gpu:1', where "
     "operator 'far' runs\n"
     "operator 'far' on 'gpu:1' starts at 20 ns, while operator 'right' runs there until 25 ns\n"
     "operator 'mark' on 'gpu:1' starts at 25 ns, while operator 'far' runs there until 30 ns"},
    {"a kind that cannot run it", [](Schedule& s) { s.slots[kMark].device = kCpu; },
     "operator 'mark' has no compute time for kind 'cpu' but runs on 'cpu:0'"},
    {"a colocation group torn apart", [](Schedule& s) { s.slots[kLeft].device = kCpu; },
     "operators 'src' and 'left' must share a device but run on 'gpu:0' and 'cpu:0'\n"
     "the output of 'src' is never sent to 'cpu:0', where operator 'left' reads it\n"
     "the output of 'left' is never sent to 'gpu:0', where operator 'sink' reads it"},
    {"an unknown device", [](Schedule& s) { s.slots[kLeft].device = DeviceId(4); },
     "operator 'left' is on device number 4, the cluster has 4"},
    {"a slot too few", [](Schedule& s) { s.slots.resize(5); },
     "the plan has slots for 5 operators, the graph has 6"},
    {"a dropped transfer", [](Schedule& s) { s.transfers.erase(s.transfers.begin() + 2); },
     "the output of 'right' is never sent to 'gpu:0', where operator 'sink' reads it"},
    {"a transfer sent twice",
     [](Schedule& s) { s.transfers.insert(s.transfers.begin() + 3, s.transfers[2]); },
     "the output of 'right' is sent to 'gpu:0' twice"},
    {"a transfer that nobody reads",
     [](Schedule& s) {
       s.transfers.push_back({TensorId(3), kGpu2, kCpu, Time(30), Time(35), Time(40)});
     },
     "the output of 'far' is sent to 'cpu:0', where nobody reads it"},
    {"a transfer to where the tensor is",
     [](Schedule& s) {
       s.transfers.insert(s.transfers.begin(),
                          {TensorId(0), kGpu1, kGpu0, Time(10), Time(10), Time(15)});
     },
     "the transfer of the output of 'src' from 'gpu:1' to 'gpu:0' does not start at 'gpu:0', where "
     "operator 'src' runs\n"
     "the output of 'src' is sent to 'gpu:0', where it already is"},
    {"a transfer from another device", [](Schedule& s) { s.transfers[3].from = kCpu; },
     "the transfer of the output of 'far' from 'cpu:0' to 'gpu:0' does not start at 'gpu:2', where "
     "operator 'far' runs"},
    {"an unknown tensor", [](Schedule& s) { s.transfers[3].tensor = TensorId(9); },
     "a transfer names tensor 9 and devices 2 and 0, which are not all there"},
    {"an unknown destination", [](Schedule& s) { s.transfers[3].to = DeviceId(9); },
     "a transfer names tensor 3 and devices 2 and 9, which are not all there"},
    {"transfers out of order", [](Schedule& s) { std::swap(s.transfers[0], s.transfers[1]); },
     "the transfers are not sorted by tensor and destination: the transfer of the output of 'src' "
     "from 'gpu:0' to 'gpu:1' comes too late"},
    {"requested too early", [](Schedule& s) { s.transfers[3].requested = Time(29); },
     "the transfer of the output of 'far' from 'gpu:2' to 'gpu:0' is requested at 29 ns, but "
     "operator 'far' finishes at 30 ns"},
    {"started before its producer finished",
     [](Schedule& s) {
       s.transfers[2].start = Time(24);
       s.transfers[2].end = Time(29);
     },
     "the transfer of the output of 'right' from 'gpu:1' to 'gpu:0' starts at 24 ns, before it is "
     "requested at 25 ns"},
    {"a transfer that is too quick", [](Schedule& s) { s.transfers[3].end = Time(34); },
     "the transfer of the output of 'far' from 'gpu:2' to 'gpu:0' takes 5 ns, not 4 ns\n"
     "operator 'sink' on 'gpu:0' starts at 35 ns although it could start at 34 ns"},
    {"a transfer that waits for nothing",
     [](Schedule& s) {
       s.transfers[3].start = Time(31);
       s.transfers[3].end = Time(36);
     },
     "operator 'sink' on 'gpu:0' starts at 35 ns, before the output of 'far' arrives at 36 ns\n"
     "the transfer of the output of 'far' from 'gpu:2' to 'gpu:0' starts at 31 ns although it "
     "could start at 30 ns"},
    {"a queue jumped",
     [](Schedule& s) {
       std::swap(s.transfers[0].start, s.transfers[1].start);
       std::swap(s.transfers[0].end, s.transfers[1].end);
     },
     "operator 'right' on 'gpu:1' starts at 15 ns, before the output of 'src' arrives at 20 ns\n"
     "the transfer of the output of 'src' from 'gpu:0' to 'gpu:1' starts at 15 ns although it "
     "could start at 10 ns\n"
     "the transfer of the output of 'src' from 'gpu:0' to 'gpu:2' starts at 10 ns, before its "
     "turn: the transfer of the output of 'src' from 'gpu:0' to 'gpu:1' comes first and takes "
     "until 20 ns"},
    {"two transfers in one queue",
     [](Schedule& s) {
       s.transfers[1].start = Time(14);
       s.transfers[1].end = Time(19);
     },
     "the transfer of the output of 'src' from 'gpu:0' to 'gpu:2' starts at 14 ns, before its "
     "turn: the transfer of the output of 'src' from 'gpu:0' to 'gpu:1' comes first and takes "
     "until 15 ns"},
    {"a makespan too short", [](Schedule& s) { s.makespan = Time(44); },
     "the last operator finishes at 45 ns, the plan claims a makespan of 44 ns"},
    {"a makespan too long", [](Schedule& s) { s.makespan = Time(46); },
     "the last operator finishes at 45 ns, the plan claims a makespan of 46 ns"},
};

std::string joined(const std::vector<std::string>& sentences) {
  std::string text;
  for (const std::string& sentence : sentences) text += (text.empty() ? "" : "\n") + sentence;
  return text;
}

TEST_CASE("verify: every way to break a plan is found, and told in the right words") {
  for (const Mutation& mutation : kMutations) {
    Schedule schedule = worked_by_hand();
    mutation.apply(schedule);
    CAPTURE(mutation.what);
    CHECK(joined(check_schedule(diamond(), workstation(CommunicationMode::kSequential),
                                schedule)) == mutation.found);
  }
}

TEST_CASE("verify: one byte too little is found on every device, unless capacities are off") {
  const OpGraph graph = diamond();
  const char* const found[] = {
      "device 'gpu:0' holds 338 bytes at 35 ns, 1 bytes more than its capacity",
      "device 'gpu:1' holds 126 bytes at 15 ns, 1 bytes more than its capacity",
      "device 'gpu:2' holds 126 bytes at 20 ns, 1 bytes more than its capacity",
  };
  const std::int64_t peaks[] = {338, 126, 126};
  for (std::size_t device = 0; device < 3; ++device) {
    CAPTURE(device);
    ClusterSpec spec = workstation(CommunicationMode::kSequential).spec();
    spec.devices[device].capacity = Bytes(peaks[device]);
    CHECK(joined(check_schedule(graph, Cluster(spec), worked_by_hand())).empty());
    spec.devices[device].capacity = Bytes(peaks[device] - 1);
    CHECK(joined(check_schedule(graph, Cluster(spec), worked_by_hand())) == found[device]);
    CHECK(check_schedule(graph, Cluster(spec), worked_by_hand(), {.capacities = false}).empty());
  }
}

TEST_CASE("verify: the communication mode and the channels decide which transfers wait") {
  const OpGraph graph = diamond();
  Schedule together = worked_by_hand();  // both copies of src's output leave at once
  together.transfers[1].start = Time(10);
  together.transfers[1].end = Time(15);
  const std::string overtaken =
      "the transfer of the output of 'src' from 'gpu:0' to 'gpu:2' starts at 10 ns, before its "
      "turn: the transfer of the output of 'src' from 'gpu:0' to 'gpu:1' comes first and takes "
      "until 15 ns";
  CHECK(joined(check_schedule(graph, workstation(CommunicationMode::kSequential), together)) ==
        overtaken);
  CHECK(joined(check_schedule(graph, workstation(CommunicationMode::kDuplex), together)) ==
        overtaken);
  CHECK(joined(check_schedule(graph, workstation(CommunicationMode::kParallel), together)).empty());
  CHECK(
      joined(check_schedule(graph, workstation(CommunicationMode::kParallel), worked_by_hand())) ==
      "the transfer of the output of 'src' from 'gpu:0' to 'gpu:2' starts at 15 ns although it "
      "could start at 10 ns");
}

// left and right finish at one moment on gpu:0 and gpu:1 and swap their outputs.
TEST_CASE(
    "verify: one device may send and receive at once in duplex mode, not in sequential mode") {
  OpGraphBuilder builder;
  const OpId left = testing::timed(builder, {.name = "left"}, Time(10));
  const OpId right = testing::timed(builder, {.name = "right"}, Time(10));
  const OpId after_left = testing::timed(builder, {.name = "after left"}, Time(10));
  const OpId after_right = testing::timed(builder, {.name = "after right"}, Time(10));
  builder.connect(builder.add_output(left, Bytes(1)), after_left);
  builder.connect(builder.add_output(right, Bytes(1)), after_right);
  const OpGraph graph = std::move(builder).build();
  const auto swapped = [](std::int64_t second) {
    Schedule plan;
    plan.slots = {{kGpu0, Time(0), Time(10)},
                  {kGpu1, Time(0), Time(10)},
                  {kGpu1, Time(15), Time(25)},
                  {kGpu0, Time(second + 5), Time(second + 15)}};
    plan.transfers = {{TensorId(0), kGpu0, kGpu1, Time(10), Time(10), Time(15)},
                      {TensorId(1), kGpu1, kGpu0, Time(10), Time(second), Time(second + 5)}};
    plan.makespan = Time(second + 15);
    return plan;
  };
  ClusterSpec duplex = workstation(CommunicationMode::kDuplex).spec();
  CHECK(joined(check_schedule(graph, Cluster(duplex), swapped(10))).empty());
  CHECK(joined(check_schedule(graph, workstation(CommunicationMode::kSequential), swapped(15)))
            .empty());
  CHECK(joined(check_schedule(graph, workstation(CommunicationMode::kSequential), swapped(10))) ==
        "the transfer of the output of 'right' from 'gpu:1' to 'gpu:0' starts at 10 ns, before "
        "its turn: the transfer of the output of 'left' from 'gpu:0' to 'gpu:1' comes first and "
        "takes until 15 ns");
  duplex.links[0].channels = {"bus"};
  CHECK(joined(check_schedule(graph, Cluster(duplex), swapped(15))).empty());
  CHECK_FALSE(joined(check_schedule(graph, Cluster(duplex), swapped(10))).empty());
}

// src (10 ns) and flash (no time, after src) finish at one moment; both send to gpu:1. flash's
// output has the smaller id.
TEST_CASE("verify: of one moment, requests of operators that took time are served first") {
  OpGraphBuilder builder;
  const OpId flash = builder.add_operator({.name = "flash"});
  const OpId src = builder.add_operator({.name = "src"});
  const OpId sink = builder.add_operator({.name = "sink"});
  builder.set_time(flash, "gpu", Time(0));
  builder.set_time(src, "gpu", Time(10));
  builder.set_time(sink, "gpu", Time(10));
  builder.connect(builder.add_output(flash, Bytes(1)), sink);
  builder.connect(builder.add_output(src, Bytes(1)), sink);
  builder.add_control_edge(src, flash);
  const OpGraph graph = std::move(builder).build();
  const auto served = [](std::int64_t of_flash, std::int64_t of_src) {
    Schedule plan;
    plan.slots = {
        {kGpu0, Time(10), Time(10)}, {kGpu0, Time(0), Time(10)}, {kGpu1, Time(20), Time(30)}};
    plan.transfers = {{TensorId(0), kGpu0, kGpu1, Time(10), Time(of_flash), Time(of_flash + 5)},
                      {TensorId(1), kGpu0, kGpu1, Time(10), Time(of_src), Time(of_src + 5)}};
    plan.makespan = Time(30);
    return plan;
  };
  const Cluster cluster = workstation(CommunicationMode::kSequential);
  CHECK(joined(check_schedule(graph, cluster, served(15, 10))).empty());
  CHECK_FALSE(joined(check_schedule(graph, cluster, served(10, 15))).empty());
}

TEST_CASE("verify: memory mode retain keeps forward outputs and their copies, not backward ones") {
  // f -> b with b the backward of f, both on gpu:0, then u on gpu:1 reads f and b.
  const auto peaks = [](MemoryMode mode) {
    OpGraphBuilder builder;
    const OpId f = testing::timed(builder, {.name = "f"}, Time(10));
    const OpId b = testing::timed(builder, {.name = "b", .forward = f}, Time(10));
    const OpId u = testing::timed(builder, {.name = "u", .backward = true}, Time(10));
    const OpId v = testing::timed(builder, {.name = "v", .backward = true}, Time(10));
    const TensorId f_out = builder.add_output(f, Bytes(1));
    const TensorId b_out = builder.add_output(b, Bytes(10));
    const TensorId u_out = builder.add_output(u, Bytes(100));
    builder.connect(f_out, b);
    builder.connect(f_out, u);
    builder.connect(b_out, u);
    builder.connect(u_out, v);
    builder.add_output(v, Bytes(1000));
    builder.set_memory_mode(mode);
    const OpGraph graph = std::move(builder).build();
    Schedule plan;
    plan.slots = {{kGpu0, Time(0), Time(10)},
                  {kGpu0, Time(10), Time(20)},
                  {kGpu1, Time(25), Time(35)},
                  {kGpu1, Time(35), Time(45)}};
    plan.transfers = {{TensorId(0), kGpu0, kGpu1, Time(10), Time(10), Time(15)},
                      {TensorId(1), kGpu0, kGpu1, Time(20), Time(20), Time(25)}};
    plan.makespan = Time(45);
    const Cluster cluster = workstation(CommunicationMode::kSequential, Bytes(10'000));
    CHECK(joined(check_schedule(graph, cluster, plan)).empty());
    return peak_bytes(graph, cluster, plan);
  };
  // gpu:1 at 35 ns: u's and v's outputs, and with retain the copy of f's.
  CHECK(peaks(MemoryMode::kDataflow) ==
        IdVector<DeviceId, Bytes>{Bytes(11), Bytes(1100), Bytes(0), Bytes(0)});
  CHECK(peaks(MemoryMode::kRetain) ==
        IdVector<DeviceId, Bytes>{Bytes(11), Bytes(1101), Bytes(0), Bytes(0)});
}

TEST_CASE("verify: it stops after as many sentences as asked for") {
  Schedule schedule = worked_by_hand();
  for (OpSlot& slot : schedule.slots) slot.end += Time(1);
  const Cluster cluster = workstation(CommunicationMode::kSequential);
  CHECK(check_schedule(diamond(), cluster, schedule, {.max_violations = 3}).size() == 3);
  CHECK(check_schedule(diamond(), cluster, schedule).size() > 6);
}

}  // namespace
}  // namespace baechi
