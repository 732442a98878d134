// The runs as a table: any column sorts, a row opens its details. On a phone the return stands beside the name.
function columns() {
  const envs = new Set(data.runs.map((run) => run.env)).size > 1, algos = new Set(data.runs.map((run) => run.algo)).size > 1;
  const keys = [...(crowded && !state.more ? [] : data.keys), ...(state.more ? data.more_keys : [])].filter((key) => !["seed", "algo", "env.id"].includes(key));
  const some = (name) => data.runs.some((run) => run[name] !== null && run[name] !== undefined && run[name] !== "");
  const result = { key: "result", title: "return", of: (run) => run.result, cell: (run) => withSpread(run.result, run.spread), title2: "of the last evaluation, ± standard deviation over its episodes; without evaluations, of the last training episodes" };
  const list = [
    { key: "name", title: "run", of: (run) => run.name, cell: nameCell },
    phone.matches ? result : null,
    { key: "status", title: "status", of: (run) => run.status, cell: (run) => el("span", { class: `status ${run.status}`, title: run.problem }, run.status) },
    algos || state.more ? { key: "algo", title: "algo", of: (run) => run.algo } : null,
    envs || state.more ? { key: "env", title: "env", of: (run) => run.env } : null,
    ...keys.map((key) => ({ key, title: NAMES.get(key), of: (run) => run.values[key], show: setting })),
    { key: "seed", title: "seed", of: (run) => run.seed, show: setting },
    state.axis === 0 ? { key: "steps", title: "steps", of: (run) => run.steps, show: format } : null,
    state.axis === 1 || state.more ? { key: "updates", title: "updates", of: (run) => run.updates, show: format } : null,
    state.more && some("progress") ? { key: "progress", title: "done", of: (run) => run.progress, show: (value) => `${Math.round(value * 100)}%` } : null,
    { key: "time", title: "time", of: (run) => run.time, show: duration },
    state.more ? { key: "created", title: "started", of: (run) => run.created, show: (text) => text.slice(0, 16).replace("T", " ") } : null,
    phone.matches ? null : result,
    some("best") ? { key: "best", title: "best", of: (run) => run.best, cell: (run) => withSpread(run.best, run.best_spread), title2: "the best evaluation" } : null,
  ].filter(Boolean);
  for (const column of list) {
    const values = data.runs.map(column.of).filter((value) => value !== null && value !== undefined);
    column.numeric = values.length > 0 && values.every(isNumber);
  }
  return list;
}
function nameCell(run) {
  const dot = el("span", { class: "dot", style: { background: run.group === null ? "transparent" : groupColour(run.group) } });
  return [dot, el("button", { type: "button", class: "open", title: run.path }, run.name), bestRuns.has(run.id) ? el("span", { class: "star", title: "the highest return in its environment" }, "★") : null];
}
// The best single run in each environment.
const bestRuns = new Set();
for (const env of new Set(data.runs.map((run) => run.env))) {
  const have = data.runs.filter((run) => run.env === env && run.result !== null && run.result !== undefined);
  if (have.length > 1) bestRuns.add(have.reduce((best, run) => run.result > best.result ? run : best).id);
}
function drawTable() {
  const list = columns(), sorted = list.find((column) => column.key === state.sort);
  const head = el("tr", {}, list.map((column) => {
    const active = column === sorted;
    return el("th", { scope: "col", class: column.numeric && "num", title: column.title2 || column.key, "aria-sort": active && (state.down ? "descending" : "ascending") },
      el("button", { type: "button", onclick: () => sortBy(column) }, column.title, active ? el("span", { class: "arrow" }, state.down ? " ↓" : " ↑") : null));
  }));
  let runs = visibleRuns();
  if (sorted) {
    const missing = (value) => value === null || value === undefined || value === "";
    runs = [...runs].sort((a, b) => {
      const [x, y] = [sorted.of(a), sorted.of(b)];
      if (missing(x) || missing(y)) return missing(x) - missing(y);
      return state.down ? order(y, x) : order(x, y);
    });
  }
  const body = runs.map((run) => el("tr", { "data-run": run.id, onclick: () => openDetails(run), onpointerenter: () => run.group !== null && emphasise(run.group), onpointerleave: () => emphasise(null) },
    list.map((column) => {
      const value = column.of(run);
      return el("td", { class: column.numeric && "num" }, column.cell ? column.cell(run) : value === null || value === undefined ? (value === null && column.show === setting ? "null" : "") : (column.show || String)(value));
    })));
  byId("runs").tHead.replaceChildren(head);
  byId("runs").tBodies[0].replaceChildren(...(body.length ? body : [el("tr", {}, el("td", { class: "soft", colspan: list.length }, "No run is like that."))]));
  byId("count").textContent = runs.length === data.runs.length ? "" : `${runs.length} of ${data.runs.length} runs`;
}
function sortBy(column) {
  state.down = state.sort === column.key ? !state.down : column.numeric && !["seed"].includes(column.key);
  state.sort = column.key;
  drawTable();
}
