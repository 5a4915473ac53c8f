// SPDX-License-Identifier: Apache-2.0
#include "baechi/simulate/link_clocks.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <optional>

#include "baechi/base/error.h"
#include "baechi/base/random.h"
#include "baechi/simulate/event_tree.h"

namespace baechi::simulation {
namespace {

// A number of random length, so that all magnitudes occur.
std::int64_t any_magnitude(Random& random, int bits) {
  return static_cast<std::int64_t>(random.next() >>
                                   (64 - 1 - random.below(static_cast<std::uint64_t>(bits))));
}

TEST_CASE("transfer clock: multiplies to exactly what the link divides to") {
  Random random(1);
  for (int i = 0; i < 200'000; ++i) {
    CAPTURE(i);
    const Link link{Time(any_magnitude(random, 40)), Bandwidth(1 + any_magnitude(random, 50)), {}};
    const Bytes size(any_magnitude(random, 40));
    CAPTURE(link.bandwidth->count());
    CAPTURE(size.count());
    std::optional<Time> expected;
    try {
      expected = link.transfer_time(size);
    } catch (const InputError&) {
      CHECK_THROWS_AS(LinkClock(link).transfer_time(size), InputError);
      continue;
    }
    REQUIRE(LinkClock(link).transfer_time(size) == *expected);
  }
}

TEST_CASE(
    "transfer clock: whole multiples and their neighbours, the slowest and the fastest link") {
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t bandwidth :
       {std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, std::int64_t{999'999'999},
        std::int64_t{1'000'000'000}, std::int64_t{1'000'000'001}, std::int64_t{16'000'000'000},
        largest - 1, largest}) {
    const Link link{Time(5), Bandwidth(bandwidth), {}};
    for (const std::int64_t size : {0, 1, 2, 3, 1'000, 999'999'999, 1'000'000'000}) {
      CAPTURE(bandwidth);
      CAPTURE(size);
      CHECK(LinkClock(link).transfer_time(Bytes(size)) == link.transfer_time(Bytes(size)));
    }
  }
  const Link unlimited{Time(5), std::nullopt, {}};
  CHECK(LinkClock(unlimited).transfer_time(Bytes(largest)) == Time(5));
}

TEST_CASE("event tree: always tells the earliest event of all devices") {
  for (const std::size_t num_devices : {1u, 2u, 3u, 8u, 13u}) {
    CAPTURE(num_devices);
    Random random(num_devices);
    EventTree tree(num_devices);
    IdVector<DeviceId, std::optional<Event>> events(num_devices);
    CHECK(tree.empty());
    for (int i = 0; i < 5'000; ++i) {
      const DeviceId device(random.below(num_devices));
      const Instant when{Time(random.between(0, 3)), static_cast<std::uint32_t>(random.below(3))};
      if (random.chance(0.3)) {
        events[device].reset();
        tree.remove(device);
      } else {
        events[device] = random.chance(0.5) ? Event::choice(when, device)
                                            : Event::finish(when, OpId(random.below(5)));
        tree.set(device, *events[device]);
      }
      std::optional<Event> first;
      for (const std::optional<Event>& event : events)
        if (event.has_value() && (!first.has_value() || *event < *first)) first = event;
      REQUIRE(tree.empty() == !first.has_value());
      if (first.has_value()) REQUIRE((tree.top() == *first));
    }
  }
}

TEST_CASE("event tree: within a round, all operators finish before any device chooses") {
  const Instant first{Time(4), 0}, second{Time(4), 1};
  CHECK((Event::finish(first, OpId(9)) < Event::choice(first, DeviceId(0))));
  CHECK((Event::choice(first, DeviceId(7)) < Event::finish(second, OpId(0))));
  CHECK((Event::finish(second, OpId(9)) < Event::finish({Time(5), 0}, OpId(0))));
  CHECK(Event::finish(second, OpId(9)).when() == second);
  CHECK(Event::finish(second, OpId(9)).op() == OpId(9));
  CHECK(!Event::finish(second, OpId(9)).is_choice());
  CHECK(Event::choice(second, DeviceId(3)).device() == DeviceId(3));
  CHECK(Event::choice(second, DeviceId(3)).is_choice());
}

}  // namespace
}  // namespace baechi::simulation
