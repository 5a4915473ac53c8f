// SPDX-License-Identifier: Apache-2.0
// Streams, events and clocks; see streams.h.
#include "streams.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "capture.h"
#include "task_queue.h"

namespace baechi::sim {
namespace {

std::atomic<bool> is_forked = false;
std::atomic<std::int64_t> host_ns = 0;

// One transfer at a time; `taken` is when the virtual clock has it busy: ends by starts.
struct Port {
  std::mutex mutex;
  std::map<std::int64_t, std::int64_t> taken;

  // The first moment from `start` on at which it is free for so long.
  std::int64_t free_from(std::int64_t start, std::int64_t duration) const {
    auto next = taken.upper_bound(start);
    if (next != taken.begin()) start = std::max(start, std::prev(next)->second);
    for (; next != taken.end() && next->first < start + duration; ++next) start = next->second;
    return start;
  }

  void take(std::int64_t start, std::int64_t end) {
    if (start == end) return;
    if (const auto next = taken.find(end); next != taken.end()) {
      end = next->second;
      taken.erase(next);
    }
    const auto later = taken.lower_bound(start);
    if (later != taken.begin() && std::prev(later)->second == start)
      std::prev(later)->second = end;
    else
      taken.emplace(start, end);
  }
};

// The first moment from `start` on at which both are free for so long: what was asked for earlier
// and is ready later does not hold up a transfer that fits in before it.
std::int64_t free_from(const Port& out, const Port& in, std::int64_t start, std::int64_t duration) {
  for (;;) {
    const std::int64_t found = in.free_from(out.free_from(start, duration), duration);
    if (found == start) return start;
    start = found;
  }
}

struct Device {
  std::array<std::unique_ptr<Queue>, kStreams> queues;
  std::atomic<int> next_in_pool = 0;
  Port out, in;
};

std::array<Device, kMaxDevices>& all_devices() {
  static auto* all = [] {
    auto* made = new std::array<Device, kMaxDevices>;
    for (int d = 0; d < kMaxDevices; ++d)
      for (int s = 0; s < kStreams; ++s)
        (*made)[static_cast<std::size_t>(d)].queues[static_cast<std::size_t>(s)] =
            std::make_unique<Queue>(d, s);
    pthread_atfork(nullptr, nullptr, [] { is_forked = true; });
    return made;
  }();
  return *all;
}

Queue& queue_of(c10::Stream stream) {
  const auto device = static_cast<std::size_t>(stream.device_index());
  const auto id = static_cast<std::size_t>(stream.id());
  TORCH_CHECK(device < kMaxDevices && id < kStreams, "not a stream of a simulated device");
  return *all_devices()[device].queues[id];
}

template <class Body>
void for_each_queue(Body body) {
  for (Device& device : all_devices())
    for (auto& queue : device.queues) body(*queue);
}

void advance(std::atomic<std::int64_t>& clock, std::int64_t to) {
  std::int64_t now = clock;
  while (now < to && !clock.compare_exchange_weak(now, to)) {
  }
}

// The ports that a transfer occupies; none in parallel mode.
std::pair<Port*, Port*> ports(c10::Stream source, c10::Stream target) {
  Device& from = all_devices()[static_cast<std::size_t>(source.device_index())];
  Device& to = all_devices()[static_cast<std::size_t>(target.device_index())];
  switch (settings().communication) {
    case Communication::kParallel:
      return {nullptr, nullptr};
    case Communication::kSequential:
      return {&from.out, &to.out};  // the same port both ways
    case Communication::kDuplex:
      return {&from.out, &to.in};
  }
  return {nullptr, nullptr};
}

void check_not_forked() {
  TORCH_CHECK(!is_forked,
              "simulated devices cannot be used in a forked child process; use the 'spawn' start "
              "method, or keep tensors of simulated devices out of the workers");
}

thread_local int this_device = 0;
thread_local std::array<std::int64_t, kMaxDevices> this_stream{};

struct Kept {
  MarkPtr until;
  std::shared_ptr<void> reference;
};
std::mutex kept_mutex;
std::vector<Kept>& kept() {
  static auto* all = new std::vector<Kept>;
  return *all;
}

// Says whether there were any.
bool drop_done() {
  std::vector<Kept> done;  // destroyed after the lock is gone
  const std::lock_guard lock(kept_mutex);
  auto& all = kept();
  const auto first =
      std::partition(all.begin(), all.end(), [](const Kept& k) { return !k.until->passed.load(); });
  done.assign(std::make_move_iterator(first), std::make_move_iterator(all.end()));
  all.erase(first, all.end());
  return !done.empty();
}

std::int64_t waited_for(std::int64_t duration_ns) {
  return settings().virtual_clock ? 0 : duration_ns;
}

std::mutex& clock_of_ports() {
  static std::mutex mutex;
  return mutex;
}

// The task holds both ports for its whole duration.
Task exclusive(Port& out, Port& in, std::int64_t duration_ns, Task task) {
  return [&out, &in, duration_ns, task = std::move(task)] {
    const std::scoped_lock lock(out.mutex, in.mutex);
    const auto start = Clock::now();
    task();
    std::this_thread::sleep_until(start + std::chrono::nanoseconds(duration_ns));
  };
}

std::int64_t processor_time_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

struct Stopwatch {
  std::int64_t epoch = -1;
  std::int64_t since = 0;
  std::int64_t before = 0;  // until the last pause

  void pause() {
    const std::int64_t now = processor_time_ns();
    before += now - std::exchange(since, now);
  }
};
thread_local Stopwatch stopwatch;
std::atomic<std::int64_t> epoch = 0;  // of the clock: nothing was measured before, in any thread

bool is_measured() {
  return settings().host_call_ns == kMeasured || settings().host_send_ns == kMeasured;
}

std::int64_t measured_ns() {
  if (stopwatch.epoch != epoch) stopwatch = {epoch, processor_time_ns(), 0};
  stopwatch.pause();
  return std::exchange(stopwatch.before, 0);
}

// What a call costs the host, or a copy. Where that is measured: the processor time that this thread
// took since it asked the last time.
std::int64_t host_cost_ns(bool copy) {
  const std::int64_t measured = is_measured() ? measured_ns() : 0;
  const std::int64_t given = copy ? settings().host_send_ns : settings().host_call_ns;
  return given == kMeasured ? measured : given;
}

// Runs a task in the caller's thread: synchronous mode.
void run_now(const Submission& submission, const Task& task) {
  const NotHostTime paused;
  const auto start = Clock::now();
  task();
  if (const auto least = waited_for(submission.duration_ns); least > 0)
    std::this_thread::sleep_until(start + std::chrono::nanoseconds(least));
}

}  // namespace

NotHostTime::NotHostTime() {
  if (is_measured()) stopwatch.pause();
}

NotHostTime::~NotHostTime() {
  if (is_measured()) stopwatch.since = processor_time_ns();
}

Settings& settings() {
  static auto* the = new Settings;
  return *the;
}

c10::Device sim_device(int index) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

c10::Stream stream_of(int device, std::int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, sim_device(device), id);
}

c10::Stream pool_stream(int device) {
  const int turn = all_devices()[static_cast<std::size_t>(device)].next_in_pool++;
  return stream_of(device, 1 + turn % kPoolSize);
}

c10::Stream current_stream(int device) {
  return stream_of(device, this_stream[static_cast<std::size_t>(device)]);
}

c10::Stream exchange_current_stream(c10::Stream stream) {
  const auto device = static_cast<std::size_t>(stream.device_index());
  const auto before = std::exchange(this_stream[device], stream.id());
  return c10::Stream(c10::Stream::UNSAFE, stream.device(), before);
}

int current_device() { return this_device; }

int checked_device(c10::DeviceIndex index) {
  const int device = index < 0 ? current_device() : index;
  TORCH_CHECK(device < settings().devices, "there is no sim:", device,
              "; the devices are sim:0 to sim:", settings().devices - 1);
  return device;
}

void set_current_device(int device) { this_device = device; }

void charge_host(std::int64_t duration) { host_ns += duration; }

void charge_host_call() { charge_host(host_cost_ns(false)); }

void submit(c10::Stream stream, const Submission& submission, Task task) {
  check_not_forked();
  if (const auto capture = capture_of(stream))
    return capture->run(stream, submission, std::move(task));
  if (submission.charged) host_ns += host_cost_ns(submission.copy);
  device_errors()[static_cast<std::size_t>(stream.device_index())].report();
  Queue& queue = queue_of(stream);
  {
    const std::lock_guard lock(queue.clock_mutex);
    queue.free_ns = std::max(queue.free_ns, host_ns.load()) + submission.duration_ns;
  }
  if (!settings().asynchronous) {
    run_now(submission, task);
    return;
  }
  queue.push({submission.name, std::move(task), waited_for(submission.duration_ns),
              submission.delayed_by_race});
}

void submit_quietly(c10::Stream stream, Task task) noexcept {
  if (is_forked) return;
  if (settings().asynchronous)
    queue_of(stream).push({"poison", std::move(task), 0, false});
  else
    task();
}

void submit_copy(c10::Stream source, c10::Stream target, const Submission& submission, Task task) {
  check_not_forked();
  refuse_in_capture(source, "cannot copy between devices");
  refuse_in_capture(target, "cannot copy between devices");
  host_ns += host_cost_ns(true);
  device_errors()[static_cast<std::size_t>(source.device_index())].report();
  device_errors()[static_cast<std::size_t>(target.device_index())].report();
  Queue& from = queue_of(source);
  Queue& to = queue_of(target);
  const auto [out, in] = ports(source, target);
  {
    const std::scoped_lock lock(from.clock_mutex, to.clock_mutex);
    auto start = std::max({from.free_ns, to.free_ns, host_ns.load()});
    if (out != nullptr) {
      const std::scoped_lock port_lock(clock_of_ports());
      start = free_from(*out, *in, start, submission.duration_ns);
      out->take(start, start + submission.duration_ns);
      in->take(start, start + submission.duration_ns);
    }
    from.free_ns = to.free_ns = start + submission.duration_ns;
  }
  if (!settings().asynchronous) {
    run_now(submission, task);
    return;
  }
  // As a GPU's driver does: the target's stream has come this far before the copy starts, and goes
  // on when it has ended.
  wait_for(source, record(target));
  const std::int64_t duration_ns = waited_for(submission.duration_ns);
  if (out == nullptr)
    from.push({submission.name, std::move(task), duration_ns, submission.delayed_by_race});
  else
    from.push({submission.name, exclusive(*out, *in, duration_ns, std::move(task)), 0,
               submission.delayed_by_race});
  wait_for(target, record(source));
}

MarkPtr record(c10::Stream stream) {
  const auto capture = capture_of(stream);
  return capture ? capture->record(stream) : record_now(stream);
}

MarkPtr record_now(c10::Stream stream) {
  check_not_forked();
  Queue& queue = queue_of(stream);
  auto mark = std::make_shared<Mark>();
  {
    const std::lock_guard lock(queue.clock_mutex);
    mark->virtual_ns = std::max(queue.free_ns, host_ns.load());
  }
  if (!settings().asynchronous || queue.idle()) {
    mark->when = Clock::now();
    mark->passed = true;
    return mark;
  }
  queue.push({"event",
              [mark, &queue] {
                mark->when = Clock::now();
                queue.pass();
                mark->passed = true;
                mark->passed.notify_all();
              },
              0, false});
  return mark;
}

void wait_for(c10::Stream stream, const MarkPtr& mark) {
  if (mark->capture != 0 || capture_of(stream)) return wait_in_capture(stream, mark);
  Queue& queue = queue_of(stream);
  {
    const std::lock_guard lock(queue.clock_mutex);
    queue.free_ns = std::max(queue.free_ns, mark->virtual_ns);
  }
  if (!mark->passed) queue.push({"wait", [mark] { mark->wait(); }, 0, false});
}

bool is_idle(c10::Stream stream) {
  refuse_in_capture(stream, "cannot ask whether a stream is done");
  return queue_of(stream).all_passed();
}

void synchronize(const MarkPtr& mark, int device) {
  refuse_captured(mark, "cannot wait");
  mark->wait();
  advance(host_ns, mark->virtual_ns);
  drop_done();
  device_errors()[static_cast<std::size_t>(device)].report();
}

void synchronize(c10::Stream stream) { synchronize(record(stream), stream.device_index()); }

void synchronize_device(int device) {
  refuse_in_capture(device, "cannot wait");
  for (int id = 0; id < kStreams; ++id) {
    const auto mark = record(stream_of(device, id));
    mark->wait();
    advance(host_ns, mark->virtual_ns);
  }
  drop_done();
  device_errors()[static_cast<std::size_t>(device)].report();
}

void synchronize_all() noexcept {
  if (is_forked) return;
  do {
    for (int device = 0; device < kMaxDevices; ++device)
      for (int id = 0; id < kStreams; ++id) record_now(stream_of(device, id))->wait();
  } while (drop_done());  // what is dropped may be poisoned
}

void keep_alive_until_done(c10::Stream stream, std::shared_ptr<void> reference) {
  drop_done();
  if (const auto capture = capture_of(stream)) return capture->keep(std::move(reference));
  auto mark = record_now(stream);
  if (mark->passed) return;
  const std::lock_guard lock(kept_mutex);
  kept().push_back({std::move(mark), std::move(reference)});
}

std::int64_t operator_duration_ns(std::int64_t bytes) {
  const Settings& s = settings();
  return s.operator_ns +
         static_cast<std::int64_t>(s.operator_ns_per_byte * static_cast<double>(bytes));
}

std::int64_t virtual_now_ns() {
  std::int64_t latest = host_ns;
  for_each_queue([&](Queue& queue) {
    const std::lock_guard lock(queue.clock_mutex);
    latest = std::max(latest, queue.free_ns);
  });
  return latest;
}

std::int64_t virtual_host_ns() { return host_ns; }

void reset_virtual_clock() {
  synchronize_all();
  for_each_queue([](Queue& queue) {
    const std::lock_guard lock(queue.clock_mutex);
    queue.free_ns = 0;
  });
  for (Device& device : all_devices()) {
    device.out.taken.clear();
    device.in.taken.clear();
  }
  host_ns = 0;
  ++epoch;
}

void stop_threads() noexcept {
  if (is_forked) return;
  synchronize_all();
  for_each_queue([](Queue& queue) { queue.stop(); });
}

bool forked() noexcept { return is_forked; }

}  // namespace baechi::sim
