// SPDX-License-Identifier: Apache-2.0
#include "unit/graphs.h"

#include "baechi/base/random.h"
#include "baechi/graph/op_graph_builder.h"
#include "unit/simulate/small_clusters.h"

namespace baechi::testing {

OpId timed(OpGraphBuilder& builder, const OperatorSpec& spec, Time time, std::string_view kind) {
  const OpId op = builder.add_operator(spec);
  builder.set_time(op, kind, time);
  return op;
}

OpGraph figure_1() {
  OpGraphBuilder builder("figure 1");
  const auto add = [&](const char* name, std::int64_t time, std::int64_t memory) {
    return timed(builder, {.name = name, .permanent = Bytes(memory)}, Time(time));
  };
  const OpId a = add("a", 1, 1), b = add("b", 3, 2), c = add("c", 3, 2);
  const OpId d = add("d", 1, 1), e = add("e", 3, 1), f = add("f", 1, 1);
  const TensorId a_out = builder.add_output(a, Bytes(0));
  builder.connect(a_out, b);
  builder.connect(a_out, e);
  builder.connect(builder.add_output(b, Bytes(0)), c);
  builder.connect(builder.add_output(c, Bytes(0)), d);
  builder.connect(builder.add_output(e, Bytes(0)), f);
  builder.connect(builder.add_output(f, Bytes(0)), d);
  return std::move(builder).build();
}

OpGraph figure_5() {
  OpGraphBuilder builder("figure 5");
  const auto add = [&](const char* name) { return timed(builder, {.name = name}, Time(1)); };
  const OpId a = add("a"), b = add("b"), c = add("c");
  builder.connect(builder.add_output(a, Bytes(1)), c);
  builder.connect(builder.add_output(b, Bytes(1)), c);
  return std::move(builder).build();
}

Cluster unit_latency_cluster(std::size_t count, Bytes capacity) {
  return equal_devices(count, capacity, Time(1), {}, CommunicationMode::kParallel);
}

OpGraph chain(const std::vector<Time>& times, Bytes bytes, Bytes permanent) {
  OpGraphBuilder builder("chain");
  std::optional<TensorId> previous;
  for (std::size_t i = 0; i < times.size(); ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    const OpId op = timed(builder, {.name = name, .permanent = permanent}, times[i]);
    if (previous.has_value()) builder.connect(*previous, op);
    previous = builder.add_output(op, bytes);
  }
  return std::move(builder).build();
}

OpGraph fork_join(std::size_t width, Time time, Bytes bytes) {
  OpGraphBuilder builder("fork-join");
  const OpId source = timed(builder, {.name = "src"}, time);
  const TensorId shared = builder.add_output(source, bytes);
  std::vector<TensorId> outputs;
  for (std::size_t i = 0; i < width; ++i) {
    const OpId op = timed(builder, {.name = "m" + std::to_string(i)}, time);
    builder.connect(shared, op);
    outputs.push_back(builder.add_output(op, bytes));
  }
  const OpId sink = timed(builder, {.name = "sink"}, time);
  for (const TensorId output : outputs) builder.connect(output, sink);
  return std::move(builder).build();
}

namespace {

void add_variable(OpGraphBuilder& builder, std::size_t i, const RandomDag& limits, Random& random) {
  const std::string name = "op" + std::to_string(i);
  const OpId op = builder.add_operator({.name = name, .kind = "Weight", .variable = true});
  if (random.chance(0.5)) builder.set_time(op, random.chance(0.5) ? "gpu" : "*", Time(0));
  if (random.chance(limits.pin_chance)) builder.set_pin(op, "gpu:0");
  builder.add_output(op, Bytes(random.between(0, limits.max_tensor_bytes)));
}

// By the last of its readers or whoever comes later.
void write_variables(OpGraphBuilder& builder, const std::vector<std::optional<OpId>>& last_reader,
                     const std::vector<bool>& variable, const RandomDag& limits, Random& random) {
  for (std::size_t i = 0; i < variable.size(); ++i) {
    if (!variable[i] || !last_reader[i].has_value() || !random.chance(limits.write_chance))
      continue;
    std::size_t writer = last_reader[i]->index();
    if (const std::size_t later = writer + random.below(variable.size() - writer);
        random.chance(0.3) && !variable[later])
      writer = later;
    builder.add_write(OpId(writer), OpId(i));
  }
}

// Each changes one variable and reads what some operator has made.
void add_updates(OpGraphBuilder& builder, const std::vector<bool>& variable,
                 const RandomDag& limits, Random& random) {
  for (std::size_t i = 0; i < variable.size(); ++i) {
    if (!variable[i] || !random.chance(limits.update_chance)) continue;
    const OpId update = builder.add_operator({.name = "update" + std::to_string(i),
                                              .temporary = Bytes(random.between(0, 4)),
                                              .backward = true,
                                              .per_step = true});
    for (const char* kind : {"gpu", "host"})
      builder.set_time(update, kind, Time(random.between(0, limits.max_time)));
    builder.connect(*builder.output(OpId(i), 0), update);
    if (const std::size_t from = random.below(variable.size()); !variable[from])
      builder.connect(*builder.output(OpId(from), 0), update);
  }
}

}  // namespace

OpGraph random_dag(std::uint64_t seed, const RandomDag& limits) {
  Random random(seed);
  OpGraphBuilder builder("random " + std::to_string(seed));
  const auto num_ops = static_cast<std::size_t>(random.between(
      static_cast<std::int64_t>(limits.min_ops), static_cast<std::int64_t>(limits.max_ops)));
  std::vector<bool> variable(num_ops, false);
  std::vector<std::optional<OpId>> last_reader(num_ops);
  const auto drawn = [&](double chance) { return chance > 0 && random.chance(chance); };
  for (std::size_t i = 0; i < num_ops; ++i) {
    variable[i] = drawn(limits.variable_chance);
    if (variable[i]) {
      add_variable(builder, i, limits, random);
      continue;
    }
    const std::string name = "op" + std::to_string(i);
    const OpId op =
        builder.add_operator({.name = name,
                              .kind = i % 2 == 0 ? "MatMul" : "Add",
                              .permanent = Bytes(random.between(0, limits.max_permanent_bytes)),
                              .temporary = Bytes(random.between(0, limits.max_temporary_bytes)),
                              .random = drawn(limits.random_chance)});
    const Time time(random.between(0, limits.max_time));
    builder.set_time(op, "gpu", time);
    if (random.chance(limits.cpu_chance)) builder.set_time(op, "cpu", time * 3);
    if (i > 0 && random.chance(limits.backward_chance))
      builder.set_forward(op, OpId(random.below(i)));
    if (random.chance(limits.pin_chance)) builder.set_pin(op, "gpu:0");
    if (random.chance(limits.group_chance))
      builder.add_to_group(op, "group" + std::to_string(random.below(1 + num_ops / 4)));
    builder.add_output(op, Bytes(random.between(0, limits.max_tensor_bytes)));
    if (random.chance(limits.second_output_chance))
      builder.add_output(op, Bytes(random.between(0, limits.max_tensor_bytes)));

    for (std::size_t parent = 0; parent < i; ++parent) {
      if (!random.chance(limits.edge_chance)) continue;
      if (random.chance(limits.control_chance)) {
        builder.add_control_edge(OpId(parent), op);
        continue;
      }
      const std::size_t port = builder.output(OpId(parent), 1).has_value() ? random.below(2) : 0;
      builder.connect(*builder.output(OpId(parent), port), op);
      last_reader[parent] = op;
    }
  }
  if (limits.write_chance > 0) write_variables(builder, last_reader, variable, limits, random);
  if (limits.update_chance > 0) add_updates(builder, variable, limits, random);
  builder.set_memory_mode(limits.memory_mode);
  return std::move(builder).build();
}

Cluster random_cluster(std::uint64_t seed, Bytes max_capacity) {
  Random random(seed);
  ClusterSpec spec;
  const std::size_t count = 1 + random.below(4);
  for (std::size_t i = 0; i < count; ++i) {
    const bool cpu = i > 0 && random.chance(0.25);
    spec.devices.push_back(
        {.name = (cpu ? "cpu:" : "gpu:") + std::to_string(i),
         .kind = cpu ? "cpu" : "gpu",
         .capacity = Bytes(random.between(max_capacity.count() / 2, max_capacity.count())),
         .host = random.chance(0.5) ? "east" : "west",
         .speed = random.chance(0.5) ? kFullSpeed : Speed(random.between(300'000, 2'000'000))});
  }
  const auto link = [&](LinkScope scope) {
    LinkRule rule;
    rule.scope = scope;
    rule.latency = Time(random.between(0, 10));
    if (random.chance(0.7)) rule.bandwidth = Bandwidth(random.between(200'000'000, 4'000'000'000));
    if (random.chance(0.4)) rule.channels = {"bus of {from_host}"};
    return rule;
  };
  spec.links.push_back(link(LinkScope::kDefault));
  if (random.chance(0.5)) spec.links.push_back(link(LinkScope::kSameHost));
  if (random.chance(0.5)) spec.links.push_back(link(LinkScope::kOtherHost));
  if (count > 1 && random.chance(0.3)) {
    LinkRule pair = link(LinkScope::kPair);
    pair.from = spec.devices[0].name;
    pair.to = spec.devices[1].name;
    pair.both_ways = random.chance(0.5);
    spec.links.push_back(pair);
  }
  spec.communication = static_cast<CommunicationMode>(random.below(3));
  return Cluster(std::move(spec));
}

}  // namespace baechi::testing
