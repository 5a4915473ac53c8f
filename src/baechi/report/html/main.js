// Puts the page together: what is shared between its parts, the toolbar, search, keys, themes.

const data = decode(document.getElementById("data").textContent);
const store = {
  data,
  view: new View(Math.max(...data.plans.map((plan) => plan.makespan))),
  groups: groupOperators(data, microBatches(data) > 1 ? "micro-batch" : "kind"),
  matches: null, // by operator row: found by the search, or null without one
  group: null, // the legend's entry that stands out, or null
  selection: null,
  showPath: true,
  printing: false,
  select: null, // set below
};
const timelines = data.plans.map((plan) => new Timeline(plan, store));
const redraw = () => timelines.forEach((timeline) => timeline.redraw());
store.view.onChange(redraw);

// --- selection -------------------------------------------------------------------------------------

const panel = element("div.details", {"aria-live": "polite"});

function showDetails() {
  if (store.selection === null) panel.replaceChildren(element("p.soft", {}, "Point at a bar to see what it is; click it to keep it here and follow what it waited for."));
  else panel.replaceChildren(...describe(data, store.selection, 1000, follow));
}

store.select = (found) => {
  store.selection = found;
  showDetails();
  redraw();
};

// Selects, and brings it into sight.
function follow(found) {
  const {bars, transfers} = found.plan;
  const [start, end] = found.bar !== undefined ? [bars.start[found.bar], bars.end[found.bar]] : [transfers.start[found.transfer], transfers.end[found.transfer]];
  const {view} = store;
  if (start < view.begin || end > view.end || end - start < (view.end - view.begin) / 150) {
    const half = Math.max((end - start) * 30, 3000) / 2;
    view.show((start + end) / 2 - half, (start + end) / 2 + half);
  }
  if (found.bar !== undefined) timelines[found.plan.number].reveal(bars.device[found.bar]);
  store.select(found);
}

// The operator before or after on the device of the selected one.
function step(direction) {
  const {selection, view} = store;
  const plan = selection?.plan ?? data.plans[0];
  const {bars} = plan;
  if (selection?.bar === undefined) {
    const device = plan.devices.find((d) => d.last > d.first);
    if (device === undefined) return;
    follow({plan, bar: Math.max(device.first, lastNotAfter(bars.start, view.begin, device.first, device.last))});
    return;
  }
  const {first, last} = plan.devices[bars.device[selection.bar]];
  follow({plan, bar: Math.min(last - 1, Math.max(first, selection.bar + direction))});
}

// --- search ----------------------------------------------------------------------------------------

const found = {rows: [], at: -1};
const lowerNames = data.names.map((name) => name.toLowerCase());
const count = element("span.count", {role: "status"});
const searchBox = element("input", {type: "search", placeholder: "Search operators", "aria-label": "Search operators by name or kind", spellcheck: "false"});

function search() {
  const wanted = searchBox.value.trim().toLowerCase();
  found.at = -1;
  found.rows = [];
  if (wanted === "") {
    store.matches = null;
    count.textContent = "";
    redraw();
    return;
  }
  store.matches = new Uint8Array(data.names.length);
  const kindMatches = data.kinds.map((kind) => kind.toLowerCase() === wanted);
  lowerNames.forEach((name, row) => {
    if (!name.includes(wanted) && !kindMatches[data.operators.kind[row]]) return;
    store.matches[row] = 1;
    found.rows.push(row);
  });
  count.textContent = found.rows.length === 0 ? "none found" : `${countText(found.rows.length)} found`;
  redraw();
}

function nextMatch(direction) {
  const {bars} = data.plans[0];
  const rows = found.rows.filter((row) => bars.ofOperator[row] >= 0);
  if (rows.length === 0) return;
  found.at = (found.at + direction + rows.length) % rows.length;
  count.textContent = `${countText(found.at + 1)} of ${countText(rows.length)}`;
  follow({plan: data.plans[0], bar: bars.ofOperator[rows[found.at]]});
}

searchBox.addEventListener("input", search);
searchBox.addEventListener("keydown", (event) => {
  if (event.key === "Enter") nextMatch(event.shiftKey ? -1 : 1);
  if (event.key === "Escape") {
    searchBox.value = "";
    search();
    timelines[0].canvas.focus();
  }
});

// --- toolbar and legend ----------------------------------------------------------------------------

const pathButton = element("button", {"aria-pressed": "true", title: "Show the critical path (c)", onclick: togglePath}, "Critical path");

function togglePath() {
  store.showPath = !store.showPath;
  pathButton.setAttribute("aria-pressed", String(store.showPath));
  redraw();
}

const colorBy = element("select", {"aria-label": "Colour by", onchange: () => {
  store.groups = groupOperators(data, colorBy.value);
  store.group = null;
  showLegend();
  redraw();
}}, ...(microBatches(data) > 1 ? [element("option", {value: "micro-batch"}, "Colour by micro-batch")] : []), element("option", {value: "kind"}, "Colour by kind"), element("option", {value: "pass"}, "Colour by pass"), element("option", {value: "layer"}, "Colour by layer"));

const legend = element("div.legend");

function showLegend() {
  const {groups, colored} = store.groups;
  const entries = groups.slice(0, colored).map((group, i) => [group.name, `--c${i}`]);
  const passes = store.groups.by === "micro-batch";
  if (groups.length > colored) entries.push([passes ? groups[colored].name : plural(groups.length - colored, "other"), "--other"]);
  legend.replaceChildren(
    ...entries.map(([name, color], i) => element("button", {
      "aria-pressed": String(store.group === i),
      title: "Let these stand out",
      onclick: () => {
        store.group = store.group === i ? null : i;
        showLegend();
        redraw();
      },
    }, element("span.swatch", {style: `background:var(${color})`}), name)),
    passes ? element("span.mark", {}, element("span.swatch", {style: "background:linear-gradient(var(--forward), var(--forward)), var(--c0)"}), "lighter: forward") : "",
    ...[["sent", "--send", ""], ["received", "--receive", ""], ["memory", "--memory", ""], ["capacity", "--capacity", ".rule"], ["critical path", "--critical", ".rule"],
      ...(microBatches(data) > 1 ? BUBBLES.map((part) => [`idle: ${part.name}`, part.color, ""]) : [])].map(([name, color, shape]) =>
      element("span.mark", {}, element(`span.swatch${shape}`, {style: `background:var(${color})`}), name)));
}

const KEYS = new Map([
  ["ArrowLeft", () => store.view.pan(-0.15)],
  ["ArrowRight", () => store.view.pan(0.15)],
  ["+", () => store.view.zoom(1 / 1.5)],
  ["=", () => store.view.zoom(1 / 1.5)],
  ["-", () => store.view.zoom(1.5)],
  ["0", () => store.view.fit()],
  ["Home", () => store.view.show(0, store.view.end - store.view.begin)],
  ["End", () => store.view.show(2 * store.view.limit, 2 * store.view.limit + store.view.end - store.view.begin)],
  ["[", () => step(-1)],
  ["]", () => step(1)],
  ["n", () => nextMatch(1)],
  ["p", () => nextMatch(-1)],
  ["c", togglePath],
  ["Escape", () => store.select(null)],
]);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const tag = event.target.tagName;
  if (tag === "INPUT" || tag === "SELECT") return;
  if (event.key === "/") {
    event.preventDefault();
    searchBox.focus();
    searchBox.select();
    return;
  }
  const arrows = event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End";
  if (arrows && tag !== "CANVAS") return; // these scroll the page
  const action = KEYS.get(event.key);
  if (action === undefined) return;
  event.preventDefault();
  action();
});

// --- themes and printing ---------------------------------------------------------------------------

const systemDark = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
const themeButton = element("button.icon", {onclick: () => {
  chosenTheme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  applyTheme();
}});

function applyTheme() {
  const theme = chosenTheme ?? (systemDark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  document.documentElement.style.colorScheme = theme;
  themeButton.textContent = theme === "dark" ? "☀" : "☾";
  themeButton.title = theme === "dark" ? "Light colours" : "Dark colours";
  themeButton.setAttribute("aria-label", themeButton.title);
  redraw();
}

systemDark.addEventListener("change", applyTheme);
matchMedia("print").addEventListener("change", (event) => {
  store.printing = event.matches;
  timelines.forEach((timeline) => timeline.resize());
});

// --- the page --------------------------------------------------------------------------------------

function pair(name, of, {tall = false} = {}) {
  const cards = data.plans.map((plan) => element(tall ? "section.card.tall" : "section.card", {}, element("h2", {}, name), planName(plan), ...[of(plan)].flat()));
  return cards.length > 1 ? [element("div.pair", {style: "margin-bottom:14px"}, cards.map((card) => {
    card.style.margin = "0";
    return card;
  }))] : cards;
}

const {graph} = data;
const clusters = [...new Set(data.plans.map((plan) => plan.cluster).filter((name) => name !== ""))];
document.body.classList.toggle("two", data.plans.length > 1);
document.getElementById("header").append(
  element("h1", {}, graph.name || "Plan"),
  element("span.facts", {}, `${plural(graph.operators, "operator")}, ${plural(graph.edges, "edge")}${graph.batch_size ? `, batch ${graph.batch_size}` : ""}${clusters.length > 0 ? `, on ${clusters.join(" and ")}` : ""}`),
  themeButton);

const icon = (text, title, action) => element("button.icon", {title, "aria-label": title, onclick: action}, text);
const timelineSection = element("section.card.tall", {id: "timeline"},
  element("div.toolbar", {},
    element("h2", {}, "Timeline"), searchBox, count, element("span.grow"), colorBy, pathButton,
    icon("−", "Zoom out (-)", () => store.view.zoom(1.5)), icon("+", "Zoom in (+)", () => store.view.zoom(1 / 1.5)),
    element("button", {title: "Show the whole step (0)", onclick: () => store.view.fit()}, "Fit")),
  element("div.pair", {}, data.plans.map((plan) => element("div", {}, planName(plan), timelines[plan.number].box))),
  legend,
  element("p.hint", {}, "Wheel, two fingers or ", element("kbd", {}, "+"), " ", element("kbd", {}, "−"), " zoom, drag or ", element("kbd", {}, "←"), " ", element("kbd", {}, "→"), " pan, ", element("kbd", {}, "0"), " fits, ", element("kbd", {}, "/"), " searches, ", element("kbd", {}, "n"), " next match, ", element("kbd", {}, "["), " ", element("kbd", {}, "]"), " step through operators, ", element("kbd", {}, "c"), " critical path."),
  panel);

const single = data.plans.length === 1;
document.getElementById("main").append(...[
  single ? summaryTiles(data, data.plans[0]) : element("div.pair", {}, data.plans.map((plan) => element("div", {}, planName(plan), summaryTiles(data, plan)))),
  warningBox(data.plans),
  single ? null : comparison(data.plans),
  timelineSection,
  ...pair("Methods compared", methodsTable),
  ...pair("Devices", (plan) => [devicesTable(plan), swatches([{words: "computing", color: "--c0"}, ...idleParts(plan)]),
    ...(plan.micro_batches > 1 ? [element("h3", {style: "margin-top:14px"}, "Why they are idle"), bubblesTable(plan)] : [])]),
  element("div.grid", {}, ...(single ? [
    pair("Memory at the peaks", (plan) => memorySection(data, plan, follow)), pair("Critical path", (plan) => pathSection(data, plan, follow)),
  ] : []).flat()),
  ...(single ? [] : [...pair("Memory at the peaks", (plan) => memorySection(data, plan, follow)), ...pair("Critical path", (plan) => pathSection(data, plan, follow))]),
  ...(single ? [element("div.grid", {}, pair("Lower bounds", boundsTable), element("section.card", {}, element("h2", {}, "Time by kind of operator"), kindsSection(data)))] : pair("Lower bounds", boundsTable)),
  ...pair("Cluster and cost assumptions", (plan) => clusterSection(data, plan)),
].filter((part) => part !== null));
document.getElementById("footer").append(`Made by baechi ${data.baechi}. Predicted by its execution simulator; equal input gives an equal page.`);

applyTheme();
showLegend();
showDetails();
