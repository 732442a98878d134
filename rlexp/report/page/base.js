// What all parts share: the data, making elements, numbers as people read them, the tooltip.
// Everything from a run goes through el() and svg(), which make text nodes and attributes, never HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const COLOURS = 10;
const SVG = "http://www.w3.org/2000/svg";

const state = {
  text: "", env: null, statuses: new Set(Object.keys(data.statuses)), hidden: new Set(),
  metric: data.metric, axis: data.axis, smooth: 0, band: "std", log: false,
  sort: null, down: true, more: false, view: null, value: "result", across: null, downKey: null,
};

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) node.style.setProperty(key, each);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function format(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (!isFinite(value)) return String(value);
  if (size >= 1e7 || (size > 0 && size < 1e-4)) return value.toExponential(2).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  if (Number.isInteger(value)) return String(value);
  if (size >= 100) return value.toFixed(1);
  if (size >= 10) return value.toFixed(1);
  return size >= 1 ? value.toFixed(2) : String(Number(value.toPrecision(3)));
}
// A deviation is known to two digits at best.
const rough = (value) => value >= 10 ? Math.round(value).toLocaleString("en-US") : value >= 1 ? value.toFixed(1) : String(Number(value.toPrecision(2)));
const withSpread = (value, spread) => value === null || value === undefined ? "" : format(value) + (spread === null || spread === undefined ? "" : " ± " + rough(spread));
function setting(value, digits = 4) {
  if (value === undefined) return "";
  if (typeof value === "number" && !Number.isInteger(value)) {
    const shown = Number(value.toPrecision(digits));
    return Math.abs(shown) < 1e-4 ? shown.toExponential() : String(shown);
  }
  return String(value);
}
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const s = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  const h = Math.floor(s / 3600), m = Math.floor((s % 3600) / 60);
  return h ? `${h}:${two(m)}:${two(s % 60)}` : `${m}:${two(s % 60)}`;
}
// For people who do not know which of 1:02 are the minutes.
function span(seconds) {
  const s = Math.round(seconds), h = Math.floor(s / 3600), m = Math.floor((s % 3600) / 60);
  if (h >= 48) return `${(h / 24).toFixed(1)} days`;
  return h ? `${h} h ${m} min` : m ? `${m} min ${s % 60} s` : `${s} s`;
}
function compact(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return Number((value / 1e9).toPrecision(4)) + "G";
  if (size >= 1e6) return Number((value / 1e6).toPrecision(4)) + "M";
  if (size >= 1e4) return Number((value / 1e3).toPrecision(4)) + "k";
  if (size > 0 && size < 1e-3) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(6)));
}
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
function deviation(values) {
  if (values.length < 2) return 0;
  const middle = mean(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1));
}
// Keys without their group where that leaves no doubt: algo.gamma is gamma.
function shortNames(keys) {
  const end = (key) => key.slice(key.lastIndexOf(".") + 1);
  const count = new Map();
  for (const key of keys) count.set(end(key), (count.get(end(key)) || 0) + 1);
  return new Map(keys.map((key) => [key, key === "env.id" ? "env" : count.get(end(key)) === 1 ? end(key) : key]));
}
const NAMES = shortNames([...data.keys, ...data.more_keys]);
const COLUMNS = 10; // settings that a table has room for
const crowded = data.keys.length > COLUMNS; // runs that are unlike in so much: their settings are looked up, not read
const isNumber = (value) => typeof value === "number";
function order(a, b) {
  if (isNumber(a) && isNumber(b)) return a - b;
  if (isNumber(a) !== isNumber(b)) return isNumber(a) ? -1 : 1;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

// With many groups the best ones of the environment that is shown have the colours, and the others are grey.
const rankings = new Map();
function ranked() {
  const env = data.groups.length > COLOURS ? state.env : null;
  if (!rankings.has(env)) {
    const list = data.groups.map((_, index) => index).filter((group) => env === null || data.groups[group].env === env);
    if (list.length > COLOURS) list.sort((a, b) => (data.groups[b].result ?? -Infinity) - (data.groups[a].result ?? -Infinity));
    rankings.set(env, new Map(list.map((group, rank) => [group, rank])));
  }
  return rankings.get(env);
}
function groupColour(group) {
  const rank = ranked().get(group) ?? COLOURS;
  return rank < COLOURS ? `var(--c${rank})` : "var(--rest)";
}
const isRest = (group) => groupColour(group) === "var(--rest)";
const bestGroups = new Set(data.groups.length > 1 ? data.best.map((each) => each.group) : []);

// ---- which runs are meant

const FIELDS = { return: "result", best: "best", steps: "steps", updates: "updates", time: "time", seed: "seed", status: "status", algo: "algo", env: "env", run: "name", name: "name" };
function field(run, name) {
  if (Object.hasOwn(FIELDS, name)) return run[FIELDS[name]];
  const key = Object.hasOwn(run.config, name) ? name : [...NAMES].find(([, short]) => short === name)?.[0] ?? Object.keys(run.config).find((each) => each.endsWith("." + name));
  return key === undefined ? undefined : run.config[key];
}
function condition(word) {
  const found = /^([^<>=!]+)(>=|<=|!=|=|>|<)(.*)$/.exec(word);
  if (!found) {
    const text = word.toLowerCase();
    return (run) => run.words.includes(text);
  }
  const [, name, sign, wanted] = found;
  return (run) => {
    const value = field(run, name);
    if (value === undefined || value === null) return (sign === "!=") || (sign === "=" && wanted === "null" && value === null);
    const number = wanted.trim() === "" ? NaN : Number(wanted);
    const same = isNumber(value) && !isNaN(number) ? value === number : String(value).toLowerCase() === wanted.toLowerCase();
    if (sign === "=") return wanted === "" || same;
    if (sign === "!=") return !same;
    if (!isNumber(value) || isNaN(number)) return wanted === "";
    return { ">": value > number, "<": value < number, ">=": value >= number, "<=": value <= number }[sign];
  };
}
for (const run of data.runs) {
  run.words = [run.name, run.status, run.algo, run.env, ...Object.entries(run.values).map(([key, value]) => `${key}=${setting(value)}`)].join(" ").toLowerCase();
}
function visibleRuns() {
  const conditions = state.text.split(/\s+/).filter(Boolean).map(condition);
  return data.runs.filter((run) => state.statuses.has(run.status) && (state.env === null || run.env === state.env || run.group === null) && conditions.every((each) => each(run)));
}
// Groups with the members that are meant.
function visibleGroups() {
  const members = new Map();
  for (const run of visibleRuns()) if (run.group !== null) members.set(run.group, [...(members.get(run.group) || []), run]);
  return [...members].sort((a, b) => a[0] - b[0]).map(([group, runs]) => ({ group, runs, label: data.groups[group].label, values: data.groups[group].values }));
}

// ---- small screens

const phone = matchMedia("(max-width: 640px)"); // as in page.css
// A part that scrolls fades out at the edges where it goes on: phones show no scroll bar.
function scrolling(box) {
  const mark = () => {
    const right = box.scrollWidth - box.clientWidth - box.scrollLeft, down = box.scrollHeight - box.clientHeight - box.scrollTop;
    for (const [name, left] of [["on-left", box.scrollLeft], ["on-right", right], ["on-down", down]]) box.classList.toggle(name, left > 1);
  };
  box.addEventListener("scroll", mark, { passive: true });
  const sizes = new ResizeObserver(mark);
  for (const each of [box, ...box.children]) sizes.observe(each);
  new MutationObserver(mark).observe(box, { childList: true });
  return box;
}

// ---- tooltip

function showTip(event, ...children) {
  const tip = byId("tip");
  tip.replaceChildren(...children);
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), gap = 14;
  const left = event.clientX + gap + box.width > innerWidth - 8 ? event.clientX - gap - box.width : event.clientX + gap;
  tip.style.left = Math.max(8, Math.min(left, innerWidth - box.width - 8)) + "px";
  tip.style.top = Math.max(8, Math.min(event.clientY + gap, innerHeight - box.height - 8)) + "px";
}
const hideTip = () => { byId("tip").hidden = true; };
const swatch = (colour) => el("span", { class: "swatch", style: { background: colour } });

function choices(select, options, chosen) {
  select.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
  if (chosen !== null && chosen !== undefined) select.value = chosen;
}
function ticks(low, high, count) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const found = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) found.push(Number(tick.toPrecision(12)));
  return found;
}
