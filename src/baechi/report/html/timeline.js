// The timeline of one plan on a canvas: lanes for computing, transfers and memory of each device
// and for each shared channel. Several timelines share a View, so that they show the same moments.

const GUTTER = 132;
const AXIS = 24;
const OVERVIEW = 26;

// The moments that are shown, [begin, end) in nanoseconds.
class View {
  constructor(limit) {
    this.limit = Math.max(limit, 1);
    this.listeners = [];
    this.fit();
  }
  onChange(listener) {
    this.listeners.push(listener);
  }
  show(begin, end) {
    const span = Math.min(Math.max(end - begin, Math.min(50, this.limit)), this.limit * 1.02);
    const middle = (begin + end) / 2;
    const latest = Math.max(this.limit * 1.02 - span, 0);
    this.begin = Math.min(Math.max(middle - span / 2, 0), latest);
    this.end = this.begin + span;
    for (const listener of this.listeners) listener();
  }
  fit() {
    this.show(0, this.limit * 1.02);
  }
  zoom(factor, at = (this.begin + this.end) / 2) {
    this.show(at - (at - this.begin) * factor, at + (this.end - at) * factor);
  }
  pan(share) {
    const step = (this.end - this.begin) * share;
    this.show(this.begin + step, this.end + step);
  }
  get whole() {
    return this.end - this.begin >= this.limit * 1.0199;
  }
}

// Rows such that what overlaps in time lies in different ones, at most three.
function packRows(plan, items) {
  const {start, end} = plan.transfers;
  const free = [0];
  const rows = items.map((i) => {
    let row = free.findIndex((moment) => moment <= start[i]);
    if (row < 0) row = free.length < 3 ? free.push(0) - 1 : 2;
    free[row] = Math.max(free[row], end[i]);
    return row;
  });
  return {rows, count: free.length};
}

function transferLane(plan, name, device, items) {
  const {start} = plan.transfers;
  items.sort((a, b) => start[a] - start[b] || a - b);
  const packed = packRows(plan, items);
  return {
    type: "transfers",
    name,
    device,
    items,
    rows: packed.rows,
    rowCount: packed.count,
    starts: Float64Array.from(items, (i) => start[i]),
    longest: items.reduce((most, i) => Math.max(most, plan.transfers.end[i] - start[i]), 0),
  };
}

function transferLanes(plan, device) {
  const {from, to, count} = plan.transfers;
  const out = [];
  const into = [];
  for (let i = 0; i < count; ++i) {
    if (from[i] === device) out.push(i);
    if (to[i] === device) into.push(i);
  }
  if (out.length + into.length === 0) return [];
  if (plan.communication === "sequential") return [transferLane(plan, "transfers", device, [...out, ...into])];
  return [transferLane(plan, "sends", device, out), transferLane(plan, "receives", device, into)];
}

function makeLanes(plan) {
  const lanes = [];
  plan.devices.forEach((device, index) => {
    lanes.push({type: "compute", device: index, head: true});
    lanes.push(...transferLanes(plan, index));
    lanes.push({type: "memory", device: index});
  });
  plan.channels.forEach((name, channel) => {
    const items = [];
    for (let i = 0; i < plan.transfers.count; ++i) {
      const key = `${plan.transfers.from[i]} ${plan.transfers.to[i]}`;
      if (plan.channelsOf.get(key)?.includes(channel)) items.push(i);
    }
    lanes.push({...transferLane(plan, name, null, items), head: true, channel});
  });
  return lanes;
}

// Heights in pixels; returns the height of all.
function layOut(lanes, numDevices) {
  const roomy = numDevices <= 6;
  let y = 6;
  for (const lane of lanes) {
    if (lane.head && y > 6) y += roomy ? 10 : 6;
    lane.y = y;
    if (lane.type === "compute") lane.height = roomy ? 32 : 22;
    else if (lane.type === "memory") lane.height = roomy ? 36 : 22;
    else lane.height = (roomy ? 11 : 8) * (lane.rowCount > 1 ? 0.7 * lane.rowCount : 1);
    y += lane.height + 3;
  }
  return y + 5;
}

class Timeline {
  // `store` is what all timelines of the page share: data, view, groups, matches, selection.
  constructor(plan, store) {
    this.plan = plan;
    this.store = store;
    this.lanes = makeLanes(plan);
    this.lanesHeight = layOut(this.lanes, plan.devices.length);
    const title = `Timeline${plan.letter ? ` of plan ${plan.letter}` : ""}: ${plan.devices.length} devices over ${timeText(plan.makespan)}`;
    this.canvas = element("canvas", {tabindex: "0", role: "application", "aria-label": `${title}. Arrow keys pan, plus and minus zoom, brackets step through operators.`});
    this.spacer = element("div");
    this.box = element("div.timeline", {}, this.canvas, this.spacer);
    this.context = this.canvas.getContext("2d");
    this.scheduled = false;
    this.box.addEventListener("scroll", () => this.redraw());
    new ResizeObserver(() => this.resize()).observe(this.box);
    listenToPointer(this);
  }

  resize() {
    const width = this.box.clientWidth;
    const all = this.lanesHeight + AXIS + OVERVIEW;
    this.spacer.style.height = "0";
    this.canvas.style.height = `${Math.min(all, 740)}px`;
    this.width = width;
    this.height = Math.min(all, 740);
    this.spacer.style.height = `${all - this.height}px`;
    const ratio = Math.max(window.devicePixelRatio || 1, this.store.printing ? 2 : 1);
    this.canvas.style.width = `${width}px`;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.ratio = ratio;
    this.draw();
  }

  redraw() {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => {
      this.scheduled = false;
      this.draw();
    });
  }

  get plotWidth() {
    return Math.max(this.width - GUTTER - 8, 10);
  }
  x(moment) {
    const {begin, end} = this.store.view;
    return GUTTER + ((moment - begin) / (end - begin)) * this.plotWidth;
  }
  moment(x) {
    const {begin, end} = this.store.view;
    return begin + ((x - GUTTER) / this.plotWidth) * (end - begin);
  }

  // --- drawing -----------------------------------------------------------------------------------

  color(name) {
    return this.colors.getPropertyValue(name).trim();
  }

  draw() {
    if (!this.width) return;
    this.colors = getComputedStyle(document.documentElement);
    const {context} = this;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    this.drawn = {bars: 0, matches: 0};
    this.palette = [0, 1, 2, 3, 4, 5, 6, 7].map((i) => this.color(`--c${i}`));
    this.palette[this.store.groups.colored] = this.color("--other");
    context.save();
    context.beginPath();
    context.rect(0, OVERVIEW + AXIS, this.width, this.height - OVERVIEW - AXIS);
    context.clip();
    context.translate(0, OVERVIEW + AXIS - this.box.scrollTop);
    for (const lane of this.lanes) this.drawLane(lane);
    if (this.store.showPath) this.drawPath();
    this.drawEnd();
    context.restore();
    this.drawAxis();
    this.drawOverview();
    const {view} = this.store;
    Object.assign(this.canvas.dataset, {
      begin: view.begin,
      end: view.end,
      bars: this.drawn.bars,
      matches: this.drawn.matches,
    });
  }

  drawLane(lane) {
    const {context} = this;
    context.fillStyle = this.color("--lane");
    context.fillRect(GUTTER, lane.y, this.plotWidth, lane.height);
    this.drawLaneName(lane);
    context.save();
    context.beginPath();
    context.rect(GUTTER, lane.y - 1, this.plotWidth, lane.height + 2);
    context.clip();
    if (lane.type === "compute") this.drawBars(lane);
    else if (lane.type === "memory") this.drawMemory(lane);
    else this.drawTransfers(lane);
    context.restore();
  }

  text(text, x, y, {font = "12px", color = "--ink", align = "left", width} = {}) {
    const {context} = this;
    context.font = `${font} system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif`;
    context.fillStyle = color.startsWith("--") ? this.color(color) : color;
    context.textAlign = align;
    context.textBaseline = "middle";
    if (width !== undefined && context.measureText(text).width > width) {
      let cut = text.length;
      while (cut > 1 && context.measureText(`${text.slice(0, cut)}…`).width > width) --cut;
      text = `${text.slice(0, cut)}…`;
    }
    context.fillText(text, x, y);
  }

  drawLaneName(lane) {
    const {plan} = this;
    const right = GUTTER - 10;
    if (lane.type === "compute") {
      const device = plan.devices[lane.device];
      this.text(device.name, 10, lane.y + lane.height / 2 - (lane.height > 26 ? 6 : 0), {font: "600 12.5px", width: right - 10});
      if (lane.height > 26) {
        this.text(`${shareText(device.busy, plan.makespan)} busy`, 10, lane.y + lane.height / 2 + 8, {font: "11px", color: "--soft"});
      }
    } else if (lane.type === "memory") {
      const device = plan.devices[lane.device];
      if (lane.height > 26) {
        this.text(`${bytesText(device.peak)} peak`, right, lane.y + lane.height / 2 - 7, {font: "11px", color: "--soft", align: "right"});
        this.text(`of ${bytesText(device.capacity)}`, right, lane.y + lane.height / 2 + 7, {font: "11px", color: "--soft", align: "right"});
      } else {
        this.text(`peak ${bytesText(device.peak)}`, right, lane.y + lane.height / 2, {font: "10.5px", color: "--soft", align: "right"});
      }
    } else {
      this.text(lane.name, lane.head ? 10 : right, lane.y + lane.height / 2, {font: lane.head ? "600 11px" : "10.5px", color: lane.head ? "--ink" : "--soft", align: lane.head ? "left" : "right", width: right - 10});
    }
  }

  // 1 for what is looked for, 0 for what steps back, or 2 when nothing is looked for.
  focus(bar) {
    const {matches, group, groups} = this.store;
    const row = this.plan.bars.operator[bar];
    if (matches) return matches[row];
    if (group !== null) return Math.min(groups.rankOf(row), groups.colored) === group ? 1 : 0;
    return 2;
  }

  // Bars narrower than a pixel share columns: each shows its longest bar, paler when little of it
  // is computing.
  drawBars(lane) {
    const {context, plan} = this;
    const {bars} = plan;
    const {view, groups, selection} = this.store;
    const device = plan.devices[lane.device];
    const passes = groups.by === "micro-batch";
    const {backward} = this.store.data.operators;
    this.drawBubbles(lane);
    const columns = new Map();
    const nsPerPixel = (view.end - view.begin) / this.plotWidth;
    let i = Math.max(device.first, lastNotAfter(bars.start, view.begin, device.first, device.last));
    const wide = [];
    for (; i < device.last && bars.start[i] < view.end; ++i) {
      if (bars.end[i] < view.begin) continue;
      const left = this.x(bars.start[i]);
      const width = this.x(bars.end[i]) - left;
      const focus = this.focus(i);
      if (focus === 1) ++this.drawn.matches;
      ++this.drawn.bars;
      if (width >= 1.5) {
        wide.push([i, left, width, focus]);
        continue;
      }
      const pixel = Math.floor(left);
      const column = columns.get(pixel);
      const time = bars.end[i] - bars.start[i];
      if (column === undefined) columns.set(pixel, {bar: i, time, busy: time, focus});
      else {
        column.busy += time;
        if (focus > column.focus || (focus === column.focus && time > column.time)) {
          column.bar = i;
          column.time = time;
          column.focus = focus;
        }
      }
    }
    for (const [pixel, column] of columns) {
      context.globalAlpha = column.focus === 0 ? 0.12 : column.focus === 1 ? 1 : 0.3 + 0.7 * Math.min(1, column.busy / nsPerPixel);
      context.fillStyle = this.palette[groups.color(bars.operator[column.bar])];
      context.fillRect(pixel, lane.y, column.focus === 1 ? 2 : 1, lane.height);
      if (passes && !backward[bars.operator[column.bar]]) {
        context.fillStyle = this.color("--forward");
        context.fillRect(pixel, lane.y, column.focus === 1 ? 2 : 1, lane.height);
      }
    }
    for (const [bar, left, width, focus] of wide) {
      context.globalAlpha = focus === 0 ? 0.15 : 1;
      context.fillStyle = this.palette[groups.color(bars.operator[bar])];
      context.fillRect(left, lane.y, Math.max(width - (width > 4 ? 0.75 : 0), 1), lane.height);
      if (passes && !backward[bars.operator[bar]]) {
        context.fillStyle = this.color("--forward");
        context.fillRect(left, lane.y, Math.max(width - (width > 4 ? 0.75 : 0), 1), lane.height);
      }
      if (width > 46) {
        const from = Math.max(left, GUTTER);
        const name = shortName(this.store.data.names[bars.operator[bar]]);
        const more = bars.block.has(bar) ? ` +${bars.block.get(bar).operators - 1}` : "";
        this.text(name + more, from + 5, lane.y + lane.height / 2, {font: "11.5px", color: "#10131a", width: Math.min(left + width, this.width) - from - 9});
      }
    }
    context.globalAlpha = 1;
    if (passes) this.drawPasses(lane);
    if (selection && selection.plan === plan && selection.bar >= device.first && selection.bar < device.last)
      this.outline(bars.start[selection.bar], bars.end[selection.bar], lane.y, lane.height);
  }

  // Of a pipeline: idle time in the colour of its cause, a tint with a line below.
  drawBubbles(lane) {
    const {context} = this;
    const {view} = this.store;
    const {bubbles} = this.plan.devices[lane.device];
    if (bubbles === null || this.store.matches) return;
    const first = Math.max(0, lastNotAfter(bubbles.start, view.begin, 0, bubbles.start.length));
    for (let i = first; i < bubbles.start.length && bubbles.start[i] < view.end; ++i) {
      const left = this.x(bubbles.start[i]);
      const width = Math.max(this.x(bubbles.end[i]) - left, 0.5);
      context.fillStyle = this.color(BUBBLES[bubbles.cause[i]].color);
      context.globalAlpha = 0.35;
      context.fillRect(left, lane.y, width, lane.height);
      context.globalAlpha = 1;
      context.fillRect(left, lane.y + lane.height - 4, width, 4);
    }
  }

  // The numbers of micro-batches on bars that are too narrow for names, once for those that follow each other.
  drawPasses(lane) {
    const {plan} = this;
    const {bars} = plan;
    const {data, view} = this.store;
    const {micro_batch: batch, backward} = data.operators;
    const device = plan.devices[lane.device];
    const like = (a, b) => batch[bars.operator[a]] === batch[bars.operator[b]] && backward[bars.operator[a]] === backward[bars.operator[b]];
    let i = Math.max(device.first, lastNotAfter(bars.start, view.begin, device.first, device.last));
    while (i < device.last && bars.start[i] < view.end) {
      let last = i;
      let named = false;
      for (let k = i; k < device.last && like(k, i); ++k) {
        named ||= this.x(bars.end[k]) - this.x(bars.start[k]) > 46;
        last = k;
      }
      const left = Math.max(this.x(bars.start[i]), GUTTER);
      const right = Math.min(this.x(bars.end[last]), this.width);
      const number = batch[bars.operator[i]];
      if (!named && number >= 0 && right - left > (number < 10 ? 9 : 16))
        this.text(String(number), (left + right) / 2, lane.y + lane.height / 2, {font: "600 11.5px", color: "#10131a", align: "center"});
      i = last + 1;
    }
  }

  outline(start, end, y, height) {
    const {context} = this;
    const left = this.x(start);
    context.strokeStyle = this.color("--match");
    context.lineWidth = 2;
    context.strokeRect(left - 1, y, Math.max(this.x(end) - left, 2) + 2, height);
  }

  drawTransfers(lane) {
    const {context, plan} = this;
    const {transfers} = plan;
    const {view, selection, matches} = this.store;
    const height = lane.height / lane.rowCount;
    const first = Math.max(0, lastNotAfter(lane.starts, view.begin - lane.longest, 0, lane.items.length));
    for (let k = first; k < lane.items.length && lane.starts[k] < view.end; ++k) {
      const i = lane.items[k];
      if (transfers.end[i] < view.begin) continue;
      const left = this.x(transfers.start[i]);
      const sends = lane.device === null ? true : transfers.from[i] === lane.device;
      context.globalAlpha = matches && !matches[transfers.operator[i]] ? 0.15 : 0.9;
      context.fillStyle = this.color(sends ? "--send" : "--receive");
      const y = lane.y + lane.rows[k] * height;
      context.fillRect(left, y, Math.max(this.x(transfers.end[i]) - left - 0.5, 1), height - (lane.rowCount > 1 ? 0.5 : 0));
      if (selection && selection.plan === plan && selection.transfer === i)
        this.outline(transfers.start[i], transfers.end[i], y, height);
    }
    context.globalAlpha = 1;
  }

  drawMemory(lane) {
    const {context, plan} = this;
    const {view} = this.store;
    const device = plan.devices[lane.device];
    const {curve} = device;
    const most = Math.max(device.capacity, device.peak, 1);
    const top = lane.y + 3;
    const bottom = lane.y + lane.height;
    const y = (bytes) => bottom - (bytes / most) * (bottom - top);
    let i = Math.max(0, lastNotAfter(curve.at, view.begin, 0, curve.at.length));
    const end = Math.min(view.end, plan.makespan);
    context.beginPath();
    context.moveTo(this.x(Math.max(view.begin, 0)), bottom);
    let lastX = this.x(Math.max(curve.at[i], view.begin));
    let amount = curve.bytes[i];
    context.lineTo(lastX, y(amount));
    for (++i; i < curve.at.length && curve.at[i] < end; ++i) {
      const x = this.x(curve.at[i]);
      context.lineTo(x, y(amount));
      amount = curve.bytes[i];
      context.lineTo(x, y(amount));
      lastX = x;
    }
    const right = this.x(end);
    context.lineTo(right, y(amount));
    context.lineTo(right, bottom);
    context.closePath();
    context.fillStyle = this.color("--memory-fill");
    context.fill();
    context.strokeStyle = this.color("--memory");
    context.lineWidth = 1;
    context.stroke();
    context.setLineDash([5, 4]);
    context.strokeStyle = this.color("--capacity");
    context.beginPath();
    context.moveTo(GUTTER, y(device.capacity) + 0.5);
    context.lineTo(GUTTER + this.plotWidth, y(device.capacity) + 0.5);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = this.color("--memory");
    context.strokeStyle = this.color("--card");
    context.beginPath();
    context.arc(this.x(device.peak_at), y(device.peak), 3.5, 0, 7);
    context.fill();
    context.stroke();
  }

  // The critical path: a band under what is on it, and lines where it changes lanes.
  drawPath() {
    const {context, plan} = this;
    const {view} = this.store;
    const lanes = new Map();
    for (const lane of this.lanes) {
      if (lane.device === null) continue;
      if (lane.type === "compute") lanes.set(`c${lane.device}`, lane);
      if (lane.type === "transfers" && !lanes.has(`t${lane.device}`)) lanes.set(`t${lane.device}`, lane);
    }
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, this.plotWidth, this.lanesHeight);
    context.clip();
    context.fillStyle = context.strokeStyle = this.color("--critical");
    context.lineWidth = 1.25;
    let before = null;
    const crossings = []; // [x, y, y]
    for (const link of plan.path) {
      const lane = lanes.get(`${link.transfer === undefined ? "c" : "t"}${link.device}`) ?? lanes.get(`c${link.device}`);
      const y = lane.y + lane.height - (link.transfer === undefined ? 2 : lane.height / 2);
      if (link.end >= view.begin && link.start <= view.end) {
        const left = this.x(link.start);
        context.fillRect(left, y - 2, Math.max(this.x(link.end) - left, 0.75), 4);
        if (before !== null && before !== y) crossings.push([left, before, y]);
      }
      before = y;
    }
    if (crossings.length < this.plotWidth / 5) { // more would hide all else
      context.globalAlpha = 0.55;
      context.beginPath();
      for (const [x, from, to] of crossings) {
        context.moveTo(x, from);
        context.lineTo(x, to);
      }
      context.stroke();
    }
    context.restore();
  }

  drawEnd() {
    const {context, plan} = this;
    const x = this.x(plan.makespan);
    if (x < GUTTER || x > this.width) return;
    context.fillStyle = this.color("--ink");
    context.fillRect(x, 0, 1.5, this.lanesHeight);
  }

  drawAxis() {
    const {context} = this;
    const {view} = this.store;
    const span = view.end - view.begin;
    const rough = (span / this.plotWidth) * Math.min(110, this.plotWidth / 3);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(1, power * [1, 2, 5, 10].find((factor) => factor * power >= rough));
    const labels = [];
    context.fillStyle = this.color("--card");
    context.fillRect(0, 0, this.width, OVERVIEW + AXIS);
    context.fillStyle = this.color("--line");
    context.fillRect(0, OVERVIEW + AXIS - 1, this.width, 1);
    for (let moment = Math.ceil(view.begin / step) * step; moment <= view.end; moment += step) {
      const x = this.x(moment);
      context.fillStyle = this.color("--line");
      context.fillRect(x, OVERVIEW + AXIS - 6, 1, 6);
      labels.push(momentText(moment, step, view.end));
      this.text(labels.at(-1), Math.min(x, this.width - 26), OVERVIEW + AXIS - 13, {font: "11px", color: "--soft", align: x < GUTTER + 16 ? "left" : "center"});
    }
    this.canvas.dataset.ticks = labels.join(" | ");
  }

  // How many devices compute at once over the whole step, and the part that is shown.
  drawOverview() {
    const {context, plan} = this;
    const {view} = this.store;
    const width = Math.floor(this.plotWidth);
    const scale = width / (view.limit * 1.02);
    const load = this.overviewLoad(width, scale);
    const numDevices = plan.devices.length;
    this.text("whole step", 10, OVERVIEW / 2, {font: "10.5px", color: "--soft"});
    context.fillStyle = this.color("--lane");
    context.fillRect(GUTTER, 4, this.plotWidth, OVERVIEW - 8);
    context.fillStyle = this.color("--c0");
    context.globalAlpha = 0.55;
    for (let x = 0; x < width; ++x) {
      const height = (load[x] / numDevices) * (OVERVIEW - 8);
      if (height > 0.2) context.fillRect(GUTTER + x, OVERVIEW - 4 - height, 1, height);
    }
    context.globalAlpha = 1;
    const left = GUTTER + view.begin * scale;
    const shown = (view.end - view.begin) * scale;
    context.globalAlpha = view.whole ? 0 : 0.18;
    context.fillStyle = this.color("--accent");
    context.fillRect(left, 3, shown, OVERVIEW - 6);
    context.globalAlpha = view.whole ? 0 : 1;
    context.strokeStyle = this.color("--accent");
    context.lineWidth = 1.5;
    context.strokeRect(left, 3, Math.max(shown, 3), OVERVIEW - 6);
    context.globalAlpha = 1;
  }

  overviewLoad(width, scale) {
    if (this.load && this.load.length === width) return this.load;
    const {bars} = this.plan;
    const load = new Float64Array(width);
    for (let i = 0; i < bars.count; ++i) {
      const from = bars.start[i] * scale;
      const to = bars.end[i] * scale;
      for (let x = Math.floor(from); x <= to && x < width; ++x)
        load[x] += Math.max(0, Math.min(to, x + 1) - Math.max(from, x));
    }
    return (this.load = load);
  }

  // --- what is where -----------------------------------------------------------------------------

  // {plan, bar} or {plan, transfer} or {plan, device, moment} for memory or {plan, device, bubble}, or null.
  at(x, y) {
    if (x < GUTTER || y < OVERVIEW + AXIS) return null;
    const inside = y - OVERVIEW - AXIS + this.box.scrollTop;
    const lane = this.lanes.find((l) => inside >= l.y - 1 && inside <= l.y + l.height + 1);
    if (lane === undefined) return null;
    const moment = this.moment(x);
    const {plan} = this;
    if (lane.type === "memory") return moment <= plan.makespan ? {plan, device: lane.device, moment} : null;
    if (lane.type === "compute") return this.barAt(lane, moment) ?? this.bubbleAt(lane, moment);
    return this.transferAt(lane, moment, inside);
  }

  barAt(lane, moment) {
    const {plan} = this;
    const {bars} = plan;
    const {first, last} = plan.devices[lane.device];
    const i = lastNotAfter(bars.start, moment, first, last);
    const tolerance = ((this.store.view.end - this.store.view.begin) / this.plotWidth) * 2;
    let best = null;
    let distance = tolerance;
    for (let k = Math.max(first, i - 3); k < Math.min(last, i + 4); ++k) {
      const away = Math.max(bars.start[k] - moment, moment - bars.end[k], 0);
      if (away < distance || (away === 0 && best === null)) {
        best = k;
        distance = away;
      }
    }
    return best === null ? null : {plan, bar: best};
  }

  bubbleAt(lane, moment) {
    const {bubbles} = this.plan.devices[lane.device];
    if (bubbles === null) return null;
    const i = lastNotAfter(bubbles.start, moment, 0, bubbles.start.length);
    return i >= 0 && moment < bubbles.end[i] ? {plan: this.plan, device: lane.device, bubble: i} : null;
  }

  transferAt(lane, moment, y) {
    const {plan} = this;
    const {transfers} = plan;
    const row = Math.min(lane.rowCount - 1, Math.max(0, Math.floor(((y - lane.y) / lane.height) * lane.rowCount)));
    const tolerance = ((this.store.view.end - this.store.view.begin) / this.plotWidth) * 2;
    let best = null;
    let distance = tolerance;
    for (let k = 0; k < lane.items.length && lane.starts[k] <= moment + tolerance; ++k) {
      const i = lane.items[k];
      const away = Math.max(transfers.start[i] - moment, moment - transfers.end[i], 0);
      if (lane.rows[k] === row && away <= distance) {
        best = i;
        distance = away;
      }
    }
    return best === null ? null : {plan, transfer: best};
  }

  // Scrolls so that a device's lane is in sight.
  reveal(device) {
    const lane = this.lanes.find((l) => l.type === "compute" && l.device === device);
    const room = this.height - OVERVIEW - AXIS;
    if (lane.y < this.box.scrollTop || lane.y + 60 > this.box.scrollTop + room) this.box.scrollTop = lane.y - 20;
  }
}
