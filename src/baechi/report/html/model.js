// What the page shows, from the columns in the data: plans with devices, bars, transfers, curves.

const PARTS = [
  {name: "permanent", words: "permanent", color: "--c0"},
  {name: "temporary", words: "temporary", color: "--c1"},
  {name: "output", words: "outputs", color: "--c2"},
  {name: "copy", words: "received copies", color: "--c5"},
];
const IDLE = [
  {name: "elsewhere", words: "input still computed elsewhere", color: "--idle"},
  {name: "queued", words: "transfer in a queue", color: "--send"},
  {name: "moving", words: "transfer on its way", color: "--receive"},
  {name: "other", words: "order", color: "--c3"},
  {name: "after", words: "nothing left to do", color: "--line"},
];
// Why a device of a pipeline is idle, in place of the former.
const BUBBLES = [
  {name: "fill", words: "fill: the first micro-batch is on its way", color: "--fill"},
  {name: "drain", words: "drain: the last one is on its way back, or has left", color: "--drain"},
  {name: "imbalance", words: "imbalance: what comes next is still computed elsewhere", color: "--imbalance"},
  {name: "transfers", words: "transfers: it is in a queue or on its way", color: "--moving"},
  {name: "memory", words: "memory: something is ready, and there is no room for it", color: "--no-room"},
];
const USES = [
  {words: "computing", color: "--c0"},
  {words: "moving data", color: "--receive"},
  {words: "waiting for a busy device", color: "--c1"},
  {words: "waiting in a transfer queue", color: "--c4"},
];

// A device with less than that part of the step, and of what the fullest device holds, is not in use:
// two devices with a constant of 12 bytes each are not.
const A_TRACE = 0.001;
const holdsMuch = (peak, peaks) => peak > 0 && peak >= A_TRACE * Math.max(...peaks);

// Names come as the length they share with the one before, and the rest.
function decodeNames(columns) {
  const names = [];
  let before = "";
  for (let i = 0; i < columns.length; i += 2) {
    before = before.slice(0, columns[i]) + columns[i + 1];
    names.push(before);
  }
  return names;
}

// Bars of all devices in one set of arrays; a device has those of [first, last).
function decodeBars(plan, numOperators) {
  const count = plan.devices.reduce((sum, device) => sum + device.bars.time.length, 0);
  const bars = {
    count,
    operator: new Int32Array(count),
    device: new Int32Array(count),
    start: new Float64Array(count),
    end: new Float64Array(count),
    ready: new Float64Array(count), // when the last input was there
    cause: new Int32Array(count), // -(transfer + 1), operator + 1, or 0
    critical: new Uint8Array(count),
    block: new Map(), // bars of several operators: {operators, busy}
    ofOperator: new Int32Array(numOperators).fill(-1),
  };
  let at = 0;
  plan.devices.forEach((device, index) => {
    const columns = device.bars;
    device.first = at;
    let end = 0;
    for (let i = 0; i < columns.time.length; ++i, ++at) {
      bars.operator[at] = columns.operator[i];
      bars.device[at] = index;
      bars.start[at] = end + columns.gap[i];
      end = bars.end[at] = bars.start[at] + columns.time[i];
      bars.ready[at] = bars.start[at] - columns.waited[i];
      bars.cause[at] = columns.cause[i];
      bars.ofOperator[columns.operator[i]] = at;
    }
    device.last = at;
    for (let i = 0; i < columns.blocks.length; i += 3)
      bars.block.set(device.first + columns.blocks[i], {
        operators: columns.blocks[i + 1],
        busy: columns.blocks[i + 2],
      });
  });
  return bars;
}

function decodeTransfers(columns) {
  const start = columns.requested.map((requested, i) => requested + columns.queued[i]);
  const end = start.map((moment, i) => moment + columns.time[i]);
  return {...columns, count: start.length, start, end, critical: new Uint8Array(start.length)};
}

function decodeCurve(device) {
  let at = 0;
  let bytes = 0;
  return {
    at: Float64Array.from(device.curve_at, (step) => (at += step)),
    bytes: Float64Array.from(device.curve_bytes, (step) => (bytes += step)),
  };
}

// Idle spans of a device, where the plan is one of several micro-batches.
function decodeBubbles(columns) {
  let at = 0;
  const start = columns.gap.map((gap, i) => {
    const begin = at + gap;
    at = begin + columns.time[i];
    return begin;
  });
  return {start, end: start.map((moment, i) => moment + columns.time[i]), cause: columns.cause, totals: columns.totals};
}

function decodePath(plan, bars, transfers) {
  return plan.critical_path.map(([reason, start, time, use, operator, device, transfer]) => {
    if (transfer === undefined) {
      const bar = bars.ofOperator[operator];
      if (bar >= 0) bars.critical[bar] = 1;
    } else if (transfer >= 0) {
      transfers.critical[transfer] = 1;
    }
    return {reason: plan.reasons[reason], start, end: start + time, use, operator, device, transfer};
  });
}

function decodePlan(plan, number, data) {
  const bars = decodeBars(plan, data.names.length);
  const transfers = decodeTransfers(plan.transfers);
  const channelsOf = new Map();
  for (const [from, to, ...channels] of plan.channel_pairs) channelsOf.set(`${from} ${to}`, channels);
  for (const device of plan.devices) {
    device.curve = decodeCurve(device);
    device.bubbles = device.bubbles === undefined ? null : decodeBubbles(device.bubbles);
  }
  return {
    ...plan,
    number,
    letter: data.plans.length > 1 ? "AB"[number] : null,
    bars,
    transfers,
    channelsOf,
    path: decodePath(plan, bars, transfers),
    bound: plan.bounds.length > 0 && plan.bounds[0].value > 0 ? plan.bounds[0] : null,
    usedDevices: plan.devices.filter((device) => device.busy >= A_TRACE * plan.makespan || holdsMuch(device.peak, plan.devices.map((d) => d.peak))).length,
  };
}

function decode(text) {
  const data = JSON.parse(text);
  data.names = decodeNames(data.names);
  data.plans = data.plans.map((plan, number) => decodePlan(plan, number, data));
  return data;
}

// The place of the last of `moments` that is not after `at`, between first and last; first - 1
// when there is none.
function lastNotAfter(moments, at, first, last) {
  let low = first;
  let high = last;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (moments[middle] <= at) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function memoryAt(curve, at) {
  const i = lastNotAfter(curve.at, at, 0, curve.at.length);
  return i < 0 ? 0 : curve.bytes[i];
}

// Of how many micro-batches a step consists.
function microBatches(data) {
  return data.plans[0].micro_batches ?? 1;
}

// The micro-batches that share a colour, in words.
function microBatchGroup(data, row) {
  const own = data.operators.micro_batch[row];
  if (own < 0) return "once per step";
  const alike = [];
  for (let m = own % 8; m < microBatches(data); m += 8) alike.push(m);
  return `${alike.length > 1 ? "" : "micro-batch "}${alike.slice(0, 3).join(", ")}${alike.length > 3 ? ", ..." : ""}`;
}

// What an operator belongs to, in the ways of colouring.
const GROUPINGS = {
  "micro-batch": microBatchGroup,
  kind: (data, row) => data.kinds[data.operators.kind[row]] || "(no kind)",
  pass: (data, row) => (data.operators.backward[row] ? "backward and update" : "forward"),
  layer: (data, row) => {
    const parts = data.names[row].replace(/^gradients\//, "").split(/[/.]/);
    return parts.length > 1 ? parts[0] : "(top level)";
  },
};

// The eight groups with the most time have a colour each, the others share one.
function groupOperators(data, by) {
  const groupOf = GROUPINGS[by];
  const numberOf = new Map();
  const groups = [];
  const ofRow = new Int32Array(data.names.length);
  for (let row = 0; row < ofRow.length; ++row) {
    const name = groupOf(data, row);
    let number = numberOf.get(name);
    if (number === undefined) {
      numberOf.set(name, (number = groups.length));
      groups.push({name, operators: 0, time: 0});
    }
    ofRow[row] = number;
    ++groups[number].operators;
  }
  const {bars} = data.plans[0];
  for (let i = 0; i < bars.count; ++i) {
    const busy = bars.block.get(i)?.busy ?? bars.end[i] - bars.start[i];
    groups[ofRow[bars.operator[i]]].time += busy;
  }
  const order = groups.map((_, i) => i);
  const place = (group) => (groups[group].name === "once per step" ? 9 : Number(/\d+/.exec(groups[group].name)));
  if (by === "micro-batch") order.sort((a, b) => place(a) - place(b));
  else order.sort((a, b) => groups[b].time - groups[a].time || a - b);
  const rank = new Int32Array(groups.length);
  order.forEach((group, place) => (rank[group] = place));
  const colored = groups.length <= 8 ? groups.length : 8;
  return {
    by,
    groups: order.map((group) => groups[group]),
    colored,
    color: (row) => Math.min(rank[ofRow[row]], colored),
    rankOf: (row) => rank[ofRow[row]],
  };
}

// Why a bar starts when it does, in words: [text or {operator} or {transfer}, ...].
function whyWaited(data, plan, bar) {
  const {bars, transfers} = plan;
  const first = plan.devices[bars.device[bar]].first;
  const free = bar > first ? bars.end[bar - 1] : 0;
  const start = bars.start[bar];
  const ready = bars.ready[bar];
  const cause = bars.cause[bar];
  const source = [];
  if (cause < 0) {
    const t = -cause - 1;
    source.push("the output of ", {operator: transfers.operator[t]}, ` from ${plan.devices[transfers.from[t]].name}`);
    const queued = transfers.start[t] - transfers.requested[t];
    source.push(` (${queued > 0 ? `${timeText(queued)} in the queue, ` : ""}${timeText(transfers.end[t] - transfers.start[t])} on its way)`);
  } else if (cause > 0) {
    source.push({operator: cause - 1});
  }
  const late = start - Math.max(free, ready);
  if (late > 0) return [`Starts ${timeText(late)} later than it could: `, "the order of its device says so"];
  if (ready > free) {
    const idle = ready - free;
    return [`The device was idle for ${timeText(idle)}, waiting for `, ...(source.length > 0 ? source : ["its last input"])];
  }
  if (start === 0) return ["Starts with the step"];
  const waited = start - ready;
  if (waited === 0) return ["Did not wait", ...(source.length > 0 ? [": the last input, ", ...source, ", came as the device fell free"] : [])];
  return [`Waited ${timeText(waited)} for the device, busy until then`, ...(source.length > 0 ? ["; last input: ", ...source] : ["; it has no inputs"])];
}
