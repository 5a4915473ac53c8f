// SPDX-License-Identifier: Apache-2.0
// The updates of a training step. Their operators belong to no forward operator: they are colocated
// with the variable.
#include "baechi/base/assert.h"
#include "baechi/generate/dataflow_ops.h"
#include "baechi/generate/variables.h"

namespace baechi::generate {
namespace {

// Operators of the update of one variable, or of none: of scalars that all updates share.
class Update {
 public:
  Update(Tape& tape, std::optional<OpId> variable) : tape_(&tape), variable_(variable) {}

  // An elementwise operator over tensors of `shape`; scalars among the inputs broadcast.
  Value operator()(const std::string& name, std::string_view kind, std::vector<Value> inputs,
                   const Shape& shape) const {
    return tape_->add({.name = name,
                       .kind = kind,
                       .inputs = std::move(inputs),
                       .outputs = {shape},
                       .flops = elements(shape),
                       .colocate = variable_,
                       .update = true});
  }

 private:
  Tape* tape_;
  std::optional<OpId> variable_;
};

Value gradient_of(const Tape& g, const Variable& variable) {
  const std::optional<Value> gradient = g.gradient(*variable.read);
  BAECHI_ASSERT(gradient.has_value(), "the loss does not depend on a trainable variable");
  return *gradient;
}

// min(1, limit / global norm), by which all gradients are multiplied.
Value clip_scale(Tape& g, const std::vector<Variable>& variables) {
  const Update scalar(g, {});
  std::vector<Value> norms;
  for (const Variable& variable : variables) {
    const Value gradient = gradient_of(g, variable);
    const Tape::Scope scope(g, g.name(variable.op));
    norms.push_back(g.add({.name = "L2Loss",
                           .kind = "L2Loss",
                           .inputs = {gradient},
                           .outputs = {Shape{}},
                           .flops = 2 * elements(variable.shape),
                           .colocate = variable.op,
                           .update = true}));
  }
  const Value limit = constant(g, "clip_norm");
  const Value sum = scalar("global_norm/AddN", "AddN", norms, {});
  const Value norm = scalar("global_norm/Sqrt", "Sqrt", {sum}, {});
  return scalar("scale", "Minimum", {scalar("truediv", "RealDiv", {limit, norm}, {}), limit}, {});
}

void finish_step(Tape& g, Variables& variables) {
  g.add_sink({.name = "train_op",
              .kind = "NoOp",
              .kernel = false,
              .after = variables.assignments(),
              .update = true});
}

struct AdamScalars {
  Value beta1, beta2, epsilon, learning_rate;
};

void adam_step(Tape& g, Variables& variables, const Variable& variable, const AdamScalars& with,
               Value gradient) {
  const Shape& shape = variable.shape;
  const Update op(g, variable.op);
  const Variable m = variables.slot(variable, "Adam", true),
                 v = variables.slot(variable, "Adam", true);
  const Tape::Scope scope(g, "Adam/update_" + g.name(variable.op));
  const Value m_next = op("add", "Add",
                          {op("mul", "Mul", {*m.read, with.beta1}, shape),
                           op("mul", "Mul", {gradient, with.beta1}, shape)},
                          shape);
  variables.assign(m, "Assign", "AssignVariableOp", m_next);
  const Value square = op("Square", "Square", {gradient}, shape);
  const Value v_next = op("add", "Add",
                          {op("mul", "Mul", {*v.read, with.beta2}, shape),
                           op("mul", "Mul", {square, with.beta2}, shape)},
                          shape);
  variables.assign(v, "Assign", "AssignVariableOp", v_next);
  const Value root = op("Sqrt", "Sqrt", {v_next}, shape);
  const Value ratio =
      op("truediv", "RealDiv", {m_next, op("add", "Add", {root, with.epsilon}, shape)}, shape);
  variables.assign(variable, "AssignSub", "AssignSubVariableOp",
                   op("mul", "Mul", {ratio, with.learning_rate}, shape));
}

void fused_adam_step(Tape& g, Variables& variables, const Variable& variable,
                     const AdamScalars& with, Value gradient) {
  const Variable m = variables.slot(variable, "Adam", false),
                 v = variables.slot(variable, "Adam", false);
  const Tape::Scope scope(g, "Adam/update_" + g.name(variable.op));
  variables.apply(variable, {.name = "ApplyAdam",
                             .kind = "ResourceApplyAdam",
                             .inputs = {variable.handle, m.handle, v.handle, with.learning_rate,
                                        with.beta1, with.beta2, with.epsilon, gradient},
                             .flops = 12 * elements(variable.shape),
                             .moved = 7 * g.bytes_of(variable.shape)});
}

}  // namespace

Value step_counter(Tape& g) {
  const Tape::OncePerStep once(g);
  return placeholder(g, "global_step", {});
}

Value learning_rate_schedule(Tape& g, Value global_step, int decays) {
  const Tape::OncePerStep once(g);
  const Tape::Scope scope(g, "learning_rate");
  const Update scalar(g, {});
  const Value step = scalar("Cast", "Cast", {global_step}, {});
  const Value warm_up = scalar("warm_up/truediv", "RealDiv", {step, constant(g, "warm_up")}, {});
  Value rate = scalar("mul", "Mul", {constant(g, "base"), warm_up}, {});
  for (int i = 0; i < decays; ++i) {
    const Value late =
        scalar("GreaterEqual", "GreaterEqual", {step, constant(g, "decay_step")}, {});
    const Value halved = scalar("mul", "Mul", {rate, constant(g, "decay")}, {});
    rate = scalar("Select", "Select", {late, halved, rate}, {});
  }
  return rate;
}

void apply_adam(Tape& g, Variables& variables, Value learning_rate, const AdamOptions& options) {
  const Tape::OncePerStep once(g);
  const std::vector<Variable> trainable = variables.all_trainable();
  std::optional<Value> scale;
  if (options.clip) {
    const Tape::Scope scope(g, "clip");
    scale = clip_scale(g, trainable);
  }
  const AdamScalars scalars{.beta1 = constant(g, "Adam/beta1"),
                            .beta2 = constant(g, "Adam/beta2"),
                            .epsilon = constant(g, "Adam/epsilon"),
                            .learning_rate = learning_rate};
  for (const Variable& variable : trainable) {
    Value gradient = gradient_of(g, variable);
    if (scale.has_value()) {
      const Tape::Scope scope(g, "clip/" + g.name(variable.op));
      gradient = Update(g, variable.op)("mul", "Mul", {gradient, *scale}, variable.shape);
    }
    const auto step = options.fused ? fused_adam_step : adam_step;
    step(g, variables, variable, scalars, gradient);
  }
  finish_step(g, variables);
}

void apply_rms_prop(Tape& g, Variables& variables, Value learning_rate) {
  const Tape::OncePerStep once(g);
  const Value decay = constant(g, "RMSProp/decay"), momentum = constant(g, "RMSProp/momentum"),
              epsilon = constant(g, "RMSProp/epsilon");
  for (const Variable& variable : std::vector<Variable>(variables.all_trainable())) {
    const Value gradient = gradient_of(g, variable);
    const Variable mean_square = variables.slot(variable, "RMSProp", false),
                   velocity = variables.slot(variable, "RMSProp", false);
    const Tape::Scope scope(g, "RMSProp/update_" + g.name(variable.op));
    variables.apply(variable, {.name = "ApplyRMSProp",
                               .kind = "ResourceApplyRMSProp",
                               .inputs = {variable.handle, mean_square.handle, velocity.handle,
                                          learning_rate, decay, momentum, epsilon, gradient},
                               .flops = 9 * elements(variable.shape),
                               .moved = 7 * g.bytes_of(variable.shape)});
  }
  finish_step(g, variables);
}

}  // namespace baechi::generate
