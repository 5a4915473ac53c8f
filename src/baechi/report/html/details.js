// What is known about one bar, transfer or moment: for the tooltip, and for the panel below the
// timeline, where operators can be followed.

function definition(rows) {
  return element("dl", {}, rows.filter(Boolean).flatMap(([name, ...value]) => [element("dt", {}, name), element("dd", {}, ...value)]));
}

// `parts` with operators as names; with `follow`, as links that select them.
function inWords(data, plan, parts, follow) {
  return parts.map((part) => {
    if (typeof part === "string") return part;
    const name = data.names[part.operator];
    if (!follow || plan.bars.ofOperator[part.operator] < 0) return element("b", {}, name);
    return operatorLink(data, plan, part.operator, follow);
  });
}

function operatorLink(data, plan, row, follow) {
  return element("a.op", {
    href: "#timeline",
    onclick: (event) => {
      event.preventDefault();
      follow({plan, bar: plan.bars.ofOperator[row]});
    },
  }, data.names[row]);
}

function describeBar(data, plan, bar, follow) {
  const {bars} = plan;
  const row = bars.operator[bar];
  const block = bars.block.get(bar);
  const {kind, backward, permanent, temporary, outputs} = data.operators;
  const time = bars.end[bar] - bars.start[bar];
  const title = block ? `${plural(block.operators, "operator")}, the longest: ${data.names[row]}` : data.names[row];
  const sent = [];
  for (let i = 0; i < plan.transfers.count; ++i)
    if (plan.transfers.operator[i] === row) sent.push(`${bytesText(plan.transfers.bytes[i])} to ${plan.devices[plan.transfers.to[i]].name}`);
  return [
    element("div.op-name", {}, title),
    definition([
      ["kind", `${data.kinds[kind[row]] || "none given"}${backward[row] ? ", backward" : ""}`],
      ["runs", `on ${plan.devices[bars.device[bar]].name} for ${timeText(block ? block.busy : time)}, from ${momentText(bars.start[bar], Math.max(time / 100, 1))} to ${momentText(bars.end[bar], Math.max(time / 100, 1))}`],
      ["memory", `${bytesText(permanent[row])} permanent, ${bytesText(temporary[row])} temporary, ${bytesText(outputs[row])} of outputs`],
      sent.length > 0 ? ["sends", sent.slice(0, 6).join(", ") + (sent.length > 6 ? `, and ${sent.length - 6} more` : "")] : null,
      ["waits", ...inWords(data, plan, whyWaited(data, plan, bar), follow)],
      bars.critical[bar] ? ["", element("span", {style: "color: var(--critical)"}, "on the critical path")] : null,
    ]),
  ];
}

// The transfer that kept a queued one waiting: it ends as the other starts, in a queue of both.
function aheadOf(plan, i) {
  const {transfers} = plan;
  for (let k = 0; k < transfers.count; ++k) {
    if (k === i || transfers.end[k] !== transfers.start[i]) continue;
    const ends = [transfers.from[k], transfers.to[k]];
    if (ends.includes(transfers.from[i]) || ends.includes(transfers.to[i])) return k;
  }
  return -1;
}

function describeTransfer(data, plan, i, follow) {
  const {transfers} = plan;
  const name = (d) => plan.devices[d].name;
  const queued = transfers.start[i] - transfers.requested[i];
  const ahead = queued > 0 ? aheadOf(plan, i) : -1;
  const waits = queued === 0 ? ["Did not wait"] : [`Waited ${timeText(queued)} in the queue`];
  if (ahead >= 0) waits.push(", last behind the output of ", {operator: transfers.operator[ahead]}, ` from ${name(transfers.from[ahead])} to ${name(transfers.to[ahead])}`);
  const port = transfers.port[i] > 0 ? ` (output ${transfers.port[i]})` : "";
  return [
    element("div.op-name", {}, "Transfer of ", ...inWords(data, plan, [{operator: transfers.operator[i]}], follow), port),
    definition([
      ["moves", `${bytesText(transfers.bytes[i])} from ${name(transfers.from[i])} to ${name(transfers.to[i])} in ${timeText(transfers.end[i] - transfers.start[i])}`],
      ["at", `${momentText(transfers.start[i], 1000)} to ${momentText(transfers.end[i], 1000)}`],
      ["waits", ...inWords(data, plan, waits, follow)],
      transfers.critical[i] ? ["", element("span", {style: "color: var(--critical)"}, "on the critical path")] : null,
    ]),
  ];
}

function describeMemory(plan, index, moment, step) {
  const device = plan.devices[index];
  const bytes = memoryAt(device.curve, moment);
  return [
    element("div.op-name", {}, `Memory of ${device.name}`),
    definition([
      ["at", momentText(moment, step)],
      ["holds", `${bytesText(bytes)}, ${percentText(bytes / device.capacity)} of ${bytesText(device.capacity)}`],
      ["peak", `${bytesText(device.peak)} at ${timeText(device.peak_at)}`],
      ...(device.run_peak === undefined ? [] : [["in the run", `${bytesText(device.run_peak)}, by its own account`]]),
    ]),
  ];
}

function describeBubble(plan, index, i) {
  const {bubbles, name} = plan.devices[index];
  const [cause, ...why] = BUBBLES[bubbles.cause[i]].words.split(": ");
  const share = (time) => shareText(time, plan.makespan);
  const time = bubbles.end[i] - bubbles.start[i];
  return [
    element("div.op-name", {}, `${name} is idle: ${cause}`),
    definition([
      ["why", why.join(": ")],
      ["for", `${timeText(time)}, from ${momentText(bubbles.start[i], Math.max(time / 100, 1))} to ${momentText(bubbles.end[i], Math.max(time / 100, 1))}`],
      ["in all", `${timeText(bubbles.totals[bubbles.cause[i]])}, ${share(bubbles.totals[bubbles.cause[i]])} of the step`],
    ]),
  ];
}

function describe(data, found, step, follow) {
  if (found.bubble !== undefined) return describeBubble(found.plan, found.device, found.bubble);
  if (found.bar !== undefined) return describeBar(data, found.plan, found.bar, follow);
  if (found.transfer !== undefined) return describeTransfer(data, found.plan, found.transfer, follow);
  return describeMemory(found.plan, found.device, found.moment, step);
}

function hideTooltip() {
  document.getElementById("tooltip").hidden = true;
}

function showTooltip(store, found, x, y) {
  const tooltip = document.getElementById("tooltip");
  if (found === null) {
    hideTooltip();
    return;
  }
  tooltip.replaceChildren(...describe(store.data, found, (store.view.end - store.view.begin) / 1000, null));
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  tooltip.style.left = `${Math.max(4, x + 16 + box.width > window.innerWidth ? x - box.width - 12 : x + 16)}px`;
  tooltip.style.top = `${Math.max(4, y + 18 + box.height > window.innerHeight ? y - box.height - 12 : y + 18)}px`;
}
