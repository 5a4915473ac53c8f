// Numbers and names as people read them, and the one way in which this page makes elements: text
// is always text, never markup.

// The same rules as base/short_text.h, whose words the command, explain and Python print.
const UP = (value) => Math.ceil(value - 1e-9);
const NEAREST = (value) => Math.floor(value + 0.5);

const countText = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");

// Three significant digits, rounded half up.
function threeDigits(amount, size) {
  for (const decimals of [2, 1]) {
    const scaled = Math.floor((amount * 10 ** decimals + size / 2) / size);
    if (scaled < 1000) return (scaled / 10 ** decimals).toFixed(decimals);
  }
  return countText(Math.floor((amount + size / 2) / size));
}

function amountText(amount, units) {
  if (amount < 0) return "-" + amountText(-amount, units);
  let i = 0;
  while (i + 1 < units.length && amount >= units[i + 1][0]) ++i;
  if (i + 1 < units.length && Math.floor((amount + units[i][0] / 2) / units[i][0]) >= units[i + 1][0] / units[i][0]) ++i;
  const [size, name] = units[i];
  return `${size === 1 ? countText(Math.round(amount)) : threeDigits(amount, size)} ${name}`;
}

const TIME_UNITS = [[1, "ns"], [1e3, "us"], [1e6, "ms"], [1e9, "s"]];
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].map((name, i) => [1024 ** i, name]);
const RATE_UNITS = [[1, "B/s"], [1e3, "kB/s"], [1e6, "MB/s"], [1e9, "GB/s"], [1e12, "TB/s"]];

const timeText = (ns) => amountText(ns, TIME_UNITS);
const bytesText = (bytes) => amountText(bytes, BYTE_UNITS);
const rateText = (rate) => amountText(rate, RATE_UNITS);

// One digit behind the point where there is one before it.
function twoDigits(value, rounded) {
  const tenths = rounded(Math.min(value, 1e15) * 10);
  return tenths < 100 ? (tenths / 10).toFixed(1) : countText(rounded(Math.min(value, 1e15)));
}

const FACTORS_FROM = 2;  // above so many times the whole

// "8.4%", "84%", "<0.1%"; beyond 200% a factor, "3.5x".
function percentText(fraction, rounded = NEAREST) {
  if (fraction === 0) return "0%";
  if (fraction > FACTORS_FROM) return `${twoDigits(fraction, rounded)}x`;
  const text = twoDigits(fraction * 100, rounded);
  return `${text === "0.0" ? "<0.1" : text}%`;
}

const shareText = (part, whole) => percentText(whole === 0 ? 0 : part / whole);

// "+8.4%", "-12%", "0%"; beyond +200% the factor that it has become.
function changeText(fraction) {
  if (fraction > FACTORS_FROM) return `${twoDigits(1 + fraction, NEAREST)}x`;
  if (fraction === 0) return "0%";
  return `${fraction < 0 ? "-" : "+"}${twoDigits(Math.abs(fraction) * 100, NEAREST)}%`;
}

// An upper bound, so rounded up: what comes before and behind "at most".
function atMostAbove(fraction) {
  return fraction > FACTORS_FROM ? [`${twoDigits(1 + fraction, UP)}x`, "the best possible"] : [percentText(fraction, UP), "above the best possible"];
}

const plural = (n, word) => `${countText(n)} ${word}${n === 1 ? "" : "s"}`;

// A moment, as exactly as `step` (nanoseconds) asks for, in the unit of `like`: moments of one axis share it.
function momentText(ns, step, like = ns) {
  if (ns === 0) return like === 0 ? "0 ns" : "0";
  const [size, name] = TIME_UNITS.findLast(([unit]) => unit <= Math.abs(like)) ?? TIME_UNITS[0];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9));
  const text = (ns / size).toFixed(Math.min(digits, 9));
  return `${digits === 0 ? countText(text) : text} ${name}`;
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
