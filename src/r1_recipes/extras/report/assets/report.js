"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const strings = read("strings");
  const data = read("data");
  const runs = data.runs;
  // Names come from the run, so a name may be "constructor".
  const bare = (object) => Object.assign(Object.create(null), object);
  for (const run of runs) for (const part of ["series", "settings", "versions", "hardware"]) run[part] = bare(run[part]);
  for (const entry of data.evaluations) entry.values = bare(entry.values);
  const PAGE = 20;
  const EXCERPT = 420;
  const LINES = 12;
  const HEIGHT = 190;
  const $ = (id) => document.getElementById(id);
  const store = {
    get(key) { try { return localStorage.getItem(key); } catch { return null; } },
    set(key, value) { try { localStorage.setItem(key, value); } catch { /* browsers may deny storage to a page opened from a file */ } },
  };

  const state = {
    language: store.get("r1-report-language") ?? ((navigator.language || "").toLowerCase().startsWith("zh") ? "zh" : "en"),
    shown: new Set(runs.map((_, i) => i)),
    step: null,
    page: 0,
  };
  if (!strings[state.language]) state.language = "en";

  const fill = (template, values = {}) => template.replace(/\{(\w+)\}/g, (whole, key) => (Object.hasOwn(values, key) ? values[key] : whole));
  const t = (key, values) => fill(strings[state.language][key], values);
  const known = (key) => Object.hasOwn(strings.en, key);

  // Every text from a run goes through here, so it can only become text.
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "onclick") element.addEventListener("click", value);
      else element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  function number(value, digits = 3) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en").replace("-", "−");
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(Math.max(0, digits - 2)).replace("-", "−").replace("e-", "e−");
    return value.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, Math.ceil(Math.log10(size + 1))) }).replace("-", "−");
  }
  const fixed = (value) => (value !== null && Math.abs(value) <= 1 ? value.toFixed(3).replace("-", "−") : number(value));
  const percent = (value) => (value === null ? "–" : `${number(100 * value)} %`);
  function duration(seconds) {
    if (seconds === null || seconds === undefined) return "–";
    if (seconds < 60) return t("seconds", { n: number(seconds) });
    if (seconds < 3600) return t("minutes", { m: Math.floor(seconds / 60), s: Math.round(seconds % 60) });
    return t("hours", { h: Math.floor(seconds / 3600), m: Math.round((seconds % 3600) / 60) });
  }
  const swatch = (run, dash = "") => make("span", { class: `swatch ${dash}`, style: `--run: var(--run-${run % 8})`, "aria-hidden": "true" });
  const nameOf = (run) => runs[run].name;

  const POINTS = 8; // Flags of trends need so many.
  const finite = (points) => points.filter((value) => value !== null);

  // ---- charts and their order
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.series)))];
  const used = new Set();
  const wanted = [];
  function chart(group, title, parts, options = {}) {
    const there = parts.filter(([key]) => keys.includes(key));
    there.forEach(([key]) => used.add(key));
    if (there.length) wanted.push({ group, title, parts: there, ...options });
  }
  const titled = (key, values) => () => t(key, values);
  // With dynamic sampling, `reward` is of the groups that are trained on; the policy's mean is that of all that was sampled.
  chart("rewards", titled("m:reward"), [["reward", "trained"], ["sampling/reward", "sampled", "dashed"]]);
  for (const key of keys) {
    const match = /^rewards\/(.+)\/mean$/.exec(key);
    if (match) chart("rewards", titled("m:one_reward", { name: match[1] }), [[key]]);
  }
  chart("signal", titled("m:frac_reward_zero_std"), [["frac_reward_zero_std"]], { share: true });
  chart("signal", titled("m:reward_std"), [["reward_std"]], { zero: true });
  chart("signal", titled("m:filtered"), [["sampling/filtered"]], { share: true });
  chart("completions", titled("m:length"), [["completions/mean_length", "mean"], ["completions/mean_terminated_length", "terminated", "dashed"]]);
  chart("completions", titled("m:clipped"), [["completions/clipped_ratio"]], { share: true });
  chart("completions", titled("m:calls"), [["tools/call_frequency"]], { zero: true });
  chart("completions", titled("m:failures"), [["tools/failure_frequency"]], { share: true });
  chart("policy", titled("m:entropy"), [["entropy"]], { zero: true });
  chart("policy", titled("m:kl"), [["kl"]]);
  chart("policy", titled("m:gap"), [["sampling/sampling_logp_difference/mean"]], { zero: true });
  chart("policy", titled("m:clip"), [["clip_ratio/region_mean", "region"], ["clip_ratio/low_mean", "low", "dashed"], ["clip_ratio/high_mean", "high", "dotted"]], { zero: true });
  chart("optimisation", titled("m:loss"), [["loss"]]);
  chart("optimisation", titled("m:grad_norm"), [["grad_norm"]], { zero: true });
  chart("optimisation", titled("m:learning_rate"), [["learning_rate"]], { zero: true, raw: true });
  chart("optimisation", titled("m:mean_token_accuracy"), [["mean_token_accuracy"]]);
  const split = keys.includes("time/generation");
  chart("time", titled("m:step_time"), [["step_time", "total"], ["time/generation", "generation", "dashed"], [split ? "time/rewards" : "verification/seconds", split ? "rewards" : "verification", "dotted"]], { zero: true });
  for (const key of keys) {
    if (/^eval_(loss|reward|accuracy|mean_token_accuracy|rewards\/.+\/mean|completions\/(mean_length|clipped_ratio)|entropy)$/.test(key)) {
      chart("held_out", titled("m:eval", { name: key.slice(5) }), [[key]], { raw: true });
    }
  }
  const others = keys.filter((key) => !used.has(key) && !key.startsWith("train_") && runs.some((run) => (run.series[key]?.x.length ?? 0) > 1));
  const spare = others.map((key) => ({ title: () => key, parts: [[key]], other: true }));

  function smoothed(values, weight) {
    let average = 0;
    let mass = 0;
    return values.map((value) => {
      if (value === null) return null;
      average = weight * average + (1 - weight) * value;
      mass = weight * mass + (1 - weight);
      return average / mass;
    });
  }

  const drawn = [];
  const pending = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      pending.unobserve(entry.target);
      entry.target.chart.ready = true;
      draw(entry.target.chart);
    }
  }, { rootMargin: "300px" });

  function linesOf(spec) {
    const several = spec.parts.length > 1;
    return [...state.shown].sort((a, b) => a - b).flatMap((run) => spec.parts.flatMap(([key, part, dash]) => {
      const series = runs[run].series[key];
      if (!series || !finite(series.y).length) return [];
      const label = [runs.length > 1 ? nameOf(run) : null, several ? t(`s:${part}`) : null].filter(Boolean).join(", ");
      return [{ run, key, dash: dash ?? "", series, label }];
    }));
  }

  function place(spec, parent) {
    const title = spec.title();
    const plot = make("div", { class: "plot", tabindex: "0", role: "slider", "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0" });
    const readout = make("div", { class: "readout", "aria-hidden": "true" });
    const caption = make("figcaption", {}, make("strong", {}, title));
    const figure = make("figure", {}, caption, readout, plot);
    const item = { spec, figure, plot, readout, ready: false };
    caption.append(make("button", { type: "button", "aria-label": t("save_svg", { title }), onclick: () => save(item, title) }, "SVG"));
    if (!spec.other) caption.append(make("code", {}, spec.parts.map(([key]) => key).join(", ")));
    figure.chart = item;
    parent.append(figure);
    drawn.push(item);
    prepare(item);
    describe(item);
    plot.addEventListener("pointermove", (event) => point(item, event));
    plot.addEventListener("pointerleave", () => moveTo(null));
    plot.addEventListener("blur", () => moveTo(null));
    plot.addEventListener("keydown", (event) => walk(item, event));
    pending.observe(figure);
  }

  function axisFormat(value) {
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return d3.format(".1~e")(value).replace("e-", "e−");
    return d3.format(size >= 1e4 ? ".3~s" : ".4~r")(value).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
  }

  function prepare(item) {
    item.lines = linesOf(item.spec);
    item.steps = [...new Set(item.lines.flatMap((line) => line.series.x))].sort((a, b) => a - b);
    const summary = item.lines.map((line) => {
      const valid = line.series.x.map((x, i) => [x, line.series.y[i]]).filter(([, y]) => y !== null);
      const [low, high] = d3.extent(valid, ([, y]) => y);
      return t("summary", { run: line.label || nameOf(line.run), first: number(valid[0][1]), from: valid[0][0], last: number(valid.at(-1)[1]), to: valid.at(-1)[0], least: number(low), most: number(high) });
    });
    item.plot.setAttribute("aria-label", [t("chart_of", { title: item.spec.title() }), ...summary].join(" "));
  }

  function draw(item) {
    prepare(item);
    const { spec, plot, lines } = item;
    const css = getComputedStyle(document.documentElement);
    const colour = (name) => css.getPropertyValue(name).trim();
    const weight = spec.raw ? 0 : Number($("smooth").value);
    const marks = [];
    let values = [];
    for (const line of lines) {
      const ys = smoothed(line.series.y, weight);
      const stroke = colour(`--run-${line.run % 8}`);
      const rows = line.series.x.map((x, i) => ({ x, raw: line.series.y[i] ?? NaN, y: ys[i] ?? NaN }));
      const lone = finite(line.series.y).length === 1;
      if (weight > 0 && !line.dash) {
        marks.push(Plot.lineY(rows, { x: "x", y: "raw", stroke, strokeOpacity: 0.3, strokeWidth: 1 }));
        values = values.concat(finite(line.series.y));
      }
      const dashes = { dashed: "6 4", dotted: "1.5 3.5" }[line.dash];
      marks.push(Plot.lineY(rows, { x: "x", y: "y", stroke, strokeWidth: line.dash ? 1.6 : 2, strokeDasharray: dashes, strokeLinejoin: "round" }));
      if (lone) marks.push(Plot.dot(rows, { x: "x", y: "y", fill: stroke, r: 3 }));
      values = values.concat(finite(ys));
    }
    plot.replaceChildren();
    if (!lines.length) { Object.assign(item, { svg: null, rule: null }); describe(item); return; }
    let [low, high] = d3.extent(values);
    if (spec.share) [low, high] = [0, 1];
    if (spec.zero) low = Math.min(0, low);
    if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
    let [left, right] = [item.steps[0], item.steps.at(-1)];
    if (left === right) [left, right] = [left - 1, right + 1];
    const width = Math.max(220, Math.floor(plot.clientWidth));
    const svg = Plot.plot({
      width, height: HEIGHT, marginLeft: 50, marginRight: 10, marginTop: 10, marginBottom: 36,
      style: { background: "transparent", fontFamily: "inherit", fontSize: "11px", color: colour("--quiet") },
      x: { domain: [left, right], label: t("step"), labelArrow: "none", labelAnchor: "center", ticks: d3.ticks(left, right, Math.max(3, Math.floor(width / 80))).filter(Number.isInteger), tickFormat: (v) => (v >= 1e4 ? d3.format("~s")(v) : String(v)), tickSize: 4 },
      y: { domain: [low, high], nice: !spec.share, label: null, ticks: 5, tickFormat: axisFormat, tickSize: 0 },
      marks: [Plot.gridY({ stroke: colour("--grid"), strokeOpacity: 1, ticks: 5 }), Plot.ruleY([spec.share || spec.zero ? 0 : null].filter((v) => v !== null && low <= 0), { stroke: colour("--line") }), ...marks],
    });
    svg.setAttribute("aria-hidden", "true");
    const rule = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [name, value] of [["y1", 10], ["y2", HEIGHT - 36], ["stroke", colour("--quiet")], ["stroke-width", 1], ["visibility", "hidden"]]) rule.setAttribute(name, value);
    svg.append(rule);
    plot.append(svg);
    Object.assign(item, { svg, rule, scale: svg.scale("x") });
    describe(item);
  }

  function nearest(sorted, step) {
    const after = d3.bisectLeft(sorted, step);
    const before = Math.max(0, after - 1);
    return after >= sorted.length || step - sorted[before] <= sorted[after] - step ? sorted[before] : sorted[after];
  }

  function describe(item) {
    const title = item.spec.title();
    const { plot, readout, lines, steps } = item;
    const at = state.step === null || !steps.length ? null : nearest(steps, state.step);
    const parts = lines.map((line) => {
      const { x, y } = line.series;
      let index = x.length - 1;
      if (at !== null) index = d3.bisector((d) => d).center(x, at);
      else while (index > 0 && y[index] === null) index -= 1;
      return { line, text: number(y[index]), step: x[index] };
    });
    const where = at === null ? t("last_value") : t("at_step", { step: at });
    readout.replaceChildren(make("span", {}, where), ...parts.map(({ line, text }) => make("span", {}, swatch(line.run, line.dash), line.label ? `${line.label} ` : "", make("b", {}, text))));
    if (item.rule) {
      item.rule.setAttribute("visibility", at === null ? "hidden" : "visible");
      if (at !== null) for (const end of ["x1", "x2"]) item.rule.setAttribute(end, item.scale.apply(at));
    }
    plot.setAttribute("aria-valuemin", steps[0] ?? 0);
    plot.setAttribute("aria-valuemax", steps.at(-1) ?? 0);
    plot.setAttribute("aria-valuenow", at ?? steps.at(-1) ?? 0);
    plot.setAttribute("aria-valuetext", [t("at_step", { step: at ?? steps.at(-1) ?? 0 }), ...parts.map(({ line, text }) => `${line.label || title} ${text}`)].join(", "));
  }

  function moveTo(step) {
    if (step === state.step) return;
    state.step = step;
    for (const item of drawn) describe(item);
  }
  function point(item, event) {
    if (!item.svg) return;
    moveTo(nearest(item.steps, item.scale.invert(event.clientX - item.svg.getBoundingClientRect().left)));
  }
  function walk(item, event) {
    const { steps } = item;
    if (!steps.length) return;
    const at = state.step === null ? steps.length - 1 : steps.indexOf(nearest(steps, state.step));
    const jump = Math.max(1, Math.round(steps.length / 10));
    const to = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, PageDown: at - jump, PageUp: at + jump, Home: 0, End: steps.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    moveTo(steps[Math.max(0, Math.min(steps.length - 1, to))]);
  }

  function save(item, title) {
    if (!item.svg) return;
    const copy = item.svg.cloneNode(true);
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.style.fontFamily = "Helvetica, Arial, sans-serif";
    copy.lastChild.remove();
    const link = make("a", { download: `${title.replace(/[^\p{L}\p{N}]+/gu, "_")}.svg` });
    link.href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function placeCharts() {
    const parent = $("charts");
    drawn.length = 0;
    pending.disconnect();
    parent.replaceChildren();
    $("other-charts").replaceChildren();
    for (const group of [...new Set(wanted.map((spec) => spec.group))]) {
      const grid = make("div", { class: "grid" });
      parent.append(make("h3", {}, t(`g:${group}`)), grid);
      for (const spec of wanted.filter((one) => one.group === group)) place(spec, grid);
    }
    if (!wanted.length) parent.append(make("p", {}, t("no_curves")));
    $("others").hidden = !spare.length;
    for (const spec of spare) place(spec, $("other-charts"));
  }
  function redraw() {
    for (const item of drawn) {
      if (item.ready) draw(item);
      else { prepare(item); describe(item); }
    }
  }

  // ---- tables
  function header(...names) {
    return make("thead", {}, make("tr", {}, ...names.map(([text, kind]) => make("th", { scope: "col", class: kind }, text))));
  }
  const row = (name, cells) => make("tr", {}, make("th", { scope: "row" }, ...[name].flat()), ...cells);
  const cell = (text, kind = "number") => make("td", { class: kind }, text);

  function placeFlags() {
    const list = $("flag-list");
    list.replaceChildren();
    const items = runs.flatMap((run, i) => run.flags.map((flag) => ({ flag, i })));
    if (items.length) {
      const order = ["bad", "warn", "info"];
      items.sort((a, b) => order.indexOf(a.flag.severity) - order.indexOf(b.flag.severity));
      list.append(make("ul", { class: "flags" }, ...items.map(({ flag, i }) => {
        const values = Object.fromEntries(Object.entries(flag.values).map(([key, value]) => [key, key === "share" ? percent(value) : typeof value === "number" ? number(value) : String(value ?? "–")]));
        const who = runs.length > 1 ? `${nameOf(i)}: ` : "";
        return make("li", { class: flag.severity }, make("span", { class: "word" }, t(flag.severity)), who + t(`f:${flag.code}`, values), make("p", {}, make("b", {}, `${t("remedy")} `), t(`r:${flag.code}`, values)));
      })));
    }
    runs.forEach((run, i) => {
      const points = Math.max(0, ...["reward", "loss"].map((key) => run.series[key]?.x.length ?? 0));
      if (points < POINTS) list.append(make("p", {}, t("too_few", { run: nameOf(i), points, needed: POINTS })));
      else if (!run.flags.length) list.append(make("p", {}, t("no_flags", { run: nameOf(i) })));
    });
    const missing = runs.flatMap((run) => run.missing.map((item) => t(`x:${item.code}`, { run: run.name, ...item.values })));
    $("missing").replaceChildren(...(missing.length ? [make("h3", {}, t("missing")), make("ul", {}, ...missing.map((text) => make("li", {}, text)))] : []));
  }

  function placeGlance() {
    const columns = [["reward", "m:reward"], ...keys.filter((key) => /^rewards\/.+\/mean$/.test(key)).slice(0, 4).map((key) => [key, null]), ["completions/mean_length", "m:length"], ["completions/clipped_ratio", "m:clipped"], ["entropy", "m:entropy"], ["loss", "m:loss"], ["step_time", "m:step_time"]].filter(([key]) => keys.includes(key) && !(key === "loss" && keys.includes("reward")));
    const titles = columns.map(([key, title]) => [title ? t(title) : key.split("/")[1].replaceAll("_", "_\u200b"), "number"]);
    $("glance-table").replaceChildren(
      header([t("run")], [t("status")], [t("steps"), "number"], ...titles, [t("duration"), "number"]),
      make("tbody", {}, ...runs.map((run, i) => row([runs.length > 1 ? swatch(i) : null, run.name].filter(Boolean), [
        cell(t(run.finished ? "finished" : "unfinished"), ""), cell(number(run.steps)),
        ...columns.map(([key]) => { const [begin, end] = run.series[key]?.numbers ?? []; return cell(end === undefined ? "–" : `${number(begin)} → ${number(end)}`); }),
        cell(duration(run.seconds)),
      ]))),
    );
  }

  function placeNumbers() {
    const body = make("tbody");
    for (const key of keys) {
      body.append(row(key, runs.flatMap((run) => {
        const numbers = run.series[key]?.numbers ?? [];
        return [0, 1, 2, 3].map((place) => cell(number(numbers[place], 4)));
      })));
    }
    const groups = make("tr", {}, make("th", { scope: "col", rowspan: "2" }, t("metric")), ...runs.map((run) => make("th", { scope: "colgroup", colspan: "4", class: "number" }, run.name)));
    const names = make("tr", {}, ...runs.flatMap(() => ["begin", "end", "least", "most"].map((key) => make("th", { scope: "col", class: "number" }, t(key)))));
    $("number-table").replaceChildren(make("thead", {}, groups, names), body);
  }

  // The values that evaluate writes, in a readable order. Other values of a file come last.
  const SCORES = ["greedy", "sampled", "majority", "greedy_lenient", "sampled_lenient", "greedy_format", "sampled_format", "language", "mean_tokens", "truncated", "num_samples"];
  const rank = (key) => (SCORES.includes(key) ? SCORES.indexOf(key) + (key === "num_samples" ? SCORES.length : 0) : SCORES.length);
  const scoreName = (key) => (SCORES.includes(key) ? t(`e:${key}`) : key.replace(/^rewards\/(.+)$/, (_, name) => t("m:one_reward", { name })));
  function placeEvaluation() {
    const found = data.evaluations;
    $("evaluation-table").hidden = !found.length;
    const note = document.querySelector("#evaluation .note");
    note.textContent = t(found.length ? "evaluation_note" : "no_evaluation");
    if (!found.length) return;
    const columns = [...new Set(found.flatMap((entry) => Object.keys(entry.values)))].sort((a, b) => rank(a) - rank(b));
    const model = (entry) => make("span", {}, entry.label, entry.model === entry.label ? null : make("small", { class: "path" }, entry.model));
    $("evaluation-table").replaceChildren(
      header([t("metric")], ...found.map((entry) => [model(entry), "number"])),
      make("tbody", {}, ...columns.map((key) => row(scoreName(key), found.map((entry) => {
        const [mean, low, high] = entry.values[key] ?? [null, null];
        return make("td", { class: "number" }, low === null ? number(mean) : fixed(mean), low === null ? null : make("small", {}, ` (${fixed(low)}–${fixed(high)})`));
      }))), row(t("source"), found.map((entry) => cell(entry.source, "number source")))),
    );
  }

  function compare(parts, differFirst) {
    const names = [...new Set(parts.flatMap((part) => Object.keys(part)))];
    const differs = (key) => new Set(parts.map((part) => part[key])).size > 1;
    if (differFirst) names.sort((a, b) => differs(b) - differs(a));
    return names.map((key) => make("tr", { class: differs(key) ? "differs" : null }, make("th", { scope: "row" }, (differs(key) ? "≠ " : "") + key), ...parts.map((part) => make("td", {}, part[key] ?? "–"))));
  }
  const perRun = (first) => header([first], ...(runs.length > 1 ? runs.map((run) => [run.name]) : [[t("value")]]));

  function placeRecipe() {
    const parts = runs.map((run) => run.settings);
    $("recipe-note").textContent = runs.length > 1 ? t("recipe_differs") : t("recipe_same", { count: Object.keys(parts[0]).length });
    $("recipe-table").replaceChildren(perRun(t("key")), make("tbody", {}, ...compare(parts, true)));
    const group = (name) => make("tr", { class: "group" }, make("th", { scope: "rowgroup", colspan: String(runs.length + 1) }, t(name)));
    const unknown = runs.every((run) => !Object.keys(run.hardware).length);
    $("environment-table").replaceChildren(
      perRun(t("key")),
      make("tbody", {}, group("versions"), ...compare(runs.map((run) => run.versions), false)),
      make("tbody", {}, group("hardware"), ...(unknown ? [make("tr", {}, make("th", { scope: "row" }, "–"), make("td", { colspan: String(runs.length) }, t("no_hardware")))] : compare(runs.map((run) => run.hardware), false))),
    );
  }

  // ---- completions
  let table = null;
  let order = [];
  async function unpack() {
    const binary = atob($("packed").textContent);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }
  const title = (key) => (known(key) ? t(key) : key);
  function columnsOf() {
    const { rows } = table;
    return [
      ["reward", t("reward"), rows.reward], ...table.rewards.map((name, i) => [`score ${name}`, name, rows.scores[i]]),
      ["advantage", t("advantage"), rows.advantage], ["step", t("step"), rows.step], ["length", t("length"), rows.text.map((text) => text.length)],
    ];
  }
  let columns = [];

  function placeFilters() {
    const { rows } = table;
    columns = columnsOf();
    const choose = (id, options) => {
      const kept = $(id).value;
      $(id).replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
      if (options.some(([value]) => value === kept)) $(id).value = kept;
    };
    $("run-filter").hidden = runs.length < 2;
    choose("by-run", [["", t("all")], ...runs.map((run, i) => [String(i), run.name])]);
    $("kind-filter").hidden = new Set(rows.kind).size < 2;
    choose("by-kind", [["", t("all")], ["0", t("training")], ["1", t("held_out")]]);
    const steps = [...new Set(rows.step.filter((step) => step !== null))].sort((a, b) => a - b);
    choose("by-step", [["", t("all")], ...steps.map((step) => [String(step), String(step)])]);
    const first = !$("by").options.length;
    choose("by", [["position", t("position")], ...columns.map(([key, text]) => [key, text])]);
    if (first) $("by").value = "step";
  }

  function select() {
    const { rows } = table;
    const words = needle();
    const run = $("by-run").value;
    const kind = $("by-kind").value;
    const step = $("by-step").value;
    const has = (text) => text !== null && text.toLowerCase().includes(words);
    const prompts = words ? table.prompts.map(([prompt]) => has(prompt)) : [];
    const matches = (i) => prompts[rows.prompt[i]] || has(rows.text[i]) || rows.extra.some((column) => has(column[i]));
    order = [];
    for (let i = 0; i < rows.text.length; i += 1) {
      if (run !== "" && rows.run[i] !== Number(run)) continue;
      if (kind !== "" && rows.kind[i] !== Number(kind)) continue;
      if (step !== "" && rows.step[i] !== Number(step)) continue;
      if (words && !matches(i)) continue;
      order.push(i);
    }
    const column = columns.find(([key]) => key === $("by").value)?.[2];
    const sign = $("order").value === "up" ? 1 : -1;
    if (column) {
      order.sort((a, b) => {
        if (column[a] === null || column[b] === null) return (column[a] === null) - (column[b] === null) || a - b;
        return sign * (column[a] - column[b]) || a - b;
      });
    }
    state.page = 0;
    placePage();
  }
  const needle = () => $("query").value.toLowerCase().trim();

  function withMarks(text) {
    const words = needle();
    if (!words) return [text];
    const pieces = [];
    const lower = text.toLowerCase();
    if (lower.length !== text.length) return [text];
    let from = 0;
    for (let at = lower.indexOf(words); at !== -1 && pieces.length < 2000; at = lower.indexOf(words, from)) {
      pieces.push(text.slice(from, at), make("mark", {}, text.slice(at, at + words.length)));
      from = at + words.length;
    }
    return [...pieces, text.slice(from)];
  }

  // `transcript` in common/messages.py writes these headings, and no text can contain them. TRL writes the error of a tool as `{'error': …}`.
  const TURN = /(?:^|\n\n)\[(system|user|assistant|call|tool)(?: ([^\n]*))?\]\n/;
  function turnsOf(text) {
    const [before, ...parts] = text.split(TURN);
    const boxes = before ? longText(before) : [];
    for (let i = 0; i < parts.length; i += 3) {
      const [kind, name, body] = parts.slice(i, i + 3);
      const failed = kind === "tool" && body.startsWith("{'error'");
      const heading = { assistant: t("model"), call: t("calls", { name: "" }), tool: t(failed ? "fails" : "returns", { name: "" }) }[kind] ?? kind;
      boxes.push(make("div", { class: `turn ${failed ? "bad" : kind}` }, make("p", {}, heading, make("b", {}, visible(name ?? ""))), ...longText(body || "–")));
    }
    return boxes;
  }

  // Control characters and characters that reverse the text are shown by their number.
  const visible = (text) => text.replace(/\r(?!\n)|[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g, (one) => `⟨U+${one.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
  function longText(raw) {
    const text = visible(raw);
    const box = make("div", { class: "text", dir: "auto" });
    // A completion may consist of a thousand empty lines.
    const cut = (from) => {
      let end = from;
      for (let line = 0; line < LINES && end !== -1; line += 1) end = text.indexOf("\n", end + 1);
      return Math.min(from + EXCERPT, end === -1 ? text.length : end);
    };
    if (cut(0) + 80 >= text.length && text.split("\n", LINES + 3).length <= LINES + 2) { box.append(...withMarks(text)); return [box]; }
    // The excerpt starts at the match of the search.
    const hit = needle() ? text.toLowerCase().indexOf(needle()) : -1;
    const from = hit + needle().length > cut(0) ? Math.max(0, hit - 120, text.lastIndexOf("\n", hit) + 1) : 0;
    const button = make("button", { type: "button", "aria-expanded": "false" });
    const show = (whole) => {
      box.replaceChildren(...(whole ? withMarks(text) : [from ? "… " : "", ...withMarks(text.slice(from, cut(from))), " …"]));
      button.textContent = whole ? t("show_less") : t("show_all", { count: number(text.length) });
      button.setAttribute("aria-expanded", String(whole));
    };
    button.addEventListener("click", () => show(button.getAttribute("aria-expanded") !== "true"));
    show(false);
    return [box, button];
  }

  function placePage() {
    const { rows } = table;
    const first = state.page * PAGE;
    const part = order.slice(first, first + PAGE);
    const shown = columns.filter(([key]) => key !== "length" && (key !== "reward" || table.rewards.length > 1));
    const turns = table.extras.indexOf("turns");
    // First the facts that explain the reward, then the other columns that rewards log.
    const facts = ["solution", "answer_parsed", "refused"].filter((name) => table.extras.includes(name));
    facts.push(...table.extras.filter((name) => name !== "turns" && !facts.includes(name)));
    $("completion-list").replaceChildren(...part.map((i) => {
      const [prompt, question] = table.prompts[rows.prompt[i]];
      const details = [["question", question], ...facts.map((name) => [name, rows.extra[table.extras.indexOf(name)][i]])].filter(([, text]) => text !== null);
      return make("li", {},
        make("p", { class: "scores" },
          runs.length > 1 ? make("span", {}, swatch(rows.run[i]), nameOf(rows.run[i])) : null,
          rows.kind[i] ? make("span", {}, t("held_out")) : null,
          ...shown.map(([, text, values]) => make("span", {}, `${text} `, make("b", {}, number(values[i]))))),
        make("dl", {}, ...details.flatMap(([name, text]) => [make("dt", {}, title(name)), make("dd", { class: name === "refused" && text ? "bad" : null }, ...longText(text || "–"))])),
        make("div", { class: "long" },
          make("details", {}, make("summary", {}, t("prompt")), ...longText(prompt)),
          ...(turns !== -1 && rows.extra[turns][i] !== null ? turnsOf(rows.extra[turns][i]) : longText(rows.text[i]))));
    }));
    $("found").textContent = order.length ? t("found", { found: number(order.length), total: number(rows.text.length) }) : t("none_found");
    $("page").textContent = order.length ? t("page", { first: number(first + 1), last: number(first + part.length), total: number(order.length) }) : "";
    $("previous").disabled = state.page === 0;
    $("next").disabled = first + PAGE >= order.length;
  }

  function placeCompletions() {
    const { total, kept } = data.completions;
    const values = { total: number(total), kept: number(kept) };
    $("completions-note").textContent = !total ? t("no_completions_here") : t(kept < total ? "kept_some" : "kept_all", values);
    for (const element of document.querySelectorAll("#filters, #completion-list, #completions .pages, #found")) element.hidden = !total;
    if (!table) { $("found").textContent = t("reading"); return; }
    placeFilters();
    const page = state.page;
    select();
    state.page = page;
    placePage();
  }
  function turn(by) {
    state.page += by;
    placePage();
    $("found").scrollIntoView({ block: "start" });
  }

  // ---- the page
  const isDark = () => (document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  function placeHeader() {
    document.documentElement.lang = state.language;
    for (const element of document.querySelectorAll("[data-text]")) element.textContent = t(element.dataset.text);
    for (const element of document.querySelectorAll("[data-label]")) element.setAttribute("aria-label", t(element.dataset.label));
    $("heading").textContent = runs.length > 1 ? t("several", { count: runs.length }) : runs[0].recipe ?? runs[0].name;
    document.title = `${t("title")}: ${runs.map((run) => run.name).join(", ")}`;
    const facts = runs.length > 1 ? runs.map((run) => run.name) : [runs[0].path, runs[0].method, runs[0].settings.model_name_or_path, runs[0].settings.dataset_name];
    $("subtitle").textContent = facts.filter(Boolean).join(" · ");
    $("language").textContent = state.language === "zh" ? "English" : "中文";
    $("language").lang = state.language === "zh" ? "en" : "zh";
    $("theme").textContent = t(isDark() ? "light" : "dark");
    $("contents").replaceChildren(...["flags", "glance", "curves", "evaluation", "completions", "recipe", "environment"].map((id) => make("a", { href: `#${id}` }, t(id))));
    $("made").textContent = t("made", { time: data.made, version: data.version });
    $("runs").hidden = runs.length < 2;
    $("runs").replaceChildren($("runs").firstElementChild, ...runs.map((run, i) => {
      const box = make("input", { type: "checkbox" });
      box.checked = state.shown.has(i);
      box.addEventListener("change", () => { if (box.checked) state.shown.add(i); else state.shown.delete(i); redraw(); });
      return make("label", {}, box, swatch(i), run.name);
    }));
  }
  function placeAll() {
    placeHeader();
    placeFlags();
    placeGlance();
    placeCharts();
    placeNumbers();
    placeEvaluation();
    placeRecipe();
    placeCompletions();
  }

  const longest = Math.max(0, ...runs.flatMap((run) => Object.values(run.series).map((series) => series.x.length)));
  $("smooth").value = longest < 30 ? 0 : longest < 150 ? 0.6 : 0.9;
  const sayWeight = () => { $("smooth-value").textContent = Number($("smooth").value).toFixed(2); };
  sayWeight();
  $("smooth").addEventListener("input", () => { sayWeight(); redraw(); });
  $("language").addEventListener("click", () => { state.language = state.language === "zh" ? "en" : "zh"; store.set("r1-report-language", state.language); placeAll(); });
  $("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    store.set("r1-report-theme", document.documentElement.dataset.theme);
    $("theme").textContent = t(isDark() ? "light" : "dark");
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { $("theme").textContent = t(isDark() ? "light" : "dark"); redraw(); });
  let timer = 0;
  const soon = (what, wait) => { clearTimeout(timer); timer = setTimeout(what, wait); };
  $("query").addEventListener("input", () => soon(select, 150));
  $("filters").addEventListener("submit", (event) => { event.preventDefault(); select(); });
  for (const id of ["by-run", "by-kind", "by-step", "by", "order"]) $(id).addEventListener("change", select);
  $("previous").addEventListener("click", () => turn(-1));
  $("next").addEventListener("click", () => turn(1));
  let width = document.documentElement.clientWidth;
  let resize = 0;
  addEventListener("resize", () => {
    if (document.documentElement.clientWidth === width) return;
    width = document.documentElement.clientWidth;
    clearTimeout(resize);
    resize = setTimeout(redraw, 120);
  });
  addEventListener("beforeprint", () => { for (const item of drawn) if (!item.ready && !item.spec.other) { item.ready = true; draw(item); } });

  placeAll();
  document.documentElement.dataset.ready = "charts";
  performance.mark("r1-charts");
  addEventListener("DOMContentLoaded", () => setTimeout(async () => {
    try {
      if (data.completions.total) table = await unpack();
    } catch (error) {
      $("found").textContent = t("unreadable", { reason: String(error) });
      return;
    }
    $("packed").remove();
    placeCompletions();
    document.documentElement.dataset.ready = "all";
    performance.mark("r1-all");
  }));
})();
