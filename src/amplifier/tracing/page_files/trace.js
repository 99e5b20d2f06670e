// The trace page. All data are text: they come as JSON and are shown with textContent, never as markup.
"use strict";

const HEIGHT = 26; // of a row, as in the style sheet
const SPARE = 20; // rows that are drawn above and below the visible ones
const MOST_EVENTS = 50; // that the details show at once
const POLL = 500; // milliseconds between two requests of a page that follows a session
const KINDS = {
  turn: "turns", model: "model calls", tool: "tool calls", approval: "approvals", compaction: "compactions", hook: "hooks", cancel: "cancellations",
  event: "other events", unread: "lines not read",
};

const element = (id) => document.getElementById(id);
const tree = element("tree"), space = element("space"), details = element("details"), search = element("search");
const rows = []; // by number
let below = new Map(); // the numbers of the rows below each row
let shown = []; // what the tree shows now: { row, level, place, among }
let matching = null; // the numbers that the filter selects; null if it selects everything
const closed = new Set(); // the rows whose children are hidden
const hidden = new Set(); // the kinds that are filtered out
let chosen = null; // the number of the selected row
let begin = 0; // of the whole trace, in seconds
let pauses = [], busy = 1; // the time without a turn: { from, to, shown }, and all the time that the bars show

function make(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// ── data ──

// A session that is resumed the next day has turns of seconds and a pause of hours: a pause takes at most a twentieth of the width that
// the turns take.
function findPauses() {
  const spans = rows.filter((row) => row.s !== null && row.k !== "session").map((row) => [row.s, Math.max(row.s, row.e ?? row.s)]).sort((a, b) => a[0] - b[0]);
  let reached = begin, worked = 0;
  pauses = [];
  for (const [from, to] of spans) {
    if (from > reached) pauses.push({ from: reached, to: from });
    worked += Math.max(0, to - Math.max(from, reached));
    reached = Math.max(reached, to);
  }
  for (const pause of pauses) pause.shown = Math.min(pause.to - pause.from, Math.max(worked / 20, 1e-6));
  busy = Math.max(1e-6, offset(reached));
}

// Where a moment is, in seconds of the time that the bars show.
function offset(at) {
  let shown = at - begin;
  for (const pause of pauses) if (at > pause.from) shown -= (Math.min(at, pause.to) - pause.from) * (1 - pause.shown / (pause.to - pause.from));
  return shown;
}

function load(data) {
  const isAtEnd = tree.scrollTop + tree.clientHeight >= tree.scrollHeight - HEIGHT;
  for (const row of data.rows) rows[row.n] = row;
  document.title = data.title;
  element("title").textContent = data.title;
  element("summary").textContent = data.summary;
  element("notes").replaceChildren(...data.notes.map((note) => make("li", "", note)));
  const slow = data.slowest.map(([number, label]) => {
    const button = make("button", "", label);
    button.type = "button";
    button.addEventListener("click", () => { reveal(number); tree.focus(); });
    return button;
  });
  element("slow").replaceChildren(...(slow.length ? [make("span", "", "Slowest:"), ...slow] : []));
  below = new Map();
  begin = Infinity;
  for (const row of rows) {
    const key = row.p ?? -1;
    if (!below.has(key)) below.set(key, []);
    below.get(key).push(row.n);
    if (row.s !== null) begin = Math.min(begin, row.s);
  }
  findPauses();
  showKinds();
  filter();
  if (data.live && isAtEnd) tree.scrollTop = tree.scrollHeight;
}

function contains(row, text) {
  if (!text) return true;
  row.all ??= [row.l, row.x, ...row.w, ...row.v.flatMap((event) => [event[1], event[3]])].join("\n").toLowerCase();
  return row.all.includes(text);
}

// ── filter ──

function showKinds() {
  const present = new Set(rows.map((row) => row.k));
  const box = element("kinds");
  for (const [kind, words] of Object.entries(KINDS)) {
    if (!present.has(kind) || document.getElementById(`kind-${kind}`)) continue;
    const label = make("label"), input = make("input");
    input.type = "checkbox";
    input.id = `kind-${kind}`;
    input.checked = true;
    input.addEventListener("change", () => { input.checked ? hidden.delete(kind) : hidden.add(kind); filter(); });
    label.append(input, ` ${words}`);
    box.append(label);
  }
}

function filter() {
  const text = search.value.trim().toLowerCase(), problems = element("problems").checked;
  if (!text && !problems && !hidden.size) {
    matching = null;
  } else {
    matching = new Set();
    for (const row of rows) {
      if (hidden.has(row.k) || (problems && !["error", "denied", "cancelled", "open"].includes(row.t))) continue;
      if (contains(row, text)) matching.add(row.n);
    }
  }
  arrange();
}

function arrange() {
  // With a filter, the rows above a matching one are shown too, and nothing is closed.
  let kept = null;
  if (matching) {
    kept = new Set();
    for (const number of matching)
      for (let each = number; each !== null && !kept.has(each); each = rows[each].p) kept.add(each);
  }
  shown = [];
  const waiting = [];
  const push = (numbers, level) => {
    const visible = kept ? numbers.filter((number) => kept.has(number)) : numbers;
    for (let index = visible.length - 1; index >= 0; index--)
      waiting.push({ row: rows[visible[index]], level, place: index + 1, among: visible.length });
  };
  push(below.get(-1) ?? [], 1);
  while (waiting.length) {
    const item = waiting.pop();
    shown.push(item);
    if (kept || !closed.has(item.row.n)) push(below.get(item.row.n) ?? [], item.level + 1);
  }
  space.style.height = `${shown.length * HEIGHT}px`;
  const count = matching ? matching.size : rows.length;
  element("count").textContent = `${count} of ${rows.length} rows`;
  draw();
}

// ── the tree: only the rows in view are in the document ──

let drawn = new Map(); // the elements of the rows in the document, by number
let drawnFirst = 0, drawnLast = 0;

function draw() {
  drawn = new Map(); // something has changed: no element is used again
  space.replaceChildren();
  drawnFirst = drawnLast = 0;
  drawScrolled();
}

function drawScrolled() {
  const top = Math.floor(tree.scrollTop / HEIGHT), bottom = Math.ceil((tree.scrollTop + tree.clientHeight) / HEIGHT);
  if (top >= drawnFirst && Math.min(bottom, shown.length) <= drawnLast) return;
  drawnFirst = Math.max(0, top - SPARE);
  drawnLast = Math.min(shown.length, bottom + SPARE);
  const before = drawn;
  drawn = new Map();
  for (let index = drawnFirst; index < drawnLast; index++) {
    const number = shown[index].row.n;
    drawn.set(number, before.get(number) ?? drawRow(shown[index], index));
    before.delete(number);
  }
  for (const left of before.values()) left.remove();
  let place = space.firstChild;
  for (const made of drawn.values()) {
    if (made === place) place = place.nextSibling;
    else space.insertBefore(made, place);
  }
  if (drawn.has(chosen)) tree.setAttribute("aria-activedescendant", `row-${chosen}`);
  else tree.removeAttribute("aria-activedescendant");
}

function drawRow({ row, level, place, among }, index) {
  const made = make("div", `row ${row.k} ${row.t}`);
  made.id = `row-${row.n}`;
  made.style.top = `${index * HEIGHT}px`;
  made.setAttribute("role", "treeitem");
  made.setAttribute("aria-level", level);
  made.setAttribute("aria-posinset", place);
  made.setAttribute("aria-setsize", among);
  made.setAttribute("aria-selected", String(row.n === chosen));
  made.setAttribute("aria-label", [row.l, ...row.w, row.x].filter(Boolean).join(", "));
  if (matching && !matching.has(row.n)) made.classList.add("dim");
  const label = make("div", "label");
  label.style.paddingInlineStart = `${Math.min(level - 1, 12) * 14}px`;
  const hasChildren = below.has(row.n);
  const isOpen = hasChildren && (matching !== null || !closed.has(row.n));
  if (hasChildren) made.setAttribute("aria-expanded", String(isOpen));
  const mark = make("span", "mark", hasChildren ? (isOpen ? "▾" : "▸") : "");
  if (hasChildren) mark.addEventListener("click", (event) => { event.stopPropagation(); toggle(row.n); });
  label.append(mark, make("span", "name", row.l), " ");
  if (row.u) label.append(make("span", "word", row.u), " ");
  label.append(make("span", "text", row.x));
  const bars = make("div", "bars"), bar = make("div", "bar");
  if (row.s !== null) {
    const from = offset(row.s);
    bar.style.left = `${Math.min(99.5, (100 * from) / busy)}%`;
    bar.style.width = `${Math.min(100, (100 * Math.max(0, offset(row.e ?? row.s) - from)) / busy)}%`;
    bars.append(bar);
  }
  made.append(label, bars, make("div", "took", row.d));
  made.addEventListener("click", () => choose(index));
  made.addEventListener("dblclick", () => toggle(row.n));
  return made;
}

function toggle(number) {
  if (!below.has(number)) return;
  closed.has(number) ? closed.delete(number) : closed.add(number);
  arrange();
}

function choose(index) {
  if (!shown.length) return;
  const place = Math.max(0, Math.min(shown.length - 1, index));
  drawn.get(chosen)?.setAttribute("aria-selected", "false");
  chosen = shown[place].row.n;
  const top = place * HEIGHT;
  if (top < tree.scrollTop) tree.scrollTop = top;
  else if (top + HEIGHT > tree.scrollTop + tree.clientHeight) tree.scrollTop = top + HEIGHT - tree.clientHeight;
  drawScrolled();
  drawn.get(chosen)?.setAttribute("aria-selected", "true");
  tree.setAttribute("aria-activedescendant", `row-${chosen}`);
  showDetails(rows[chosen]);
}

function reveal(number) {
  for (let each = rows[number].p; each !== null; each = rows[each].p) closed.delete(each);
  if (matching && !matching.has(number)) {
    search.value = "";
    element("problems").checked = false;
    for (const input of element("kinds").querySelectorAll("input")) input.checked = true;
    hidden.clear();
    filter();
  }
  arrange();
  choose(shown.findIndex((item) => item.row.n === number));
}

// ── details ──

function showDetails(row) {
  const facts = make("dl");
  const add = (name, value) => { if (value) facts.append(make("dt", "", name), make("dd", "", value)); };
  add("about", row.x);
  add("began", row.s === null ? "" : `after ${(row.s - begin).toFixed(3)} s`);
  for (const fact of row.w) add("", fact);
  add("session", row.i);
  const list = make("div");
  details.replaceChildren(make("h2", "", row.l), facts, list);
  details.scrollTop = 0;
  moreEvents(row, list, 0);
}

function moreEvents(row, list, from) {
  for (const [number, name, at, payload] of row.v.slice(from, from + MOST_EVENTS)) {
    const when = at === null ? "" : ` after ${(at - begin).toFixed(3)} s`;
    list.append(make("h3", "", `${name}${when}, event ${number}`));
    if (payload) list.append(make("pre", "", payload));
  }
  if (row.v.length > from + MOST_EVENTS) {
    const button = make("button", "", `${row.v.length - from - MOST_EVENTS} more events`);
    button.type = "button";
    button.addEventListener("click", () => { button.remove(); moreEvents(row, list, from + MOST_EVENTS); });
    list.append(button);
  }
}

// ── keyboard and controls ──

tree.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const index = shown.findIndex((item) => item.row.n === chosen), row = chosen === null ? null : rows[chosen];
  const page = Math.max(1, Math.floor(tree.clientHeight / HEIGHT) - 1);
  const isOpen = row && below.has(row.n) && !closed.has(row.n);
  const keys = {
    ArrowDown: () => choose(index + 1),
    ArrowUp: () => choose(index < 0 ? 0 : index - 1),
    PageDown: () => choose(index + page),
    PageUp: () => choose(index - page),
    Home: () => choose(0),
    End: () => choose(shown.length - 1),
    ArrowRight: () => { if (row) isOpen ? choose(index + 1) : toggle(row.n); },
    ArrowLeft: () => {
      if (!row) return;
      if (isOpen && !matching) toggle(row.n);
      else if (row.p !== null) choose(shown.findIndex((item) => item.row.n === row.p));
    },
    Enter: () => details.focus(),
  };
  if (!(event.key in keys)) return;
  event.preventDefault();
  keys[event.key]();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== search) { event.preventDefault(); search.focus(); }
  if (event.key === "Escape") {
    if (document.activeElement === search && search.value) { search.value = ""; filter(); }
    tree.focus();
  }
});
tree.addEventListener("scroll", drawScrolled, { passive: true });
new ResizeObserver(drawScrolled).observe(tree);
search.addEventListener("input", filter);
element("problems").addEventListener("change", filter);
element("open-all").addEventListener("click", () => { closed.clear(); arrange(); });
element("close-all").addEventListener("click", () => {
  for (const row of rows) if (below.has(row.n) && row.k !== "session") closed.add(row.n);
  arrange();
});

// ── following a running session ──

async function follow() {
  const given = new URLSearchParams(location.hash.slice(1));
  const [token, session] = ["token", "traced"].map((name) => {
    const value = given.get(name) ?? sessionStorage.getItem(name) ?? "";
    sessionStorage.setItem(name, value); // for a reload
    return value;
  });
  history.replaceState(null, "", location.pathname);
  document.title = element("title").textContent = session;
  const state = element("state");
  let revision = 0;
  for (;;) {
    try {
      const response = await fetch(`/api/sessions/${encodeURIComponent(session)}/trace?after=${revision}`, { headers: { Authorization: `Bearer ${token}` }, cache: "no-store" });
      if (response.status === 401) {
        state.textContent = "This page needs the token in the address that the command printed.";
        return;
      }
      if (!response.ok) throw new Error(`HTTP status ${response.status}`);
      const data = await response.json();
      if (data.rows.length || !revision) load({ ...data, live: true });
      revision = data.revision;
      state.textContent = data.running ? "The session is running." : "The session is not running now.";
    } catch (error) {
      state.textContent = "The server that follows the session has ended, or has no such session.";
    }
    await new Promise((done) => setTimeout(done, POLL));
  }
}

const data = JSON.parse(element("data").textContent);
if (data.live) follow();
else load(data);
