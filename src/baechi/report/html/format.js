// Numbers and names as people read them, and the one way in which this page makes elements: text
// is always text, never markup.

function threeDigits(value) {
  if (value >= 100) return value.toFixed(0);
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function amountText(amount, units) {
  if (amount < 0) return "-" + amountText(-amount, units);
  let i = 0;
  while (i + 1 < units.length && amount >= units[i + 1][0]) ++i;
  const [size, name] = units[i];
  const text = size === 1 ? String(amount) : threeDigits(amount / size);
  return `${text} ${name}`;
}

const TIME_UNITS = [[1, "ns"], [1e3, "µs"], [1e6, "ms"], [1e9, "s"]];
const BYTE_UNITS = [[1, "B"], [1024, "KiB"], [1024 ** 2, "MiB"], [1024 ** 3, "GiB"], [1024 ** 4, "TiB"]];
const RATE_UNITS = [[1, "B/s"], [1e3, "kB/s"], [1e6, "MB/s"], [1e9, "GB/s"], [1e12, "TB/s"]];

const timeText = (ns) => amountText(ns, TIME_UNITS);
const bytesText = (bytes) => amountText(bytes, BYTE_UNITS);
const rateText = (rate) => amountText(rate, RATE_UNITS);
const countText = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, " ");

function percentText(fraction) {
  const percent = fraction * 100;
  return `${Math.abs(percent) < 10 && percent % 1 !== 0 ? percent.toFixed(1) : percent.toFixed(0)}%`;
}

const plural = (n, word) => `${countText(n)} ${word}${n === 1 ? "" : "s"}`;

// A moment, as exactly as `step` (nanoseconds) asks for.
function momentText(ns, step) {
  const unit = TIME_UNITS.findLast(([size]) => size <= Math.max(1, step * 5)) ?? TIME_UNITS[0];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit[0]) - 1e-9));
  return `${(ns / unit[0]).toFixed(Math.min(digits, 9))} ${unit[1]}`;
}

// The end of a name that fits a small place.
function shortName(name) {
  const parts = name.split("/");
  return parts.length > 2 ? parts.slice(-2).join("/") : name;
}

// element("div.card.tall", {title: "..."}, child, "text", ...); null children are left out.
function element(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const made = document.createElement(tag);
  if (classes.length > 0) made.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") made.style.cssText = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}
