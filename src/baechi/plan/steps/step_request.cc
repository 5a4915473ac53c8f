// SPDX-License-Identifier: Apache-2.0
#include "baechi/plan/steps/step_request.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "baechi/graph/interpolated.h"
#include "baechi/graph/recosted.h"
#include "baechi/place/pipeline/pipeline.h"
#include "baechi/plan/request/option_values.h"
#include "baechi/plan/request/planner_options.h"
#include "baechi/plan/request/recompute_request.h"
#include "baechi/plan/steps/replica_request.h"

namespace baechi {
namespace {

constexpr std::int64_t kMostOfAuto = 64;

// "4 does", or the two next to `number` that do: "2 and 4 do".
std::string divisors_around(std::int64_t batch, std::int64_t number) {
  std::int64_t below = std::min(number, batch);
  while (batch % below != 0) --below;
  if (number > batch) return std::to_string(below) + " does";
  std::int64_t above = number;
  while (batch % above != 0) ++above;
  return std::to_string(below) + " and " + std::to_string(above) + " do";
}

// The numbers that the request asks to choose from, smallest first.
std::vector<std::uint32_t> numbers_asked(std::span<const OpGraph> sizes,
                                         const StepRequest& request) {
  std::vector<std::uint32_t> numbers =
      request.micro_batches.value_or(std::vector<std::uint32_t>{1});
  constexpr const char* kSeveralSizes =
      "give the graph at two or more batch sizes (sizes), or the numbers to compare, such as 1,2,4";
  if (numbers.empty() && !request.mini_batch.has_value())
    throw OptionError("mini_batch",
                      "missing; auto divides a mini-batch: give the number of its samples" +
                          (sizes.size() > 1 ? std::string()
                                            : ". It also compares costs at several sizes, and "
                                              "there are those of one: " +
                                                  std::string(kSeveralSizes)));
  if (!request.mini_batch.has_value()) {
    if (numbers.size() != 1)
      throw OptionError("mini_batch",
                        "missing; several numbers of micro-batches are compared by the step of one "
                        "mini-batch: give the number of its samples");
    if (sizes.size() > 1)
      throw OptionError("mini_batch", "graphs at several batch sizes need a mini-batch to divide");
    return numbers;
  }
  const std::int64_t batch = *request.mini_batch;
  for (const std::uint32_t number : numbers)
    if (batch % number != 0)
      throw OptionError("micro_batches",
                        std::to_string(number) + " does not divide the mini-batch of " +
                            std::to_string(batch) + " samples; " + divisors_around(batch, number));
  if (!numbers.empty()) {
    std::ranges::sort(numbers);
    return numbers;
  }
  if (sizes.size() == 1)
    throw OptionError("micro_batches",
                      "auto compares micro-batches of several sizes, and there are costs for one "
                      "only: " +
                          std::string(kSeveralSizes));
  check_sizes_of_one(sizes);
  std::int64_t least = *sizes.front().batch_size(), most = least;
  for (const OpGraph& graph : sizes) {
    least = std::min(least, *graph.batch_size());
    most = std::max(most, *graph.batch_size());
  }
  for (std::int64_t number = 1; number <= std::min(batch, kMostOfAuto); ++number)
    if (batch % number == 0 && batch / number >= least && batch / number <= most)
      numbers.push_back(static_cast<std::uint32_t>(number));
  if (numbers.empty())
    throw OptionError("mini_batch", "no micro-batch of " + std::to_string(batch) +
                                        " samples is within the batch sizes that there are costs "
                                        "for, " +
                                        std::to_string(least) + " to " + std::to_string(most));
  return numbers;
}

OpGraph at_size(const GraphSizes& sizes, std::int64_t samples) {
  if (sizes.all().size() > 1) return at_batch_size(sizes.all(), samples);
  const OpGraph& graph = sizes.first();
  return graph.batch_size() == samples ? recosted(graph, {}) : with_batch_size(graph, samples);
}

}  // namespace

std::string scaled_from(std::int64_t size, const std::string& samples) {
  return "costs were scaled from a batch of " + std::to_string(size) + " to " + samples +
         " samples as if all of them grew in proportion: give the graph at two batch sizes to know "
         "better";
}

std::vector<std::uint32_t> checked_numbers(const GraphSizes& sizes, const StepRequest& request) {
  check_ranges(request);
  std::vector<std::uint32_t> numbers = numbers_asked(sizes.all(), request);
  if (numbers.back() > 1 && request.search.place.order != ExecutionOrder::kPlanned)
    throw OptionError("order", "a step of micro-batches runs in its planned order");
  check_recompute(request);
  const bool keeps = request.residency == AwayChoice::kNone;
  if (request.copies_apart) {
    const auto refuse = [](const std::string& why) { throw OptionError("place_copies", why); };
    if (keeps) refuse("copies are free where weights may be on a host: ask for residency");
    if (request.known != nullptr) refuse("a plan that is known has them together");
    for (const OpGraph& graph : sizes.all())
      if (const std::string why = why_not_shared(graph); !why.empty()) refuse(why);
  }
  if (request.known != nullptr && request.residency != AwayChoice::kAuto)
    throw OptionError("residency", "only auto begins with a plan that is known");
  if (request.search.place.expert_order != nullptr) {
    if (request.search.method != "expert")
      throw OptionError("expert", "it has an order, which method " + request.search.method +
                                      " does not follow: ask for method expert");
    if (numbers.back() == 1)
      throw OptionError("expert", "its order is one of micro-batches: say how many there are");
  }
  numbers = shared_by_replicas(numbers, request);
  if (places_in_stages(request.search.method) && numbers == std::vector<std::uint32_t>{1})
    throw OptionError("method", for_several_only(request.search.method));
  return numbers;
}

bool asks_for_steps(const GraphSizes& sizes, const StepRequest& request) {
  return request.micro_batches.has_value() || request.replicas.has_value() ||
         request.mini_batch.has_value() || request.second_runs() != Recompute::kNone ||
         request.residency != AwayChoice::kNone || sizes.all().size() > 1 ||
         places_in_stages(request.search.method) || request.search.place.expert_order != nullptr;
}

OpGraph micro_batch_of(const GraphSizes& sizes, const StepRequest& request,
                       std::uint32_t micro_batches) {
  return request.mini_batch.has_value() ? at_size(sizes, *request.mini_batch / micro_batches)
                                        : recosted(sizes.first(), {});
}

Unrolled step_of(const GraphSizes& sizes, const StepRequest& request, std::uint32_t micro_batches) {
  OpGraph graph = micro_batch_of(sizes, request, micro_batches);
  return micro_batches > 1 ? unroll(graph, micro_batches) : as_step(std::move(graph));
}

std::optional<std::int64_t> samples_of_step(const GraphSizes& sizes, const StepRequest& request,
                                            std::uint32_t micro_batches) {
  const std::optional<std::int64_t> size = sizes.first().batch_size();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (request.mini_batch.has_value()) return request.mini_batch;
  if (!size.has_value() || *size > kMost / micro_batches) return std::nullopt;
  return *size * micro_batches;
}

std::string scaling_words(const GraphSizes& sizes, const StepRequest& request) {
  if (sizes.all().size() > 1 || !request.mini_batch.has_value()) return "";
  const std::optional<std::int64_t> size = sizes.first().batch_size();
  std::string samples;
  for (const std::uint32_t number : checked_numbers(sizes, request))
    if (*request.mini_batch / number != size)
      samples += (samples.empty() ? "" : ", ") + std::to_string(*request.mini_batch / number);
  return samples.empty() || !size.has_value() ? "" : scaled_from(*size, samples);
}

}  // namespace baechi
