// What the varied settings did: dots for one of them, a heat map for two, parallel coordinates for more.
const MOST_CELLS = 24; // values of a setting that a heat map has room for
const FEWEST = 6; // combinations of settings, of which parallel coordinates begin to show something
const tested = data.keys.filter((key) => key !== "seed");

const VALUES = {
  result: ["return", (run) => run.result],
  best: ["best return", (run) => run.best ?? run.result],
  metric: ["last value of the metric above", (run) => run.last[state.metric] ?? null],
};
function measured() {
  const value = VALUES[state.value][1];
  return visibleGroups().map((group) => {
    const values = group.runs.map(value).filter((each) => each !== null && each !== undefined);
    return { ...group, n: values.length, y: values.length ? mean(values) : null, spread: values.length > 1 ? deviation(values) : null };
  }).filter((group) => group.y !== null);
}
const distinct = (groups, key) => [...new Map(groups.filter((group) => key in group.values).map((group) => [JSON.stringify(group.values[key]), group.values[key]])).values()].sort(order);
const heat = (share) => `color-mix(in oklab, var(--hot) ${Math.round(share * 100)}%, var(--cold))`;

function drawSettings() {
  const groups = measured();
  const differing = tested.filter((key) => distinct(groups, key).length > 1);
  // Where more settings differ than so many runs can tell of, only the algorithm is compared: the table has the others.
  const telling = groups.length > differing.length && (groups.length >= FEWEST || differing.length < 3);
  const keys = differing.length > 2 && !telling ? differing.filter((key) => key === "algo") : differing;
  const section = byId("settings-section");
  section.hidden = keys.length === 0;
  if (section.hidden) return;
  const small = keys.filter((key) => distinct(groups, key).length <= MOST_CELLS);
  const views = [["dots", "one setting"], ...(small.length > 1 ? [["heat", "heat map"]] : []), ...(keys.length > 1 && telling ? [["parallel", "parallel coordinates"]] : [])];
  const usual = keys.length === 1 ? "dots" : small.length > 1 && (keys.length === 2 || !telling) ? "heat" : telling ? "parallel" : "dots";
  const view = views.some(([name]) => name === state.view) ? state.view : usual;
  choices(byId("view"), views, view);
  choices(byId("value"), Object.entries(VALUES).map(([name, [text]]) => [name, text]), state.value);
  const offered = view === "heat" ? small : keys;
  const widest = offered.reduce((best, key) => distinct(groups, key).length > distinct(groups, best).length ? key : best);
  const across = offered.includes(state.across) ? state.across : view === "heat" ? widest : offered[0];
  const downs = offered.filter((key) => key !== across);
  const down = downs.includes(state.downKey) ? state.downKey : downs[0];
  byId("across-label").hidden = view === "parallel" || offered.length < 2;
  byId("down-label").hidden = view !== "heat" || downs.length < 2;
  choices(byId("across"), offered.map((key) => [key, NAMES.get(key)]), across);
  choices(byId("down"), downs.map((key) => [key, NAMES.get(key)]), down);
  const box = byId("settings"), [low, high] = [Math.min(...groups.map((group) => group.y)), Math.max(...groups.map((group) => group.y))];
  const share = (y) => high > low ? (y - low) / (high - low) : 0.5;
  const what = VALUES[state.value][0];
  const mixed = differing.filter((key) => key !== across && key !== (view === "heat" ? down : null)).map((key) => NAMES.get(key));
  const others = mixed.length > 4 ? `${mixed.length} of them` : mixed.join(", ");
  const over = mixed.length && view !== "parallel" ? ` The other settings (${others}) are averaged over.` : "";
  if (view === "heat") { box.replaceChildren(heatMap(groups, across, down)); byId("settings-hint").textContent = `Mean ${what} of each combination; stronger colour is higher.${over}`; }
  else if (view === "parallel") { box.replaceChildren(parallel(groups, keys, share)); byId("settings-hint").textContent = `Every line is a combination of settings; it ${resultFirst(keys) ? "begins on the left" : "ends on the right"} at its ${what}. Stronger colour is higher.`; }
  else { box.replaceChildren(dots(groups, across)); byId("settings-hint").textContent = `Every dot is a run, the lines are the mean ${what}.${over}`; }
}
function groupTip(event, title, groups) {
  const values = groups.map((group) => group.y), runs = groups.reduce((sum, group) => sum + group.n, 0);
  const spread = groups.length === 1 ? groups[0].spread : deviation(values);
  showTip(event, el("div", { class: "head" }, title), el("div", { class: "near" }, `${VALUES[state.value][0]} ${withSpread(mean(values), values.length > 1 || spread ? spread : null)}`), el("div", { class: "head" }, `${runs} run${runs === 1 ? "" : "s"}`));
}
function heatMap(groups, across, down) {
  const columns = distinct(groups, across), rows = distinct(groups, down), same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  const cells = rows.map((row) => columns.map((column) => groups.filter((group) => same(group.values[across], column) && same(group.values[down], row))));
  const means = cells.flat().filter((cell) => cell.length).map((cell) => mean(cell.map((group) => group.y)));
  const [low, high] = [Math.min(...means), Math.max(...means)], share = (y) => high > low ? (y - low) / (high - low) : 0.5;
  const dark = () => getComputedStyle(document.documentElement).colorScheme === "dark";
  const table = el("table", { class: "heat" }, el("thead", {},
    el("tr", {}, el("th", { class: "corner" }, `${NAMES.get(down)} ↓  ${NAMES.get(across)} →`), columns.map((column) => el("th", { scope: "col" }, setting(column))))),
    el("tbody", {}, rows.map((row, i) => el("tr", {}, el("th", { scope: "row", class: "corner" }, setting(row)), columns.map((column, j) => {
      const cell = cells[i][j];
      if (!cell.length) return el("td", { class: "none" }, "–");
      const y = mean(cell.map((group) => group.y)), strong = share(y) > 0.5;
      const tell = (event) => groupTip(event, `${NAMES.get(across)}=${setting(column)}, ${NAMES.get(down)}=${setting(row)}`, cell);
      return el("td", { style: { background: heat(share(y)), color: strong ? (dark() ? "#0b1020" : "#ffffff") : "var(--text)" }, onpointermove: tell, onpointerleave: hideTip }, (y === high && high > low ? "★ " : "") + format(y));
    })))));
  return scrolling(el("div", { class: "scroll" }, table));
}
// Places of values on an axis: evenly where they are few or words, else by size (logarithmic over many powers of ten).
function axisOf(values) {
  const list = [...values].sort(order);
  if (list.length <= 8 || !list.every(isNumber)) {
    const place = new Map(list.map((value, index) => [JSON.stringify(value), (index + 0.5) / list.length]));
    const step = Math.ceil(list.length / 12);
    return { slot: 1 / list.length, at: (value) => place.get(JSON.stringify(value)), labels: list.filter((_, i) => i % step === 0).map((value) => [place.get(JSON.stringify(value)), setting(value)]) };
  }
  const [low, high] = [list[0], list[list.length - 1]], log = low > 0 && high / low > 50, scale = log ? Math.log : (x) => x;
  const at = (value) => (scale(value) - scale(low)) / (scale(high) - scale(low));
  const marks = log ? [low, Math.sqrt(low * high), high] : [low, (low + high) / 2, high];
  return { slot: 0, at, labels: marks.map((mark) => [at(mark), compact(Number(mark.toPrecision(3)))]) };
}
function frame(height, least = 0) {
  const width = Math.max(byId("settings").clientWidth || 800, least);
  return [width, svg("svg", { viewBox: `0 0 ${width} ${height}`, height, style: { "min-width": `${least}px` }, role: "img", "aria-label": "settings and results" })];
}
const LINES_APART = 7; // pixels between lines that cross an axis at one value
const roomFor = (keys) => 92 * (keys.length + 1);
// Where not all axes are seen at once, the one that matters most is the one that is.
const resultFirst = (keys) => byId("settings").clientWidth < roomFor(keys);
function parallel(groups, keys, share) {
  const height = 330, [width, root] = frame(height, roomFor(keys)), top = 42, bottom = 20, side = Math.min(60, width / 10);
  const axes = keys.map((key) => ({ name: NAMES.get(key), ...axisOf(distinct(groups, key)), of: (group) => group.values[key] }));
  const ys = groups.map((group) => group.y), [low, high] = [Math.min(...ys), Math.max(...ys)];
  const result = { name: VALUES[state.value][0], at: (y) => high > low ? (y - low) / (high - low) : 0.5, labels: high > low ? [[0, format(low)], [0.5, format((low + high) / 2)], [1, format(high)]] : [[0.5, format(low)]], of: (group) => group.y };
  if (resultFirst(keys)) axes.unshift(result); else axes.push(result);
  const px = (index) => side + index / (axes.length - 1) * (width - 2 * side), py = (at) => height - bottom - at * (height - top - bottom);
  const lines = svg("g"), hits = svg("g");
  const sorted = [...groups].sort((a, b) => a.y - b.y);
  // Where a setting has few values the lines through one of them lie side by side around its label, by their results.
  for (const axis of axes) {
    const counts = new Map(), value = (group) => JSON.stringify(axis.of(group));
    axis.rank = new Map(sorted.map((group) => { const rank = counts.get(value(group)) || 0; counts.set(value(group), rank + 1); return [group, rank]; }));
    axis.alike = (group) => counts.get(value(group));
  }
  const beside = (axis, group) => {
    const others = axis.alike(group) - 1, apart = Math.min(LINES_APART / (height - top - bottom), 0.6 * (axis.slot || 0) / Math.max(1, others));
    return (axis.rank.get(group) - others / 2) * apart;
  };
  for (const group of sorted) {
    const points = axes.map((axis, index) => [px(index), axis.at(axis.of(group)) + beside(axis, group)]).filter(([, at]) => !isNaN(at)).map(([x, at]) => `${x.toFixed(1)} ${py(at).toFixed(1)}`);
    const line = svg("path", { class: "line", d: "M" + points.join("L"), style: { stroke: heat(0.2 + 0.8 * share(group.y)) } });
    const fade = (on) => { for (const other of lines.children) other.classList.toggle("faded", on && other !== line); };
    lines.append(line);
    hits.append(svg("path", { class: "wide", d: "M" + points.join("L"), onpointermove: (event) => { fade(true); groupTip(event, group.label, [group]); }, onpointerleave: () => { fade(false); hideTip(); } }));
  }
  root.append(lines, ...axes.map((axis, index) => {
    const last = index === axes.length - 1, first = index === 0, anchor = first ? "start" : last ? "end" : "middle", x = px(index);
    return svg("g", {}, svg("line", { class: "axis", x1: x, x2: x, y1: py(0), y2: py(1) }),
      svg("text", { class: "title", x: first ? x - side + 4 : last ? x + side - 4 : x, y: index % 2 && width < 560 ? 30 : 16, "text-anchor": anchor }, axis.name),
      axis.labels.map(([at, text]) => svg("text", { class: "halo", x: last ? x + 6 : x - 6, y: py(at) + 4, "text-anchor": last ? "start" : "end" }, text)));
  }), hits);
  return scrolling(el("div", { class: "scroll" }, root));
}
function dots(groups, key) {
  const height = 300, [width, root] = frame(height), margin = { left: 58, right: 14, top: 14, bottom: 42 };
  const here = groups.filter((group) => key in group.values), values = distinct(here, key), axis = axisOf(values);
  const value_ = VALUES[state.value][1], single = here.flatMap((group) => group.runs.map((run) => ({ run, group, y: value_(run) }))).filter((each) => each.y !== null && each.y !== undefined);
  const ys = single.map((each) => each.y), pad = (Math.max(...ys) - Math.min(...ys) || 1) * 0.08, low = Math.min(...ys) - pad, high = Math.max(...ys) + pad;
  const across = (at) => margin.left + at * (width - margin.left - margin.right), px = (value) => across(axis.at(value)), py = (y) => height - margin.bottom - (y - low) / (high - low) * (height - margin.top - margin.bottom);
  for (const tick of ticks(low, high, 5)) root.append(svg("line", { class: "gridline", x1: margin.left, x2: width - margin.right, y1: py(tick), y2: py(tick) }), svg("text", { x: margin.left - 8, y: py(tick) + 4, "text-anchor": "end" }, compact(tick)));
  for (const [at, text] of axis.labels) root.append(svg("text", { x: across(at), y: height - margin.bottom + 18, "text-anchor": "middle" }, text));
  root.append(svg("text", { class: "title", x: width - margin.right, y: height - 6, "text-anchor": "end" }, NAMES.get(key)));
  for (const value of values) {
    const same = single.filter((each) => JSON.stringify(each.group.values[key]) === JSON.stringify(value)), middle = py(mean(same.map((each) => each.y)));
    if (values.length <= 12) root.append(svg("line", { x1: px(value) - 26, x2: px(value) + 26, y1: middle, y2: middle, style: { stroke: "var(--text)", "stroke-width": 2 } }),
      svg("text", { class: "title halo", x: px(value) + 34, y: middle + 4 }, format(mean(same.map((each) => each.y)))));
    for (const { run, group, y } of same) root.append(svg("circle", { cx: px(value), cy: py(y), r: 5, style: { fill: groupColour(group.group), opacity: 0.8 }, onpointermove: (event) => groupTip(event, run.name, [{ ...group, n: 1, y, spread: null }]), onpointerleave: hideTip }));
  }
  return root;
}
