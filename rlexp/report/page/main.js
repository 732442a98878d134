// Putting it together: what the page opens with, and what its controls change.
function drawTiles() {
  const completed = data.statuses.completed || 0, total = data.runs.length;
  const others = Object.entries(data.statuses).filter(([status]) => status !== "completed").map(([status, count]) => `${count} ${status}`).join(", ");
  const tiles = data.best.slice(0, 3).map(({ env, group }) => {
    const best = data.groups[group], seeds = best.counted, alone = data.groups.filter((each) => each.env === env).length === 1;
    return tile("best", alone ? `Return on ${env}` : data.best.length > 1 ? `Best on ${env}, at the end` : "Best return at the end", withSpread(best.result, best.spread ?? data.runs[best.runs[0]].spread),
      best.label + (seeds > 1 ? `, mean of ${seeds} seeds` : ""));
  });
  tiles.push(tile("", "Runs", String(total), completed === total ? "all completed" : [completed ? `${completed} completed` : "", others].filter(Boolean).join(", ")));
  const keys = data.keys.filter((key) => key !== "seed");
  if (keys.length || data.keys.length) {
    const counts = keys.map((key) => `${NAMES.get(key)}: ${extent(distinct(data.groups, key), crowded ? 12 : 6)}`);
    tiles.push(tile("", "Varied", keys.length ? `${keys.length} setting${keys.length > 1 ? "s" : ""}` : "the seed", keys.length ? counts.slice(0, crowded ? 1 : 3).join(" · ") + (crowded ? " · all of them under “more columns”" : counts.length > 3 ? " · …" : "") : `${data.runs.length} seeds`));
  }
  tiles.push(tile("", "Training time", span(data.time), total > 1 ? `${span(data.time / total)} per run` : ""));
  byId("tiles").replaceChildren(...tiles);
}
function extent(values, most) {
  const shown = values.map((value) => setting(value, 3));
  if (shown.length <= most) return shown.join(", ");
  return values.every(isNumber) ? `${shown[0]} to ${shown[shown.length - 1]}` : shown.slice(0, most).join(", ") + ", …";
}
const tile = (kind, what, figure_, note) => el("div", { class: `tile ${kind}` }, el("div", { class: "what" }, what), el("div", { class: "figure" }, figure_), note ? el("div", { class: "note" }, note) : null);

function drawStatuses() {
  const names = Object.keys(data.statuses);
  byId("statuses").replaceChildren(...(names.length < 2 ? [] : names.map((status) => el("button", {
    type: "button", class: "chip", "aria-pressed": String(state.statuses.has(status)),
    onclick: () => { if (state.statuses.has(status)) state.statuses.delete(status); else state.statuses.add(status); drawStatuses(); draw(); },
  }, `${status} ${data.statuses[status]}`))));
}
function drawVideos() {
  const shown = visibleRuns().flatMap((run) => run.videos.slice(-1).map((video) => figure(run, video)));
  byId("videos-section").hidden = shown.length === 0;
  byId("videos").replaceChildren(...shown.slice(0, 60));
}
function draw() {
  drawCurves();
  drawSettings();
  drawTable();
  drawVideos();
}

function listen() {
  const on = (id, event, change) => byId(id).addEventListener(event, (happened) => change(happened.target));
  on("filter", "input", (input) => { state.text = input.value; draw(); });
  on("env", "change", (select) => { state.env = select.value === "" ? null : select.value; draw(); });
  on("metric", "change", (select) => { state.metric = select.value; drawCurves(); drawSettings(); });
  on("axis", "change", (select) => { state.axis = Number(select.value); drawCurves(); drawTable(); });
  on("smooth", "input", (input) => { state.smooth = Number(input.value); byId("smooth-value").textContent = input.value; drawCurves(); });
  on("band", "change", (select) => { state.band = select.value; drawCurves(); });
  on("log", "change", (box) => { state.log = box.checked; drawCurves(); });
  on("more", "change", (box) => { state.more = box.checked; drawTable(); });
  on("view", "change", (select) => { state.view = select.value; drawSettings(); });
  on("value", "change", (select) => { state.value = select.value; drawSettings(); });
  on("across", "change", (select) => { state.across = select.value; drawSettings(); });
  on("down", "change", (select) => { state.downKey = select.value; drawSettings(); });
  on("theme", "click", () => {
    const root = document.documentElement;
    const dark = getComputedStyle(root).colorScheme === "dark";
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("rlexp-theme", root.dataset.theme); } catch { /* a page from disk may have no storage */ }
    drawSettings();
  });
  byId("details").addEventListener("click", (event) => { if (event.target === byId("details")) byId("details").close(); });
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawCurves(); drawSettings(); } });
  phone.addEventListener("change", drawTable);
  for (const box of [document.querySelector("#runs-section .scroll"), byId("legend")]) scrolling(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawSettings); // its letters are dark or light
  addEventListener("scroll", hideTip, { passive: true });
}

function begin() {
  try { const theme = localStorage.getItem("rlexp-theme"); if (theme) document.documentElement.dataset.theme = theme; } catch { /* as above */ }
  const envs = [...new Set(data.runs.map((run) => run.env).filter(Boolean))];
  if (envs.length > 1) { // returns of different environments do not compare
    const runs = (env) => data.runs.filter((run) => run.env === env).length;
    envs.sort((a, b) => runs(b) - runs(a));
    state.env = envs[0];
    choices(byId("env"), [...envs.map((env) => [env, `${env} · ${runs(env)} run${runs(env) === 1 ? "" : "s"}`]), ["", "all"]], state.env);
    byId("env-choice").hidden = false;
  }
  const results = data.runs.some((run) => run.result !== null && run.result !== undefined);
  state.sort = results && data.runs.length > 1 ? "result" : null;
  choices(byId("metric"), data.metrics.map((name) => [name, name]), state.metric);
  byId("axis").value = String(state.axis);
  byId("curves-section").hidden = data.metrics.length === 0;
  byId("controls").hidden = byId("filter-help").hidden = data.runs.length < 2;
  byId("footer").textContent = `Made by rlexp ${data.version} on ${data.made.slice(0, 16).replace("T", " ")} UTC. Nothing on this page is loaded from elsewhere.`;
  drawTiles();
  drawStatuses();
  listen();
  draw();
}
begin();
