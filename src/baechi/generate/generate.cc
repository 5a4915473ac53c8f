// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/generate.h"

#include <string>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/generate/gnmt.h"
#include "baechi/generate/inception_v3.h"
#include "baechi/generate/synthetic.h"
#include "baechi/generate/transformer.h"

namespace baechi {
namespace {

template <class Value>
void take(Value& into, const std::optional<Value>& asked) {
  if (asked.has_value()) into = *asked;
}

void take_costing(Costing& costing, const GenerateRequest& request) {
  take(costing.kinds, request.kinds);
  take(costing.precision, request.precision);
}

OpGraph gnmt(const GenerateRequest& request) {
  GnmtOptions options;
  take_costing(options.costing, request);
  take(options.batch, request.batch);
  take(options.length, request.length);
  take(options.layers, request.layers);
  return generate_gnmt(options);
}

OpGraph inception_v3(const GenerateRequest& request) {
  InceptionV3Options options;
  take_costing(options.costing, request);
  take(options.batch, request.batch);
  return generate_inception_v3(options);
}

OpGraph transformer(const GenerateRequest& request) {
  TransformerOptions options;
  take_costing(options.costing, request);
  take(options.batch, request.batch);
  take(options.length, request.length);
  take(options.layers, request.layers);
  return generate_transformer(options);
}

template <OpGraph (*kGenerate)(const SyntheticOptions&)>
OpGraph synthetic(const GenerateRequest& request) {
  SyntheticOptions options;
  take_costing(options.costing, request);
  take(options.operators, request.operators);
  take(options.seed, request.seed);
  return kGenerate(options);
}

constexpr GeneratorEntry kGenerators[] = {
    {"chain", "one operator after the other", "operators seed precision",
     synthetic<generate_chain>},
    {"fork-join", "one operator, many side by side, one operator", "operators seed precision",
     synthetic<generate_fork_join>},
    {"layered", "random layers, operators that read a few of the layers before",
     "operators seed precision", synthetic<generate_layered>},
    {"gnmt", "machine translation as the paper trains it, unrolled LSTM layers with attention",
     "batch length layers precision", gnmt},
    {"inception-v3", "image classifier as the paper trains it, parallel branches of convolutions",
     "batch precision", inception_v3},
    {"transformer", "machine translation as the paper trains it, attention only",
     "batch length layers precision", transformer},
};

bool listens(const GeneratorEntry& generator, std::string_view option) {
  return (" " + std::string(generator.options) + " ").find(" " + std::string(option) + " ") !=
         std::string::npos;
}

void check_option(const GeneratorEntry& generator, std::string_view option, bool asked) {
  if (asked && !listens(generator, option))
    throw InputError("'" + std::string(generator.name) + "' has no option " + std::string(option) +
                     "; it has: " + std::string(generator.options));
}

}  // namespace

std::span<const GeneratorEntry> all_generators() { return kGenerators; }

OpGraph generate_graph(std::string_view name, const GenerateRequest& request) {
  std::string known;
  for (const GeneratorEntry& generator : kGenerators) {
    known += (known.empty() ? "" : ", ") + std::string(generator.name);
    if (generator.name != name) continue;
    check_option(generator, "batch", request.batch.has_value());
    check_option(generator, "length", request.length.has_value());
    check_option(generator, "layers", request.layers.has_value());
    check_option(generator, "operators", request.operators.has_value());
    check_option(generator, "seed", request.seed.has_value());
    check_option(generator, "precision", request.precision.has_value());
    return generator.generate(request);
  }
  throw InputError("unknown graph '" + std::string(name) + "'; known: " + known);
}

}  // namespace baechi
