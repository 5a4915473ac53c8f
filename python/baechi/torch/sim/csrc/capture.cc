// SPDX-License-Identifier: Apache-2.0
// Capture and replay of what is launched on streams; see capture.h.
#include "capture.h"

#include <ATen/core/GraphImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "memory.h"

namespace baechi::sim {
namespace {

std::mutex active_mutex;
std::shared_ptr<Capture>& active_slot() {
  static auto* the = new std::shared_ptr<Capture>;
  return *the;
}
std::atomic<bool> any_active = false;

std::shared_ptr<Capture> active() {
  if (!any_active) return nullptr;
  const std::lock_guard lock(active_mutex);
  return active_slot();
}

void set_active(std::shared_ptr<Capture> capture) {
  const std::lock_guard lock(active_mutex);
  TORCH_CHECK(!capture || !active_slot(),
              "a capture has begun already; simulated devices have one at a time");
  any_active = capture != nullptr;
  active_slot() = std::move(capture);
}

[[noreturn]] void refuse(Capture* capture, const std::string& what) {
  const std::string why = what + " while work is captured, not run";
  if (capture != nullptr) capture->spoil(why);
  TORCH_CHECK(false, why);
}

}  // namespace

Capture::Capture(std::uint64_t id, c10::Stream origin)
    : id_(id), streams_{origin}, seen_{Progress(1, 0)} {}

bool Capture::has(c10::Stream stream) const {
  const std::lock_guard lock(mutex_);
  return index_of(stream) < streams_.size();
}

std::size_t Capture::index_of(c10::Stream stream) const {
  return static_cast<std::size_t>(std::find(streams_.begin(), streams_.end(), stream) -
                                  streams_.begin());
}

void Capture::run(c10::Stream stream, const Submission& submission, Task task) {
  const std::lock_guard lock(mutex_);
  const std::size_t i = index_of(stream);
  ++seen_[i][i];
  steps_.push_back({Kind::kRun, i, 0, submission, std::move(task)});
}

MarkPtr Capture::record(c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  const std::size_t i = index_of(stream);
  auto mark = std::make_shared<Mark>();
  mark->capture = id_;
  mark->in_capture = marked_.size();
  marked_.push_back(seen_[i]);
  steps_.push_back({Kind::kRecord, i, mark->in_capture});
  return mark;
}

void Capture::wait(c10::Stream stream, const MarkPtr& mark) {
  const std::lock_guard lock(mutex_);
  const std::size_t i = index_of(stream);
  if (i == streams_.size()) {
    streams_.push_back(stream);
    for (Progress& seen : seen_) seen.push_back(0);
    for (Progress& marked : marked_) marked.push_back(0);
    seen_.emplace_back(streams_.size(), 0);
  }
  const Progress& marked = marked_[mark->in_capture];
  for (std::size_t s = 0; s < streams_.size(); ++s) seen_[i][s] = std::max(seen_[i][s], marked[s]);
  steps_.push_back({Kind::kWait, i, mark->in_capture});
}

void Capture::keep(std::shared_ptr<void> reference) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(reference));
}

void Capture::before_replay(std::function<Task()> prepare) {
  const std::lock_guard lock(mutex_);
  prepares_.push_back(std::move(prepare));
}

void Capture::spoil(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (spoiled_.empty()) spoiled_ = why;
}

void Capture::finish() const {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(spoiled_.empty(), "the capture has failed: ", spoiled_);
  for (std::size_t s = 1; s < streams_.size(); ++s)
    TORCH_CHECK(seen_[0][s] == seen_[s][s], "the capture ends while stream ", streams_[s].id(),
                " of sim:", device(), " has work that ", streams_[0].id(),
                ", where it began, does not wait for");
}

void Capture::replay(c10::Stream on) const {
  charge_host_call();
  for (const auto& prepare : prepares_)
    submit(on, {.name = "prepare a replay", .charged = false}, prepare());
  std::vector<MarkPtr> marks(marked_.size());
  for (const Step& step : steps_) {
    const c10::Stream stream = step.stream == 0 ? on : streams_[step.stream];
    switch (step.kind) {
      case Kind::kRun: {
        Submission again = step.submission;
        again.charged = false;
        submit(stream, again, step.task);
        break;
      }
      case Kind::kRecord:
        marks[step.mark] = record_now(stream);
        break;
      case Kind::kWait:
        wait_for(stream, marks[step.mark]);
        break;
    }
  }
}

std::string Capture::text() const {
  const std::lock_guard lock(mutex_);
  std::ostringstream out;
  for (const Step& step : steps_) {
    out << "sim:" << device() << " stream " << streams_[step.stream].id() << ": ";
    if (step.kind == Kind::kRun)
      out << step.submission.name << '\n';
    else
      out << (step.kind == Kind::kRecord ? "record " : "wait ") << step.mark << '\n';
  }
  return out.str();
}

std::shared_ptr<Capture> capture_of(c10::Stream stream) {
  auto capture = active();
  return capture && capture->has(stream) ? capture : nullptr;
}

std::uint64_t pool_of(c10::Stream stream) {
  const auto capture = active();
  if (!capture || capture->device() != stream.device_index()) return 0;
  if (!capture->has(stream))
    refuse(capture.get(), "cannot allocate on a stream that takes no part");
  return capture->id();
}

void refuse_in_capture(c10::Stream stream, const char* what) {
  if (const auto capture = capture_of(stream)) refuse(capture.get(), what);
}

void refuse_in_capture(int device, const char* what) {
  const auto capture = active();
  if (capture && capture->device() == device) refuse(capture.get(), what);
}

void wait_in_capture(c10::Stream stream, const MarkPtr& mark) {
  const auto capture = active();
  const bool known = capture && mark->capture == capture->id();
  if (!known && capture)
    refuse(capture.get(), "cannot wait for an event that was recorded before,");
  TORCH_CHECK(known, "cannot wait for an event that was recorded in a capture, after its end");
  if (stream.device_index() != capture->device())
    refuse(capture.get(), "cannot let another device wait");
  capture->wait(stream, mark);
}

void refuse_captured(const MarkPtr& mark, const char* what) {
  if (mark->capture != 0) refuse(active().get(), what);
}

namespace {

// What torch.accelerator.Graph is on these devices.
class SimGraph final : public at::GraphImplInterface {
 public:
  explicit SimGraph(const at::GraphImplArgs&) {}
  ~SimGraph() override { release(); }

  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode) override {
    TORCH_CHECK(!capture_, "this graph has been captured; reset() it first");
    TORCH_CHECK(pool == at::MempoolId_t(0, 0),
                "graphs of simulated devices have a pool of memory each; leave out `pool`");
    const c10::Stream stream = current_stream(current_device());
    TORCH_CHECK(
        stream.id() != 0,
        "a capture needs a stream that is not the default one: `with torch.Stream(), graph:`");
    static std::atomic<std::uint64_t> next_id = 0;
    auto capture = std::make_shared<Capture>(++next_id, stream);
    set_active(capture);
    capture_ = std::move(capture);
  }

  void capture_end() override {
    TORCH_CHECK(capture_ && active() == capture_, "capture_end() without capture_begin()");
    set_active(nullptr);
    try {
      capture_->finish();
    } catch (...) {
      release();
      throw;
    }
  }

  void instantiate() override {}

  void replay() override {
    TORCH_CHECK(capture_ && active() != capture_, "there is nothing to replay: capture first");
    const c10::Stream stream = current_stream(capture_->device());
    TORCH_CHECK(!capture_of(stream), "a replay cannot be captured");
    capture_->replay(stream);
    replayed_ = record_now(stream);
  }

  void reset() override { release(); }
  at::MempoolId_t pool() const override { return {capture_ ? capture_->id() : 0, 0}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string& path) override {
    std::ofstream(path) << (capture_ ? capture_->text() : "");
  }

 private:
  void release() noexcept {
    if (!capture_) return;
    if (active() == capture_) set_active(nullptr);
    if (replayed_ && !forked()) replayed_->wait();
    release_pool(capture_->id());
    capture_ = nullptr;
    replayed_ = nullptr;
  }

  std::shared_ptr<Capture> capture_;
  MarkPtr replayed_;
};

}  // namespace
}  // namespace baechi::sim

namespace at {
using SimGraph = baechi::sim::SimGraph;
REGISTER_GRAPH_IMPL(SIM, SimGraph)  // by the name that sim/__init__.py gives the backend
}  // namespace at
