// Learning curves: a line for each group of runs that differ only in their seed, and a band around it.
const QUIET = 4; // more curves than these would hide each other behind their bands
function smoothed(values, weight) {
  if (!weight) return values;
  let average = 0, share = 0; // started at nothing, and corrected for it
  return values.map((value) => {
    if (value === null) return null;
    average = weight * average + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return average / share;
  });
}
function curveOf(run, weight) {
  const found = run.curves[state.metric];
  if (!found) return null;
  const xs = run.grids[found[0]][state.axis], raw = found[1], ys = smoothed(raw, weight);
  const points = [];
  for (let i = 0; i < xs.length; i++) if (ys[i] !== null && (!state.log || ys[i] > 0)) points.push([xs[i], ys[i], raw[i]]);
  return points.length ? points : null;
}
// The value of a curve between its points; undefined beyond its ends.
function interpolate(points, x) {
  if (x < points[0][0] || x > points[points.length - 1][0]) return undefined;
  let low = 0, high = points.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (points[middle][0] <= x) low = middle; else high = middle; }
  const [a, b] = [points[low], points[high]];
  return b[0] === a[0] ? b[1] : a[1] + (b[1] - a[1]) * (x - a[0]) / (b[0] - a[0]);
}
function seriesOf(group) {
  const curves = group.runs.map((run) => curveOf(run, state.smooth)).filter(Boolean);
  if (!curves.length) return null;
  const series = { ...group, colour: groupColour(group.group), count: curves.length, raw: null };
  if (curves.length === 1) {
    series.points = curves[0].map(([x, y]) => ({ x, y, low: y, high: y }));
    if (state.smooth) series.raw = curves[0].map(([x, , y]) => ({ x, y }));
    return series;
  }
  let xs = [...new Set(curves.flatMap((curve) => curve.map((point) => point[0])))].sort((a, b) => a - b);
  if (xs.length > 400) { const [low, high] = [xs[0], xs[xs.length - 1]]; xs = Array.from({ length: 400 }, (_, i) => low + (high - low) * i / 399); }
  const most = (x) => curves.map((curve) => interpolate(curve, x)).filter((y) => y !== undefined);
  series.points = xs.map((x) => {
    const ys = most(x), y = mean(ys), spread = deviation(ys);
    return state.band === "range" ? { x, y, low: Math.min(...ys), high: Math.max(...ys), n: ys.length } : { x, y, low: y - spread, high: y + spread, spread, n: ys.length };
  }).filter((point) => !isNaN(point.y));
  return series;
}

function drawCurves() {
  const box = byId("chart"), width = box.clientWidth || 800, height = width < 560 ? 270 : 380;
  const groups = visibleGroups(), all = groups.map(seriesOf).filter(Boolean);
  drawLegend(all);
  const series = all.filter((each) => !state.hidden.has(each.group));
  byId("curves-hint").textContent = curvesHint(all);
  if (!series.length) { box.replaceChildren(el("p", { class: "empty" }, all.length ? "All curves are switched off." : "No run that is shown has logged this metric.")); return; }
  const margin = { left: 58, right: 14, top: 12, bottom: 38 };
  const band = state.band !== "none";
  const points = series.flatMap((each) => each.points);
  const xs = points.map((point) => point.x), values = points.flatMap((point) => band ? [point.low, point.high, point.y] : [point.y]).filter((y) => !state.log || y > 0);
  const bounds = (list) => list.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  let [x0, x1] = bounds(xs), [y0, y1] = bounds(values);
  if (x0 === x1) { x1 = 2 * x0 || 1; x0 = 0; } // one point alone: in the middle
  const scale = state.log ? Math.log10 : (y) => y;
  [y0, y1] = [scale(y0), scale(y1)];
  const pad = (y1 - y0 || Math.abs(y1) || 1) * 0.05;
  y0 -= pad; y1 += pad;
  const px = (x) => margin.left + (x - x0) / (x1 - x0) * (width - margin.left - margin.right);
  const py = (y) => height - margin.bottom - ((state.log && y <= 0 ? y0 : scale(y)) - y0) / (y1 - y0) * (height - margin.top - margin.bottom);
  const at = (x, y) => `${px(x).toFixed(1)} ${py(y).toFixed(1)}`;
  const path = (list) => "M" + list.map((point) => at(point.x, point.y)).join("L");
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${state.metric}, ${series.length} curves` });
  for (const tick of ticks(y0, y1, height / 60)) {
    const y = height - margin.bottom - (tick - y0) / (y1 - y0) * (height - margin.top - margin.bottom);
    root.append(svg("line", { class: "gridline", x1: margin.left, x2: width - margin.right, y1: y, y2: y }),
      svg("text", { x: margin.left - 8, y: y + 4, "text-anchor": "end" }, compact(state.log ? 10 ** tick : tick)));
  }
  for (const tick of ticks(x0, x1, width / 110)) {
    root.append(svg("text", { x: px(tick), y: height - margin.bottom + 18, "text-anchor": "middle" }, state.axis === 2 ? duration(tick) : compact(tick)));
  }
  root.append(svg("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: height - margin.bottom, y2: height - margin.bottom }),
    svg("text", { x: width - margin.right, y: height - 4, "text-anchor": "end" }, ["environment steps", "updates", "time"][state.axis]));
  const quiet = series.length > QUIET;
  const layers = { rest: svg("g"), area: svg("g"), line: svg("g") };
  for (const each of [...series].reverse()) {
    const rest = isRest(each.group), mark = { "data-group": each.group, style: { stroke: each.colour } };
    if (band && each.count > 1) {
      const edge = [...each.points.map((point) => at(point.x, point.high)), ...[...each.points].reverse().map((point) => at(point.x, point.low))];
      layers.area.append(svg("path", { class: quiet && !bestGroups.has(each.group) ? "area quiet" : "area", "data-group": each.group, d: "M" + edge.join("L") + "Z", style: { fill: each.colour } }));
    }
    if (each.raw && !rest) layers.line.append(svg("path", { class: "curve raw", ...mark, d: path(each.raw) }));
    (rest ? layers.rest : layers.line).append(each.points.length > 1 ? svg("path", { class: rest ? "curve rest" : "curve", ...mark, d: path(each.points) })
      : svg("circle", { class: "curve", ...mark, cx: px(each.points[0].x), cy: py(each.points[0].y), r: 4 }));
  }
  const crosshair = svg("line", { class: "crosshair", y1: margin.top, y2: height - margin.bottom, visibility: "hidden" });
  const dots = svg("g");
  root.append(layers.rest, layers.area, layers.line, crosshair, dots);
  const leave = () => { crosshair.setAttribute("visibility", "hidden"); dots.replaceChildren(); emphasise(null); hideTip(); };
  const move = (event) => {
    const area = root.getBoundingClientRect(), ratio = width / area.width;
    const mx = (event.clientX - area.left) * ratio, my = (event.clientY - area.top) * ratio;
    if (mx < margin.left - 4 || mx > width - margin.right + 4) { leave(); return; }
    const x = x0 + (mx - margin.left) / (width - margin.left - margin.right) * (x1 - x0);
    const rows = series.map((each) => {
      const point = nearest(each.points, x);
      return { each, point, apart: Math.abs(px(point.x) - mx), off: Math.abs(py(point.y) - my) };
    }).filter((row) => row.apart < 40);
    if (!rows.length) { leave(); return; }
    rows.sort((a, b) => b.point.y - a.point.y);
    const near = rows.reduce((best, row) => row.off < best.off ? row : best);
    const shown = rows.length <= 10 ? rows : [...new Set([...rows.slice(0, 9), near])];
    crosshair.setAttribute("x1", px(near.point.x)); crosshair.setAttribute("x2", px(near.point.x)); crosshair.setAttribute("visibility", "visible");
    dots.replaceChildren(...shown.map((row) => svg("circle", { cx: px(row.point.x), cy: py(row.point.y), r: row === near ? 5 : 3.2, style: { fill: row.each.colour } })));
    const place = state.axis === 2 ? duration(near.point.x) : `${format(Math.round(near.point.x))} ${["steps", "updates"][state.axis]}`;
    showTip(event, el("div", { class: "head" }, `${state.metric} at ${place}`),
      ...shown.map((row) => el("div", { class: row === near ? "row near" : "row" }, swatch(row.each.colour), el("span", { class: "name" }, row.each.label), valueOf(row))),
      rows.length > shown.length ? el("div", { class: "head" }, `and ${rows.length - shown.length} more`) : "");
    emphasise(series.length > 1 ? near.each.group : null);
  };
  root.addEventListener("pointermove", move);
  root.addEventListener("pointerdown", move);
  root.addEventListener("pointerleave", leave);
  box.replaceChildren(root);
}
function valueOf({ each, point }) {
  if (each.count < 2) return format(point.y);
  const seeds = point.n < each.count ? ` (${point.n} of ${each.count} seeds)` : ` (${each.count} seeds)`;
  return (state.band === "range" ? `${format(point.y)} [${format(point.low)}, ${format(point.high)}]` : withSpread(point.y, point.spread)) + seeds;
}
function nearest(points, x) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (points[middle].x <= x) low = middle; else high = middle; }
  return Math.abs(points[low].x - x) <= Math.abs(points[high].x - x) ? points[low] : points[high];
}
function emphasise(group) {
  for (const node of byId("chart").querySelectorAll("[data-group]")) {
    const own = Number(node.dataset.group) === group;
    node.classList.toggle("faded", group !== null && !own);
    node.classList.toggle("chosen", own);
  }
}
function drawLegend(all) {
  const coloured = all.filter((each) => !isRest(each.group));
  if (data.groups.length > COLOURS) coloured.sort((a, b) => ranked().get(a.group) - ranked().get(b.group));
  const rest = all.filter((each) => isRest(each.group));
  const entry = (groups, colour, label, note) => {
    const on = !groups.every((group) => state.hidden.has(group));
    return el("button", {
      type: "button", "aria-pressed": String(on), title: "Show or hide",
      onclick: () => { for (const group of groups) if (on) state.hidden.add(group); else state.hidden.delete(group); drawCurves(); },
      onpointerenter: () => groups.length === 1 && emphasise(groups[0]), onpointerleave: () => emphasise(null),
    }, swatch(colour), el("span", {}, label), el("span", { class: "soft" }, note));
  };
  const star = (group) => bestGroups.has(group) ? "★ " : "";
  byId("legend").replaceChildren(
    ...coloured.map((each) => entry([each.group], each.colour, star(each.group) + each.label, [each.count > 1 ? `${each.count} seeds` : "", format(data.groups[each.group].result)].filter(Boolean).join(" · "))),
    ...(rest.length ? [entry(rest.map((each) => each.group), "var(--rest)", `${rest.length} others`, "with lower returns")] : []));
}
function curvesHint(all) {
  const said = [];
  if (all.some((each) => each.count > 1) && all.length > QUIET && state.band !== "none") said.push("Lines are means over seeds; the band is shown of the best, and of a curve that is pointed at.");
  else if (all.some((each) => each.count > 1)) said.push({ std: "Lines are means over seeds, bands one standard deviation around them.", range: "Lines are means over seeds, bands reach from the lowest to the highest.", none: "Lines are means over seeds." }[state.band]);
  if (data.thinned > 1) said.push(`Long curves are thinned: a point is the mean of up to ${data.thinned} logged ones.`);
  return said.join(" ");
}
