// All that is known of one run.
function openDetails(run) {
  const dialog = byId("details");
  const rows = [
    ["status", el("span", { class: `status ${run.status}` }, run.status)],
    run.problem && ["problem", el("span", { class: "problem" }, run.problem)],
    run.result !== null && ["return", withSpread(run.result, run.spread) + (run.kind === "eval" ? "" : " (of training episodes)")],
    run.best !== null && ["best", withSpread(run.best, run.best_spread)],
    run.steps !== null && run.steps !== undefined && ["steps", format(run.steps) + (run.progress === null || run.progress === undefined ? "" : `, ${Math.round(run.progress * 100)}% of its budget`)],
    run.updates && ["updates", format(run.updates)],
    run.time && ["time", duration(run.time)],
    ["folder", el("code", {}, run.path)],
    ...run.details.filter(([name]) => name !== "command").map(([name, text]) => [name, text]),
  ].filter(Boolean);
  const command = run.details.find(([name]) => name === "command"), differs = new Set([...data.keys, ...data.more_keys]);
  const settings = Object.entries(run.config);
  dialog.replaceChildren(
    el("div", { class: "bar" }, el("h2", {}, run.name), el("button", { type: "button", id: "close", onclick: () => dialog.close() }, "Close")),
    el("div", { class: "inside" },
      el("dl", {}, rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
      command ? [el("h3", {}, "Command"), el("pre", {}, command[1])] : null,
      run.videos.length ? [el("h3", {}, "Videos"), el("div", { class: "videos" }, run.videos.map((video) => figure(run, video)))] : null,
      settings.length ? [el("h3", {}, "Config"), el("p", { class: "hint" }, "Marked settings differ between the runs of this page."),
        el("div", { class: "config" }, settings.map(([key, value]) => el("div", { class: differs.has(key) && "differs" }, el("span", {}, key), el("span", {}, setting(value, 15)))))] : null));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}
function figure(run, video) {
  const shown = video.kind === "image" ? el("img", { src: video.source, alt: video.name, loading: "lazy" }) : el("video", { src: video.source, controls: true, preload: "metadata", muted: true, loop: true });
  const name = video.source.startsWith("data:") ? video.name : el("a", { href: video.source }, video.name);
  return el("figure", {}, shown, el("figcaption", {}, run.name, " · ", name));
}
