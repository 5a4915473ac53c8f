// SPDX-License-Identifier: Apache-2.0
#include "apps/progress.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>
#include <utility>

#include "apps/system.h"
#include "baechi/io/text/source_place.h"

namespace baechi::cli {

struct Progress::Ticker {
  explicit Ticker(std::string words)
      : thread([this, what = std::move(words)](const std::stop_token& stop) { run(what, stop); }) {}

  void run(const std::string& words, const std::stop_token& stop) {
    using namespace std::chrono;
    std::unique_lock lock(mutex);
    const auto begin = steady_clock::now();
    bool shown = false;
    while (!changed.wait_for(lock, stop, seconds(1), [] { return false; })) {
      if (stop.stop_requested()) break;
      const auto elapsed = duration_cast<seconds>(steady_clock::now() - begin).count();
      std::fprintf(stderr, "\r%s (%lld s)%s\033[K", words.c_str(), static_cast<long long>(elapsed),
                   news.c_str());
      std::fflush(stderr);
      shown = true;
    }
    if (shown) std::fputs("\r\033[K", stderr);
  }

  std::string news;  // guarded by the mutex
  std::mutex mutex;
  std::condition_variable_any changed;
  std::jthread thread;  // last: it uses the members above
};

Progress::Progress(const std::string& words) {
  if (errors_are_terminal()) ticker_ = std::make_unique<Ticker>(printable(words));
}
Progress::~Progress() = default;

void Progress::tell(const std::string& news) {
  if (ticker_ == nullptr) return;
  const std::scoped_lock lock(ticker_->mutex);
  ticker_->news = printable(": " + news);
}

}  // namespace baechi::cli
