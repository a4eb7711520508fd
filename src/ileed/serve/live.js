"use strict";
// The browser of episodes. Text from the data goes into the page as text alone (textContent), never as HTML.
(() => {
const $ = (selector) => document.querySelector(selector);
const token = new URLSearchParams(location.search).get("token") || "";
const PART = 1000, ROWS = 200, POLL = 1500, PER_SECOND = 10;
const SCORES = ["expertise", "agreement", "typicality"];
const report = [...document.querySelectorAll("body > .skip, body > header, body > main")];
const state = { rows: [], shown: ROWS, by: null, falling: true, marks: {}, pending: new Map(), version: -1, written: 0, episode: null,
  part: null, step: 0, timer: null, wanted: 0, frames: new Map(), saved: false };
let data = null, queue = Promise.resolve(), moved = [];

async function ask(path, body) {
  const options = { headers: { Authorization: `Bearer ${token}` }, cache: "no-store" };
  if (body !== undefined) Object.assign(options, { method: "POST", keepalive: true, body: JSON.stringify(body) });
  let answer;
  try { answer = await fetch(path, options); }
  catch { throw new Error("The server does not answer: start `ileed serve` again and open its new address; marks that were confirmed are kept."); }
  if (answer.ok) return answer;
  const told = await answer.text();
  throw new Error(told.startsWith("{") ? JSON.parse(told).message : told);
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}
function drawing(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
function current(one, is, word) {
  if (is) one.setAttribute("aria-current", word); else one.removeAttribute("aria-current");
  return is;
}
const say = (text) => { $("#said").textContent = text; };
function complain(error, offer) {
  $("#trouble span").textContent = error ? error.message : "";
  [$("#trouble button").hidden, $("#trouble").hidden] = [!offer, !error];
}
const number = (value) => (value === null ? "–" : value.toFixed(2).replace("-", "−"));
const plain = (value) => (value === null ? "–" : String(Number(value.toPrecision(3))).replace("-", "−"));
const count = (value) => value.toLocaleString("en");

// --- marks: shown at once, sent one after the other, and read again for those of other windows

const markOf = (episode) => (state.pending.has(episode) ? state.pending.get(episode).mark : state.marks[episode] || null);
const isKept = (episode) => (markOf(episode) ? markOf(episode) === "keep" : data.keep[episode]);

function mark(episode, word) {
  const mine = { mark: word };
  state.pending.set(episode, mine);
  showMarks([episode]);
  queue = queue.then(async () => {
    try {
      const { version } = await (await ask("marks", { episode, mark: word })).json();
      if (word) state.marks[episode] = word; else delete state.marks[episode];
      if (version === state.version + 1) state.version = version;
      state.written = version;
      say(`Episode ${data.key[episode]}: ${word ? `marked ${word}` : "no mark"}.`);
      complain(null);
    } catch (error) { complain(error); }
    if (state.pending.get(episode) === mine) state.pending.delete(episode);
    showMarks([episode]);
  });
}

async function poll() {
  try {
    const answer = await ask(`marks?after=${state.version}`);
    if (answer.status === 204) return;
    const found = await answer.json();
    if (found.version < state.written) return; // asked for before a mark of ours was written
    const touched = new Set([...Object.keys(state.marks), ...Object.keys(found.marks)]);
    const changed = [...touched].filter((key) => state.marks[key] !== found.marks[key]).map(Number);
    Object.assign(state, { marks: found.marks, version: found.version });
    showMarks(changed);
  } catch (error) { complain(error); }
}

function showMarks(episodes) {
  const changed = new Set(episodes);
  for (const row of $("#browse tbody").rows) if (changed.has(Number(row.dataset.episode))) showMark(row);
  let keep = 0, drop = 0, kept = 0;
  data.key.forEach((_, episode) => {
    keep += markOf(episode) === "keep"; drop += markOf(episode) === "drop"; kept += isKept(episode);
  });
  $("#tally").textContent = `${count(keep)} marked keep, ${count(drop)} marked drop; the result keeps ${count(kept)} of ${count(data.key.length)}`;
  if (state.episode === null) return;
  const current = markOf(state.episode) || "";
  for (const button of document.querySelectorAll("[data-mark]")) button.setAttribute("aria-pressed", button.dataset.mark === current);
}
function showMark(row) {
  const episode = Number(row.dataset.episode), word = markOf(episode), cell = row.cells[0];
  cell.className = word || "rule";
  cell.textContent = word ? { keep: "✓ keep", drop: "✗ drop" }[word] : data.keep[episode] ? "kept" : "dropped";
  cell.title = word ? "by hand" : "by the rule";
}

async function save(replace) {
  $("#save").disabled = true;
  say("Saving …");
  await queue; // marks that are on their way
  try {
    const found = await (await ask("save", { replace: replace || state.saved || false })).json();
    state.saved = found.version; // the next save replaces this version, and asks before it replaces another
    complain(null);
    say(`Saved in ${found.folder} (${found.files.join(", ")}): ${found.sentence}.`);
  } catch (error) {
    say("Not saved.");
    complain(error, /overwrite/.test(error.message));
  }
  $("#save").disabled = false;
}

// --- the list

const COLUMNS = [
  ["mark", (e) => (markOf(e) || (data.keep[e] ? "z1" : "z2"))], ["episode", (e) => data.key[e]], ["demonstrator", (e) => data.demonstrator[e]],
  ["steps", (e) => data.steps[e]], ...SCORES.map((name) => [name, (e) => data.scores[name].estimate[e]]),
];
const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : (a ?? -1) - (b ?? -1));
function arrange() {
  const words = $("#find").value.trim().toLowerCase(), which = $("#which").value;
  const wanted = { all: () => true, none: (e) => !markOf(e), keep: (e) => markOf(e) === "keep", drop: (e) => markOf(e) === "drop",
    in: isKept, out: (e) => !isKept(e) }[which];
  state.rows = [...data.key.keys()].filter((e) => wanted(e) &&
    (!words || data.key[e].toLowerCase().includes(words) || data.demonstrator[e].toLowerCase().includes(words)));
  const column = COLUMNS.find(([name]) => name === state.by);
  if (column) state.rows.sort((a, b) => (state.falling ? -1 : 1) * compare(column[1](a), column[1](b)) || a - b);
  drawRows();
}
function drawRows() {
  const rows = state.rows.slice(0, state.shown).map((e) => {
    const row = element("tr", {}, element("td"), element("th", { scope: "row", title: data.key[e] }, element("button", { type: "button", tabIndex: -1, textContent: data.key[e] })),
      element("td", { textContent: data.demonstrator[e], title: data.demonstrator[e] }), element("td", { className: "n", textContent: count(data.steps[e]) }));
    for (const name of SCORES) {
      const { estimate, low, high } = data.scores[name];
      row.append(element("td", { className: "n", textContent: number(estimate[e]), title: `${name}: ${number(low[e])} to ${number(high[e])} (95%)` }));
    }
    row.dataset.episode = e;
    showMark(row);
    return row;
  });
  $("#browse tbody").replaceChildren(...rows);
  $("#more").hidden = state.rows.length <= state.shown;
  $("#shown").textContent = `${count(Math.min(state.shown, state.rows.length))} of ${count(state.rows.length)} episodes. Intervals: point at a score, or open the episode.`;
  highlight(false);
}
function drawHead() {
  const heads = COLUMNS.map(([name]) => {
    const button = element("button", { type: "button", textContent: name }), head = element("th", { scope: "col" }, button);
    if (name === state.by) head.setAttribute("aria-sort", state.falling ? "descending" : "ascending");
    button.addEventListener("click", () => {
      state.falling = state.by === name ? !state.falling : ["steps", ...SCORES].includes(name);
      state.by = name;
      drawHead(); arrange();
      [...$("#browse thead").querySelectorAll("button")].find((each) => each.textContent === name).focus();
    });
    return head;
  });
  $("#browse thead").replaceChildren(element("tr", {}, ...heads));
}
function highlight(scroll) {
  const box = $("#browse .rows");
  for (const row of $("#browse tbody").rows) {
    const chosen = current(row, Number(row.dataset.episode) === state.episode, "true");
    if (chosen && scroll) box.scrollTop = Math.max(Math.min(box.scrollTop, row.offsetTop - 40), row.offsetTop + row.offsetHeight - box.clientHeight);
  }
}
function go(offset) {
  const place = state.rows.indexOf(state.episode);
  const next = state.rows[place < 0 ? 0 : Math.min(Math.max(place + offset, 0), state.rows.length - 1)];
  if (next === undefined || next === state.episode) return;
  if (state.rows.indexOf(next) >= state.shown) { state.shown += ROWS; drawRows(); }
  open(next);
}

// --- the player

async function open(episode) {
  pause();
  for (const address of state.frames.values()) URL.revokeObjectURL(address);
  Object.assign(state, { episode, part: null, step: 0, frames: new Map() });
  history.replaceState(null, "", `${location.search}#e${episode}`);
  $("#player").hidden = false;
  $("#player-h").textContent = `Episode ${data.key[episode]}`;
  const scores = SCORES.map((name) => {
    const { estimate, low, high } = data.scores[name];
    return `${name} ${number(estimate[episode])} (${number(low[episode])} to ${number(high[episode])})`;
  });
  $("#about").textContent = `${data.demonstrator[episode].slice(0, 60)}; ${count(data.steps[episode])} steps; ${scores.join(", ")}`;
  $("#step").max = data.steps[episode] - 1;
  highlight(true);
  showMarks([]);
  await seek(0);
}
async function seek(step) {
  const episode = state.episode;
  state.step = Math.min(Math.max(step, 0), data.steps[episode] - 1);
  $("#step").value = state.step;
  $("#at").textContent = `step ${count(state.step)} of ${count(data.steps[episode] - 1)}`;
  const start = Math.floor(state.step / PART) * PART;
  if (!state.part || state.part.start !== start) {
    const asked = ++state.wanted;
    try {
      const part = await (await ask(`episodes/${episode}/${start}`)).json();
      if (asked !== state.wanted || state.episode !== episode) return;
      state.part = part;
      drawPart();
    } catch (error) { complain(error); return; }
  }
  showStep();
}
function plot(series, { low, high, height, labels = true, band = [] }) {
  const steps = state.part.taken.length, across = (at) => (steps < 2 ? 500 : (1000 * at) / (steps - 1));
  const down = (value) => (high > low ? 2 + (height - 4) * (1 - (value - low) / (high - low)) : height / 2);
  const points = (values) => values.map((value, at) => (value === null ? "" : `${across(at).toFixed(1)},${down(value).toFixed(1)}`)).join(" ");
  const picture = drawing("svg", { viewBox: `0 0 1000 ${height}`, preserveAspectRatio: "none", height, "aria-hidden": "true" });
  for (const each of band) {
    const from = across(each.start - state.part.start - 0.5), to = across(each.end - state.part.start - 0.5);
    picture.append(drawing("rect", { class: "band", x: from, width: Math.max(to - from, 1), y: down(each.high), height: Math.max(down(each.low) - down(each.high), 1) }),
      drawing("line", { class: "one", x1: from, x2: to, y1: down(each.estimate), y2: down(each.estimate) }));
  }
  for (const { values, kind } of series) picture.append(drawing("polyline", { class: kind, points: points(values) }));
  const now = drawing("line", { class: "now", y1: 0, y2: height });
  picture.append(now);
  moved.push((at) => { now.setAttribute("x1", across(at)); now.setAttribute("x2", across(at)); });
  const box = element("div", { className: "plot" }, picture);
  if (labels) box.append(element("b", { className: "high", textContent: plain(high) }), element("b", { className: "low", textContent: plain(low) }));
  box.addEventListener("click", (event) => {
    const edges = picture.getBoundingClientRect();
    seek(state.part.start + Math.round(((event.clientX - edges.left) / edges.width) * (steps - 1)));
  });
  return box;
}
const figure = (title, marks, box) => element("figure", {},
  element("figcaption", {}, title, ...marks.map(([kind, words]) => element("i", { className: kind, textContent: words }))), box);
const range = (...lists) => {
  const values = lists.flat().filter((value) => value !== null);
  return { low: Math.min(...values), high: Math.max(...values) };
};
function drawPart() {
  const part = state.part;
  moved = [];
  const expected = part.expected || [];
  const top = Math.max(1.2, ...part.stretches.map((each) => each.high), ...expected.filter((value) => value !== null));
  const lines = [{ values: part.agreement.map(() => 1), kind: "reference" }, { values: expected, kind: "two" }];
  $("#along").replaceChildren(
    figure("Expertise (1 is the mean over demonstrators)", [["", "of the segment, by its actions, with 95% interval"], ...(part.expected ? [["two dashed", "of the demonstrator in such states, by the model"]] : [])],
      plot(lines, { low: 0, high: top, height: 110, band: part.stretches })),
    figure("Agreement: an expert's step rather than the average demonstrator's", [["", "probability"]],
      plot([{ values: part.agreement.map(() => 0.5), kind: "reference" }, { values: part.agreement, kind: "one" }], { low: 0, high: 1, height: 60 })));
  drawActions(part);
  const rows = part.features.map(({ name, values }) => [name, plot([{ values, kind: "one" }], { ...range(values), height: 30, labels: false }), values]);
  $("#seen").hidden = !rows.length;
  const many = part.feature_count > rows.length ? ` (the ${rows.length} of ${count(part.feature_count)} that vary most here)` : "";
  $("#seen summary").textContent = `Observations${many}`;
  $("#seen div").replaceChildren(smallPlots(rows));
  drawSight(part);
}
function smallPlots(rows, heads) {
  const box = element("div", { className: "small-plots" });
  if (heads) box.append(element("span"), element("span"), element("span", {}, ...heads.map((words) => element("span", { textContent: words }))));
  for (const [name, picture, ...lists] of rows) {
    const values = lists.map(() => element("span"));
    moved.push((at) => values.forEach((each, k) => { each.textContent = plain(lists[k][at]); }));
    box.append(element("span", { textContent: name }), picture, element("span", {}, ...values));
  }
  return box;
}
function drawActions(part) {
  if (!data.action_size) { $("#actions").replaceChildren(); return; }
  const rows = data.actions.map((name, k) => {
    const taken = part.taken.map((each) => each[k]), chosen = part.chosen.map((each) => each[k]);
    const box = plot([{ values: chosen, kind: "two" }, { values: taken, kind: "one" }], { ...range(taken, chosen), height: 30, labels: false });
    return [name, box, taken, chosen];
  });
  $("#actions").replaceChildren(figure("Actions", [["", "taken"], ["two dashed", "the policy's choice"]], smallPlots(rows, ["taken", "policy"])));
}
function drawSight(part) {
  const box = $("#sight");
  if (part.frames) {
    const image = element("img", { alt: "" });
    moved.push(async (at) => {
      const step = part.start + at, episode = state.episode;
      image.alt = `Frame of step ${step}`;
      if (!state.frames.has(step)) {
        try { state.frames.set(step, URL.createObjectURL(await (await ask(`frames/${episode}/${step}`)).blob())); }
        catch (error) { complain(error); return; }
      }
      if (state.step === step && state.episode === episode) image.src = state.frames.get(step);
    });
    box.replaceChildren(image);
  } else if (part.path) {
    const all = [...data.cloud, ...part.path], x = range(all.map((p) => p[0])), y = range(all.map((p) => p[1]));
    const place = ([a, b]) => [20 + (760 * (a - x.low)) / (x.high - x.low || 1), 250 - (230 * (b - y.low)) / (y.high - y.low || 1)];
    const line = (points) => points.map((p) => place(p).map((v) => v.toFixed(1)).join(",")).join(" ");
    const dots = data.cloud.map((p) => drawing("circle", { class: "other", r: 2, cx: place(p)[0], cy: place(p)[1] }));
    const done = drawing("polyline", { class: "one" }), now = drawing("circle", { class: "now", r: 8 });
    moved.push((at) => {
      [["cx", 0], ["cy", 1]].forEach(([name, k]) => now.setAttribute(name, place(part.path[at])[k]));
      done.setAttribute("points", line(part.path.slice(0, at + 1)));
    });
    const picture = drawing("svg", { viewBox: "0 0 800 270", role: "img", "aria-label": "The path of the episode through the states" },
      ...dots, drawing("polyline", { class: "other", points: line(part.path) }), done, now);
    box.replaceChildren(figure("The path through the states, in the plane in which they vary most", [], picture));
  } else box.replaceChildren();
}
function showStep() {
  const part = state.part, at = state.step - part.start;
  for (const move of moved) move(at);
  const stretch = part.stretches.find((each) => each.start <= state.step && state.step < each.end);
  const facts = [];
  if (!data.action_size) {
    const taken = part.taken[at], chosen = part.chosen[at];
    facts.push(["action taken", `${data.actions[taken]}, to which the policy gives ${number(part.taken_probability[at])}`],
      ["the policy's choice", taken === chosen ? "the same" : `${data.actions[chosen]}, to which it gives ${number(part.chosen_probability[at])}`]);
  }
  facts.push(["agreement", `${number(part.agreement[at])}, the probability that this is an expert's step`]);
  if (stretch) facts.push(["expertise", `${number(stretch.estimate)} (${number(stretch.low)} to ${number(stretch.high)}) in steps ${stretch.start} to ${stretch.end - 1}`]);
  if (part.rewards) facts.push(["reward", plain(part.rewards[at])]);
  $("#facts").replaceChildren(...facts.flatMap(([name, words]) => [element("dt", { textContent: name }), element("dd", { textContent: words })]));
}
function pause() {
  state.timer = clearInterval(state.timer) ?? null;
  $("#play").textContent = "Play";
}
function play() {
  if (state.timer !== null) return pause();
  if (state.step >= data.steps[state.episode] - 1) seek(0);
  $("#play").textContent = "Pause";
  state.timer = setInterval(() => {
    if (state.step >= data.steps[state.episode] - 1) pause(); else seek(state.step + 1);
  }, 1000 / PER_SECOND);
}

// --- views, keys, start

function view(name) {
  $("#browse").hidden = name !== "browse";
  for (const each of report) each.hidden = name !== "report";
  for (const button of document.querySelectorAll("[data-view]")) current(button, button.dataset.view === name, "page");
  if (name !== "browse") pause();
  scrollTo(0, 0);
}
function asked() { // the episode that the address names
  const found = location.hash.match(/^#e(\d{1,9})$/);
  return found && data && Number(found[1]) < data.key.length ? Number(found[1]) : null;
}
async function show(episode) {
  await open(episode);
  $("#player-h").focus({ preventScroll: innerWidth >= 860 });
}
const KEYS = { k: () => mark(state.episode, "keep"), d: () => mark(state.episode, "drop"), u: () => mark(state.episode, null),
  j: () => go(1), n: () => go(1), ArrowDown: () => go(1), b: () => go(-1), p: () => go(-1), ArrowUp: () => go(-1),
  ArrowRight: (event) => seek(state.step + (event.shiftKey ? 10 : 1)), ArrowLeft: (event) => seek(state.step - (event.shiftKey ? 10 : 1)),
  Home: () => seek(0), End: () => seek(Infinity), " ": play, "/": () => $("#find").focus() };
document.addEventListener("keydown", (event) => {
  const target = event.target, key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (!data || $("#browse").hidden || event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(KEYS, key)) return;
  if (target.matches("input[type=search], select") || (key === " " && target.matches("button, summary, a"))) return;
  if (state.episode === null && !["j", "n", "ArrowDown", "/"].includes(key)) return;
  event.preventDefault();
  KEYS[key](event);
});
function wire() {
  for (const button of document.querySelectorAll("[data-view]")) button.addEventListener("click", () => view(button.dataset.view));
  for (const button of document.querySelectorAll("[data-mark]")) button.addEventListener("click", () => mark(state.episode, button.dataset.mark || null));
  $("#browse tbody").addEventListener("click", (event) => show(Number(event.target.closest("tr").dataset.episode)));
  $("#find").addEventListener("input", () => { state.shown = ROWS; arrange(); });
  $("#find").addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === "Escape") $("#find").blur(); });
  $("#which").addEventListener("change", () => { state.shown = ROWS; arrange(); });
  $("#step").addEventListener("input", () => { pause(); seek(Number($("#step").value)); });
  const clicks = { "#play": play, "#next": () => go(1), "#previous": () => go(-1), "#save": () => save(false),
    "#trouble button": () => save(true), "#more": () => { state.shown += ROWS; drawRows(); } };
  for (const [selector, work] of Object.entries(clicks)) $(selector).addEventListener("click", work);
  for (const cell of document.querySelectorAll("#episodes tbody th[data-v]")) { // of the report
    cell.replaceChildren(element("a", { href: `#e${cell.dataset.v}`, textContent: cell.textContent }));
  }
  addEventListener("hashchange", () => { if (asked() !== null) { view("browse"); show(asked()); } });
  addEventListener("beforeunload", (event) => { if (state.pending.size) event.preventDefault(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
}
(async () => {
  $("#live").hidden = false;
  view(/^#(?!e\d)/.test(location.hash) ? "report" : "browse");
  try { data = await (await ask("episodes")).json(); } catch (error) { complain(error); return; }
  $("#rule").textContent = `By the rule: ${data.rule}. A mark overrides the rule; marks are kept at once, and Save writes the result.`;
  Object.assign(state, { by: data.by, falling: false }); // those to look at come first
  wire();
  await poll();
  drawHead(); arrange(); showMarks([]);
  setInterval(() => { if (!document.hidden) poll(); }, POLL);
  if (data.key.length) await open(asked() ?? state.rows[0]);
})();
})();
