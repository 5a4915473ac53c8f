// Everything on the page but the timelines: headline numbers, warnings, tables.

function stacked(parts, whole, mark) {
  const share = (value) => `${whole > 0 ? (100 * value) / whole : 0}%`;
  return element("div.bar", {}, parts.filter(([value]) => value > 0).map(([value, color, title]) =>
    element("i", {style: `width:${share(value)};background:var(${color})`, title})),
  mark === undefined ? null : element("b", {style: `left:calc(${share(mark[0])} - 1px)`, title: mark[1]}));
}

// How the step is run, when not in the plan's own order.
const ORDER_WORDS = {planned: "", program: "in program order, ", none: "without an order, "};

function planName(plan) {
  if (!plan.letter) return null;
  return element("div.plan-name", {}, element("span.badge", {}, plan.letter), element("span", {}, plan.label));
}

function tile(name, value, ...rest) {
  return element("div.tile", {}, element("div.name", {}, name), element("div.value", {}, ...[value].flat()), ...rest);
}

function gapTile(plan) {
  if (plan.bound === null) return tile("Best possible", "unknown", element("div.note", {}, "no lower bound was computed"));
  const [most, words] = atMostAbove(plan.makespan / plan.bound.value - 1);
  const replicas = plan.replicas ? ` with ${plan.replicas} replicas` : "";
  return tile(`At most ${words}${replicas}`, most,
    element("div.meter", {title: `no plan${replicas} is faster than ${timeText(plan.bound.value)}`},
      element("i", {style: `width:${(100 * plan.bound.value) / plan.makespan}%;background:var(--c2)`}),
      element("i", {style: `flex:1;background:var(--c1)`})),
    element("div.note", {}, `${plan.bound.name} bound: ${timeText(plan.bound.value)}`));
}

// What a device will hold at the most: by the account of who runs the plan, where there is one.
function highestOf(device) {
  return device.run_peak ?? device.peak;
}

function fullestDevice(plan) {
  return plan.devices.reduce((most, d) => (highestOf(d) / d.capacity > highestOf(most) / most.capacity ? d : most));
}

function memoryTile(plan) {
  const fullest = fullestDevice(plan);
  const share = highestOf(fullest) / fullest.capacity;
  return tile("Fullest device", [percentText(share), element("small", {}, ` ${fullest.name}`)],
    element("div.meter", {}, element("i", {style: `width:${Math.min(100, 100 * share)}%;background:var(${share > 1 ? "--bad" : "--memory"})`})),
    element("div.note", {}, `${bytesText(highestOf(fullest))} of ${bytesText(fullest.capacity)}`));
}

function summaryTiles(data, plan) {
  const sent = plan.devices.reduce((sum, d) => sum + d.sent, 0);
  const busy = plan.devices.reduce((sum, d) => sum + d.busy, 0);
  const share = plan.makespan > 0 ? busy / (plan.makespan * plan.devices.length) : 0;
  return element("div.tiles", {},
    tile("Predicted step time", timeText(plan.makespan), element("div.note", {}, `${plan.replicas ? `${plan.replicas} replicas, each of ` : ""}${plan.micro_batches > 1 ? `${plan.micro_batches} micro-batches, ` : plan.replicas ? "one micro-batch, " : ""}${ORDER_WORDS[plan.order]}by ${plan.method}${plan.fallbacks.length > 0 ? `, fell back: ${plan.fallbacks.join(", ")}` : ""}`)),
    gapTile(plan),
    memoryTile(plan),
    tile("Devices used", [`${plan.usedDevices}`, element("small", {}, ` of ${plan.devices.length}`)],
      element("div.meter", {}, element("i", {style: `width:${100 * share}%;background:var(--c0)`})),
      element("div.note", {}, `${percentText(share)} of their time computing`)),
    plan.letter ? null : tile("Sent between devices", bytesText(sent), element("div.note", {}, `in ${plural(plan.all_transfers, "transfer")}`)),
  );
}

// What a note says of how one method got to its plan is a remark in the table of methods; nobody has to act on it.
function remarkOf(method, note) {
  const name = `${method.method}: `;
  return note.startsWith(name) ? note.slice(name.length) : null;
}

// What a reader should know before believing the numbers, and what the page leaves out.
function warnings(plan) {
  const list = plan.broken.map((words) => `This plan breaks a rule: ${words}`);
  for (const d of plan.devices)
    if (highestOf(d) > d.capacity) list.push(`${d.name} runs out of memory: ${bytesText(highestOf(d) - d.capacity)} over its capacity.`);
  if (plan.fallbacks.length > 0) list.push(`The method alone ran out of room; what it took to fit: ${plan.fallbacks.join(", ")}.`);
  list.push(...plan.notes.filter((note) => !plan.methods.some((m) => remarkOf(m, note))));
  const shown = plan.bars.count;
  if (shown < plan.all_operators) list.push(`The timeline shows ${countText(plan.all_operators)} operators as ${countText(shown)} bars: short neighbours share one, named after the longest; search finds the named ones.`);
  if (plan.path.length < plan.path_links) list.push(`Of the critical path, ${countText(plan.path_links)} links are shown as ${countText(plan.path.length)}; its sums are exact.`);
  if (plan.transfers.count < plan.all_transfers) list.push(`The timeline shows the ${countText(plan.transfers.count)} longest of ${countText(plan.all_transfers)} transfers.`);
  return list;
}

function warningBox(plans) {
  const items = plans.flatMap((plan) => warnings(plan).map((words) => (plan.letter ? `Plan ${plan.letter}: ${words}` : words)));
  if (items.length === 0) return null;
  return element("section.warning", {"aria-label": "Warnings"}, element("h2", {}, "Please note"), element("ul", {}, items.map((words) => element("li", {}, words))));
}

function table(head, rows) {
  const cell = (tag, column, content, attributes = {}) => element(`${tag}${column.type ? `.${column.type}` : ""}`, attributes, ...[content].flat());
  return element("div.scroll", {}, element("table", {},
    element("thead", {}, element("tr", {}, head.map((column) => cell("th", column, column.name, {scope: "col"})))),
    element("tbody", {}, rows.map(({best, cells, words}) => element(best ? "tr.best" : "tr", {}, cells.map((content, i) => cell("td", head[i], content)),
      words ? element("td.words", {colspan: String(head.length - cells.length)}, words) : null)))));
}

// The plan's own method, then by step time, then what does not fit.
function methodsTable(plan) {
  if (plan.methods.length === 0) return element("p.soft", {}, `Only ${plan.method} was asked.`);
  const slowest = Math.max(...plan.methods.map((m) => m.makespan ?? 0), plan.makespan);
  const scale = Math.min(slowest, plan.makespan * 3);
  const winner = plan.methods.find((m) => m.method === plan.method && m.makespan === plan.makespan);
  const place = (m) => (m === winner ? -1 : m.makespan ?? Infinity);
  const mark = plan.bound === null ? undefined : [plan.bound.value, `no plan is faster than ${timeText(plan.bound.value)}`];
  return table(
    [{name: "method"}, {name: "step time", type: "number"}, {name: "above bound", type: "number"}, {name: "to scale", type: "wide"}, {name: "highest peak", type: "number"}, {name: "devices", type: "number"}, {name: "remarks", type: "words"}],
    [...plan.methods].sort((a, b) => (place(a) < place(b) ? -1 : Number(place(a) > place(b)))).map((m) => {
      if (m.makespan === undefined) return {cells: [m.method], words: `does not fit: ${m.reason}`};
      const color = m === winner ? "--accent" : "--other";
      const remarks = [m === winner ? "this plan" : null, m.fallbacks.length > 0 ? `fell back: ${m.fallbacks.join(", ")}` : null,
        m.makespan > scale ? "bar cut off" : null, ...plan.notes.map((note) => remarkOf(m, note))].filter((words) => words !== null);
      const devices = m === winner ? plan.usedDevices : m.peaks.filter((peak) => holdsMuch(peak, m.peaks)).length;
      return {best: m === winner, cells: [m.method, timeText(m.makespan), plan.bound === null ? "" : atMostAbove(m.makespan / plan.bound.value - 1)[0],
        stacked([[Math.min(m.makespan, scale), color, timeText(m.makespan)]], scale, mark),
        bytesText(Math.max(0, ...m.peaks)), countText(devices), remarks.join("; ")]};
    }));
}

function boundsTable(plan) {
  if (plan.bounds.length === 0) return element("p.soft", {}, "No lower bounds were computed.");
  return table([{name: "bound"}, {name: "at least", type: "number"}, {name: "of the step", type: "wide"}],
    plan.bounds.map((bound, i) => ({best: i === 0, cells: [bound.name, timeText(bound.value), stacked([[bound.value, i === 0 ? "--c2" : "--other"]], plan.makespan)]})));
}

function devicesTable(plan) {
  return table([{name: "device"}, {name: "computing", type: "number"}, {name: "where its time goes", type: "wide"}, {name: "operators", type: "number"}, {name: "sent", type: "number"}, {name: "received", type: "number"}],
    plan.devices.map((d) => {
      let operators = 0;
      for (let i = d.first; i < d.last; ++i) operators += plan.bars.block.get(i)?.operators ?? 1;
      const idle = d.bubbles !== null ? BUBBLES.map((part, i) => [d.bubbles.totals[i], part.color, `${part.words}: ${timeText(d.bubbles.totals[i])}`]) : IDLE.map((part) => [d.idle[part.name], part.color, `${part.words}: ${timeText(d.idle[part.name])}`]);
      return {cells: [d.name, shareText(d.busy, plan.makespan),
        stacked([[d.busy, "--c0", `computing: ${timeText(d.busy)}`], ...idle], plan.makespan),
        countText(operators), bytesText(d.sent), bytesText(d.received)]};
    }));
}

// Of a pipeline: idle time by cause, in figures.
function bubblesTable(plan) {
  const share = (time) => (time === 0 ? "" : `${timeText(time)} (${shareText(time, plan.makespan)})`);
  const row = (name, idle, totals) => ({cells: [name, share(idle), ...totals.map(share)]});
  return table([{name: "device"}, {name: "idle", type: "number"}, ...BUBBLES.map((part) => ({name: part.name, type: "number"}))],
    plan.devices.map((d) => row(d.name, d.bubbles.totals.reduce((sum, time) => sum + time, 0), d.bubbles.totals)));
}

function idleParts(plan) {
  return plan.micro_batches > 1 ? BUBBLES : IDLE;
}

function swatches(items) {
  return element("div.legend", {}, items.map((item) => element("span.mark", {}, element("span.swatch", {style: `background:var(${item.color})`}), item.words)));
}

function deviceMemory(data, plan, device, follow, open) {
  const holders = device.holders.map(([part, row, bytes]) => element("div.holder", {},
    element("span.soft", {}, PARTS[part].name),
    plan.bars.ofOperator[row] >= 0 ? operatorLink(data, plan, row, follow) : element("span", {}, data.names[row]),
    element("span", {}, bytesText(bytes))));
  const more = device.more_holders > 0 ? element("p.soft", {}, `and ${countText(device.more_holders)} more`) : null;
  return element("div.device-memory", {},
    element("div.head", {}, element("b", {}, device.name), element("span", {}, `${bytesText(device.peak)} of ${bytesText(device.capacity)} at ${timeText(device.peak_at)}${device.run_peak === undefined ? "" : `; ${bytesText(device.run_peak)} when it runs`}`)),
    stacked(PARTS.map((part) => [device.peak_parts[part.name], part.color, `${part.words}: ${bytesText(device.peak_parts[part.name])}`]), Math.max(device.capacity, device.peak)),
    element("details", open ? {open: ""} : {}, element("summary", {}, "what it holds at the peak"), ...holders, more));
}

function memorySection(data, plan, follow) {
  const fullest = fullestDevice(plan);
  return [element("p.soft", {}, "Each device at its fullest moment; the whole bar is its capacity."),
    ...plan.devices.map((device) => deviceMemory(data, plan, device, follow, device === fullest)), swatches(PARTS)];
}

function pathSection(data, plan, follow) {
  if (plan.path.length === 0) return [element("p.soft", {}, "None: something in this schedule starts for no reason.")];
  const totals = plan.path_totals;
  const byOperator = new Map();
  for (const link of plan.path) {
    if (link.end > link.start) {
      const words = link.transfer === undefined ? plan.devices[link.device].name : "transfer";
      const key = `${words} ${link.operator}`;
      byOperator.set(key, {link, words, time: (byOperator.get(key)?.time ?? 0) + link.end - link.start});
    }
  }
  const longest = [...byOperator.values()].sort((a, b) => b.time - a.time || a.link.start - b.link.start).slice(0, 8);
  return [
    element("p", {}, `${plural(plan.path_links, "link")} without a gap from the first operator to the last. To be faster, a plan must shorten these:`),
    stacked(USES.map((use, i) => [totals[i], use.color, `${use.words}: ${timeText(totals[i])}`]), plan.makespan),
    element("div.legend", {}, USES.map((use, i) => (totals[i] === 0 ? null : element("span.mark", {}, element("span.swatch", {style: `background:var(${use.color})`}), `${use.words} ${timeText(totals[i])}`)))),
    element("h3", {style: "margin-top:12px"}, "Its longest links"),
    ...longest.map(({link, words, time}) => element("div.holder", {}, element("span.soft", {}, words),
      plan.bars.ofOperator[link.operator] >= 0 ? operatorLink(data, plan, link.operator, follow) : element("span", {}, data.names[link.operator]), element("span", {}, timeText(time)))),
  ];
}

function linkWords(rule) {
  const ends = rule.from ? ` ${rule.from} ${rule.both_ways ? "and" : "to"} ${rule.to}` : "";
  const rate = rule.bandwidth === undefined ? "unlimited bandwidth" : rateText(rule.bandwidth);
  const channels = rule.channels.length > 0 ? `, through ${rule.channels.join(", ")}` : "";
  const scope = {default: "any two devices", "other-host": "devices of different hosts", "same-host": "devices of one host", kinds: "kinds", pair: "devices"}[rule.scope];
  return `${scope}${ends}: ${timeText(rule.latency)} + bytes / ${rate}${channels}`;
}

const COMMUNICATION = {
  parallel: "Transfers never wait for each other.",
  sequential: "A device takes part in one transfer at a time, in or out.",
  duplex: "A device sends one tensor and receives one tensor at a time.",
};
const MEMORY_MODE = {
  dataflow: "A tensor is freed after its last use.",
  retain: "Outputs of the forward pass are kept until the step ends.",
};

function clusterSection(data, plan) {
  const hosts = new Set(plan.devices.map((d) => d.host)).size;
  return [
    table([{name: "device"}, {name: "kind"}, {name: "memory", type: "number"}, {name: "speed", type: "number"}, ...(hosts > 1 ? [{name: "host"}] : [])],
      plan.devices.map((d) => ({cells: [d.name, d.kind, bytesText(d.capacity), percentText(d.speed / 1e6), ...(hosts > 1 ? [d.host] : [])]}))),
    element("h3", {style: "margin-top:12px"}, "Links"),
    ...(plan.links.length > 0 ? plan.links.map((rule) => element("p", {}, linkWords(rule))) : [element("p", {}, "none: one device")]),
    element("h3", {}, "Assumed"),
    element("p", {}, `${COMMUNICATION[plan.communication]} A tensor goes to each device once, as soon as it is made. ${MEMORY_MODE[data.graph.memory_mode]} Received copies take memory. A device runs one operator at a time${plan.sends === "blocking" ? ", and none while it sends" : ""}${plan.messages ? `, which each message that it sends or receives makes longer, by ${plan.messages}` : ""}.`),
    element("p.soft", {}, "All times are predicted from the operator times in the graph by simulating the step; nothing here was measured."),
  ];
}

function kindsSection(data) {
  const {groups} = groupOperators(data, "kind");
  const all = groups.reduce((sum, group) => sum + group.time, 0);
  const rows = groups.slice(0, 10);
  return table([{name: "kind"}, {name: "operators", type: "number"}, {name: "time", type: "number"}, {name: "share of computing", type: "wide"}],
    rows.map((group, i) => ({cells: [group.name, countText(group.operators), timeText(group.time), stacked([[group.time, i < 8 ? `--c${i}` : "--other"]], all)]})));
}

// Two plans: what changed, in one table.
function comparison(plans) {
  const [a, b] = plans;
  const sum = (plan, of) => plan.devices.reduce((total, d) => total + of(d), 0);
  const row = (name, of, text) => {
    const [x, y] = [of(a), of(b)];
    const change = x > 0 ? changeText((y - x) / x) : "";
    return {cells: [name, text(x), text(y), y === x ? "same" : change]};
  };
  const moved = () => {
    let different = 0;
    for (let r = 0; r < a.bars.ofOperator.length; ++r) {
      const [x, y] = [a.bars.ofOperator[r], b.bars.ofOperator[r]];
      if (x >= 0 && y >= 0 && a.bars.device[x] !== b.bars.device[y]) ++different;
    }
    return different;
  };
  const sameDevices = a.devices.length === b.devices.length && a.devices.every((d, i) => d.name === b.devices[i].name);
  return element("section.card", {}, element("h2", {}, "What differs"),
    table([{name: "of a step"}, {name: `A: ${a.label}`, type: "number"}, {name: `B: ${b.label}`, type: "number"}, {name: "B against A", type: "number"}], [
      {best: true, ...row("step time", (p) => p.makespan, timeText)},
      row("highest peak", (p) => Math.max(...p.devices.map(highestOf)), bytesText),
      row("computing, all devices", (p) => sum(p, (d) => d.busy), timeText),
      row("idle for data in queues and on its way", (p) => sum(p, (d) => d.idle.queued + d.idle.moving), timeText),
      row("sent between devices", (p) => sum(p, (d) => d.sent), bytesText),
      row("transfers", (p) => p.all_transfers, countText),
      row("devices used", (p) => p.usedDevices, countText),
      ...USES.map((words, i) => row(`critical path: ${words.words}`, (p) => p.path_totals[i], timeText)),
    ]),
    sameDevices ? element("p.soft", {style: "margin-top:8px"}, `${plural(moved(), "operator")} on another device in B than in A.`) : null);
}
