// The chat page. What comes from the server is shown as text (textContent) or as Markdown (Markdown.render, which makes elements from trees
// and parses no HTML), never as markup.
"use strict";

const element = (id) => document.getElementById(id);
const log = element("log"), questions = element("questions"), state = element("state");
const promptField = element("prompt"), sendButton = element("send"), stopButton = element("stop");

let token = "";
let session = ""; // empty until the first message: a page that is only looked at leaves no conversation behind
let lastEvent = 0;
let answer = null; // the text of the running turn: { item, body, text }
let thoughts = null;
let turns = { tokens: 0, cost: 0, model: "" }; // of this conversation, as far as this page has seen
let editing = null; // the message that is being edited
const calls = new Map();
const attached = [];
let following = null; // the AbortController of the connection that follows the events

// ── requests ──

function request(method, path, body, more) {
  const headers = { Authorization: `Bearer ${token}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store", ...more });
}

async function call(method, path, body) {
  const response = await request(method, path, body);
  const text = await response.text();
  const value = text ? JSON.parse(text) : null;
  if (!response.ok) {
    const error = new Error(value?.error?.message ?? `HTTP status ${response.status}`);
    error.status = response.status;
    throw error;
  }
  return value;
}

const path = (rest = "", id = session) => `/api/sessions/${encodeURIComponent(id)}${rest}`;
const reported = (work) => (...given) => Promise.resolve(work(...given)).catch((error) => add("error", "Error", error.message));

// ── showing ──

function make(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  if (name === "pre") made.tabIndex = 0; // it scrolls
  return made;
}

function button(label, work, className) {
  const made = make("button", className, label);
  made.type = "button";
  made.addEventListener("click", reported(work));
  return made;
}

let isLoading = false; // many messages at once: measuring the page for each would take long

const append = (item) => keepAtEnd(() => log.append(item));

function keepAtEnd(work) {
  if (isLoading) { work(); return; }
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80; // who reads further above stays there
  work();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

function add(kind, who, text) {
  const item = make("div", kind);
  if (who) item.append(make("span", "who", who));
  const body = make("div", "text", text);
  item.append(body);
  append(item);
  return { item, body, text };
}

function copyButton(text) {
  const made = button("", async () => {
    await navigator.clipboard.writeText(text());
    made.classList.add("done");
    setTimeout(() => made.classList.remove("done"), 2000);
  }, "copy");
  made.setAttribute("aria-label", "Copy");
  return made;
}

// Renders the whole answer again, at most once per frame and with pauses of four times the time that it takes.
function drawAnswer(shown, isLast) {
  if (shown.waits && !isLast) return;
  const draw = () => {
    const began = performance.now();
    shown.waits = true;
    keepAtEnd(() => {
      shown.body.replaceChildren(Markdown.render(shown.text));
      for (const code of shown.body.querySelectorAll("pre")) {
        const around = make("div", "code");
        code.tabIndex = 0; // it scrolls
        code.replaceWith(around);
        around.append(code, copyButton(() => code.textContent));
      }
    });
    setTimeout(() => { shown.waits = false; if (shown.drawn !== shown.text) drawAnswer(shown); }, Math.max(16, 4 * (performance.now() - began)));
    shown.drawn = shown.text;
  };
  draw();
}

function endAnswer() {
  if (answer !== null) {
    const { item, text } = answer;
    drawAnswer(answer, true);
    const actions = make("div", "actions");
    actions.append(copyButton(() => text));
    keepAtEnd(() => item.append(actions));
  }
  answer = null;
  thoughts = null;
}

function addPrompt(text) {
  const { item } = add("user", "You", text);
  const actions = make("div", "actions");
  actions.append(button("Edit", () => edit(item, text)), button("Retry", () => again(item, text, text)));
  keepAtEnd(() => item.append(actions));
  item.prompt = text;
  if (text !== sessionStorage.getItem("unsent")) return;
  sessionStorage.removeItem("unsent"); // the server had it all the same
  if (promptField.value === text) promptField.value = "";
}

function folded(title) {
  const item = make("div", "tool"), details = make("details"), summary = make("summary", "", title);
  details.append(summary);
  item.append(details);
  append(item);
  return { item, details, summary };
}

function block(parent, text, language) {
  const shown = make("pre");
  const elements = language ? Markdown.highlight(language, text) : null;
  if (elements) shown.append(elements); else shown.textContent = text;
  parent.append(shown);
  return shown;
}

function setRunning(isRunning) {
  sendButton.disabled = isRunning;
  stopButton.disabled = !isRunning;
  state.textContent = isRunning ? "The agent is working" : "Ready";
}

const WAITING = "waits for your permission";
const STATUS = { ok: ["done", "done"], error: ["failed", "failed"], denied: ["denied", "not allowed"], cancelled: ["stopped", "stopped"] };

function setStatus(shown, kind, words) {
  shown.item.className = `tool ${kind}`;
  shown.status.textContent = words;
}

function showCall(id, name, input) {
  const shown = folded("");
  const best = ["command", "file_path", "path", "pattern", "url", "query", "prompt"].find((each) => typeof input?.[each] === "string");
  shown.status = make("span", "status");
  shown.summary.append(`${name} `, shown.status, " ", make("span", "given", best ? input[best].split("\n")[0] : ""));
  if (input && Object.keys(input).length) block(shown.details, JSON.stringify(input, null, 2), "json");
  calls.set(id, { ...shown, name });
  setStatus(shown, "running", "running");
  for (const box of questions.children) if (box.call === id) setStatus(shown, "waiting", WAITING); // it may ask before it is announced
  return calls.get(id);
}

function changesOf(diff) {
  const changes = make("pre", "diff");
  for (const line of diff) changes.append(make("span", { "+": "add", "-": "remove", "@": "at" }[line[0]] ?? "", line));
  return changes;
}

function showResult(id, name, event) {
  const shown = calls.get(id) ?? showCall(id, name, {});
  const [kind, words] = STATUS[event.status ?? (event.success ? "ok" : "error")] ?? STATUS.error;
  setStatus(shown, kind, event.seconds === undefined ? words : `${words} (${event.seconds.toFixed(1)} s)`);
  if (event.diff?.length) {
    shown.details.append(changesOf(event.diff));
    shown.details.open = true;
  }
  if (event.output) block(shown.details, event.output);
}

function stopCalls() {
  for (const shown of calls.values()) if (/running|waiting/.test(shown.item.className)) setStatus(shown, "stopped", "stopped");
}

function showCompaction(event) {
  endAnswer();
  const title = `Context compacted (${event.tier}): ${event.before_tokens} → ${event.after_tokens} tokens`;
  block(folded(title).details, event.summary ?? event.failure ?? `${event.left_out} messages are not shown to the model; the conversation is whole`);
}

function ask(question) {
  if (element(`question-${question.question}`)) return;
  const box = make("div");
  box.id = `question-${question.question}`;
  box.setAttribute("role", "group");
  const text = make("p", "", question.prompt);
  text.id = `${box.id}-text`;
  box.setAttribute("aria-labelledby", text.id);
  const buttons = make("div", "buttons");
  for (const option of question.options) buttons.append(button(option, () => reply(question.question, option)));
  box.append(text, ...(question.diff?.length ? [changesOf(question.diff)] : []), buttons);
  box.call = question.tool_call_id;
  if (calls.has(box.call)) setStatus(calls.get(box.call), "waiting", WAITING);
  keepAtEnd(() => questions.append(box));
  state.textContent = "The agent asks for permission";
  // To the last option, which denies: a key that was meant for the message does not allow anything.
  buttons.lastElementChild?.focus();
}

const reply = (question, option) => call("POST", path(`/approvals/${encodeURIComponent(question)}`), { option });

function unask(question) {
  const box = element(`question-${question}`);
  if (!box) return;
  const hadFocus = box.contains(document.activeElement);
  const shown = calls.get(box.call);
  if (shown?.item.classList.contains("waiting")) setStatus(shown, "running", "running");
  box.remove();
  if (hadFocus) promptField.focus();
  state.textContent = "The agent is working";
}

function showSpent() {
  const parts = [turns.model, turns.tokens ? `${turns.tokens.toLocaleString("en")} tokens` : "", turns.cost ? `$${turns.cost.toFixed(4)}` : ""];
  element("spent").textContent = parts.filter(Boolean).join(", ");
}

function show(event) {
  switch (event.type) {
    case "turn_started":
      endAnswer();
      if (event.prompt !== null) addPrompt(event.prompt); // null: a turn that was cut off goes on
      setRunning(true);
      break;
    case "text":
      thoughts = null;
      if (answer === null) {
        answer = add("agent", "Agent", "");
        event.text = event.text.replace(/^\n+/, ""); // a new item needs no blank line before it
      }
      answer.text += event.text;
      drawAnswer(answer);
      break;
    case "thinking":
      thoughts ??= block(folded("Thoughts").details, "");
      thoughts.textContent += event.text;
      break;
    case "text_reset": // that text is void, and the answer comes from its beginning
      thoughts = null;
      if (answer?.text.endsWith(event.text)) {
        answer.text = answer.text.slice(0, -event.text.length || undefined);
        drawAnswer(answer);
      }
      break;
    case "tool_started": endAnswer(); showCall(event.call, event.name, event.input); break;
    case "tool_finished": keepAtEnd(() => showResult(event.call, event.name, event)); break;
    case "compaction": showCompaction(event); break;
    case "approval_required": ask(event); break;
    case "approval_closed": unask(event.question); break;
    case "turn_ended":
      endAnswer();
      stopCalls();
      setRunning(false);
      turns.tokens += (event.usage?.input_tokens ?? 0) + (event.usage?.output_tokens ?? 0);
      turns.cost += Number(event.cost ?? 0);
      turns.model = event.model ?? turns.model;
      showSpent();
      if (event.status === "error") add("error", "Error", event.error);
      if (event.status === "cancelled") add("note", "", "Stopped.");
      reported(list)();
      break;
    case "gap": add("note", "", "Some events are missing here."); break;
  }
}

const textOf = (message) =>
  (Array.isArray(message.content) ? message.content : [{ type: "text", text: message.content ?? "" }])
    .map((part) => (part.type === "text" ? part.text : message.role === "user" ? `\n[${part.type}]` : "")).join("");

function showMessage(message) {
  const text = textOf(message);
  if (message.role === "user") addPrompt(text);
  if (message.role === "assistant") {
    if (text) { answer = add("agent", "Agent", ""); answer.text = text; endAnswer(); }
    for (const each of message.tool_calls ?? []) showCall(each.id, each.name ?? each.tool, each.arguments);
  }
  if (message.role === "tool") {
    const failed = message.is_error || /^(Error|\[interrupted)/.test(text);
    const kind = /^(Error: )?(denied: |not started: )/.exec(text)?.[2]; // the words of the loops
    const status = kind === "denied: " ? "denied" : kind || text.startsWith("[interrupted") ? "cancelled" : failed ? "error" : "ok";
    showResult(message.tool_call_id, message.name ?? "tool", { status, output: text });
  }
}

function showAll(messages) {
  isLoading = true;
  messages.forEach(showMessage);
  stopCalls();
  isLoading = false;
  log.scrollTop = log.scrollHeight;
}

// ── the connection ──

async function follow() {
  following?.abort();
  const mine = following = new AbortController();
  for (let pause = 500; !mine.signal.aborted; pause = Math.min(2 * pause, 10000)) {
    try {
      const response = await request("GET", path(`/events?after=${lastEvent}`), undefined, { signal: mine.signal });
      if (response.status === 404) { add("note", "", "The server has closed this conversation; a message opens it again."); return; }
      if (response.status === 401) { needToken(); return; }
      if (!response.ok) throw new Error(`HTTP status ${response.status}`);
      pause = 500;
      await read(response.body);
    } catch (error) {
      if (mine.signal.aborted) return;
      state.textContent = "The connection is lost; trying again";
    }
    await new Promise((resume) => setTimeout(resume, pause));
  }
}

async function read(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += value;
    const parts = buffer.split("\n\n");
    buffer = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find((line) => line.startsWith("data: "));
      if (data === undefined) { refresh(); continue; }
      const event = JSON.parse(data.slice(6));
      if (event.id > lastEvent || event.type === "gap") { lastEvent = event.id; show(event); }
    }
  }
}

function refresh() {
  if (state.textContent.startsWith("The connection") || state.textContent === "Connecting") setRunning(!stopButton.disabled);
}

function clear() {
  log.replaceChildren();
  questions.replaceChildren();
  calls.clear();
  answer = thoughts = editing = null;
  turns = { tokens: 0, cost: 0, model: "" };
  showSpent();
}

// An empty conversation, which the server knows from the first message on.
function begin() {
  following?.abort();
  session = "";
  sessionStorage.removeItem("session");
  clear();
  setRunning(false);
  reported(list)();
  promptField.focus();
}

async function open(body) {
  const opened = await call("POST", "/api/sessions", body);
  session = opened.session_id;
  lastEvent = opened.last_event_id;
  showTools(opened.tools);
  sessionStorage.setItem("session", session);
}

// Shows the conversation so far, then follows the running turn from its beginning.
async function resume() {
  const found = await call("GET", path());
  sessionStorage.setItem("session", session);
  clear();
  const isRunning = found.status === "running";
  if (!isRunning) {
    showAll(found.messages);
    lastEvent = found.last_event_id;
  } else {
    lastEvent = 0; // the events tell the whole story, as far as the server has kept them
  }
  setRunning(isRunning);
  showTools(found.tools);
  follow();
  promptField.focus();
}

async function choose(id) {
  following?.abort();
  if (openIds.has(id)) session = id; else await open({ session_id: id });
  await resume();
  closeMenu();
  await list();
}

// Also of a page that was open when the server was started anew, with another token.
function needToken() {
  element("login").hidden = false;
  element("ask").hidden = true;
  state.textContent = "A token is needed";
  element("token").focus();
}

async function connect() {
  element("login").hidden = true;
  element("ask").hidden = false;
  try {
    await list(); // refuses a wrong token
    promptField.value ||= sessionStorage.getItem("unsent") ?? "";
    session = sessionStorage.getItem("session") ?? "";
    if (openIds.has(session) || stored.some((each) => each.session_id === session)) await choose(session); else begin();
  } catch (error) {
    if (error.status === 401) {
      needToken();
    } else {
      state.textContent = "Not connected";
      add("error", "Error", error.message);
    }
  }
}

// ── the list of conversations ──

let stored = [], elsewhere = [], openIds = new Set();

async function list() {
  const found = await call("GET", "/api/sessions?stored");
  stored = found.stored;
  elsewhere = found.elsewhere;
  showReports(found.reports);
  openIds = new Set(found.sessions.map((each) => each.session_id));
  showList();
}

function showList() {
  const wanted = element("search").value.toLowerCase();
  const shown = stored.filter((each) => each.title.toLowerCase().includes(wanted));
  element("conversations").replaceChildren(...shown.map((each) => {
    const item = make("li", each.session_id === session ? "current" : "");
    const title = button(each.title, () => choose(each.session_id));
    title.title = `${each.title} — ${new Date(each.updated).toLocaleString()}`;
    if (each.session_id === session) title.setAttribute("aria-current", "true");
    const buttons = make("div", "buttons actions");
    buttons.append(button("Rename", () => rename(item, each)), button("Copy", () => fork(each)), button("Delete", () => remove(item, each)), trace(each, "Trace"));
    for (const one of buttons.children) one.setAttribute("aria-label", `${one.textContent}: ${each.title}`);
    item.append(title, buttons);
    return item;
  }));
  if (!shown.length) element("conversations").append(make("li", "note", wanted ? "None like that" : "None yet"));
  const others = elsewhere.filter((each) => `${each.title} ${each.directory}`.toLowerCase().includes(wanted));
  fill("elsewhere", others.map((each) => [trace(each, each.title), make("small", "note", each.directory)]));
}

// What a session did, in a tab of its own; the token goes with the address, behind the sign that no server is sent.
function trace(each, words) {
  const link = make("a", "", words);
  link.href = `/trace#${new URLSearchParams({ token, traced: each.session_id })}`;
  link.target = "_blank";
  link.rel = "noopener";
  link.title = `What the agent did: ${each.title}`;
  return link;
}

function fill(id, items) {
  element(id).replaceChildren(...items.map((parts) => {
    const item = make("li");
    item.append(...parts);
    return item;
  }));
  if (!items.length) element(id).append(make("li", "note", "None"));
}

function showReports(reports) {
  fill("reports", reports.map((each) => {
    const report = make("details");
    report.append(make("summary", each.verdict, `${each.module}: ${each.verdict}`), make("small", "note", new Date(each.checked).toLocaleString()), make("pre", "", each.text));
    return [report];
  }));
}

function showTools(tools) {
  element("tool-count").textContent = `Tools (${tools.length})`;
  fill("tool-list", tools.map((each) => [make("strong", "", each.name), make("small", "note", ` ${each.description}`)]));
}

function rename(item, each) {
  const field = make("input");
  field.value = each.title;
  field.setAttribute("aria-label", "New title");
  field.addEventListener("keydown", reported(async (event) => {
    if (event.key === "Escape") { event.stopPropagation(); showList(); }
    if (event.key !== "Enter" || !field.value.trim()) return;
    await call("PATCH", path("", each.session_id), { title: field.value });
    await list();
  }));
  item.replaceChildren(field);
  field.focus();
}

async function fork(each) {
  await open({ fork_of: each.session_id });
  await resume();
  await list();
}

function remove(item, each) {
  const buttons = make("div", "buttons");
  buttons.append(button("Delete for good", async () => {
    if (each.session_id === session) following?.abort();
    await call("DELETE", path("", each.session_id));
    if (each.session_id === session) begin(); else await list();
  }), button("Keep", showList));
  item.replaceChildren(make("span", "", each.title), buttons);
  buttons.lastElementChild.focus();
}

function closeMenu() {
  element("sidebar").classList.remove("open");
  element("menu").setAttribute("aria-expanded", "false");
}

// ── what the person does ──

async function send() {
  const text = promptField.value, files = [...attached], edited = editing;
  if ((!text.trim() && !files.length) || sendButton.disabled) return;
  sendButton.disabled = true;
  promptField.value = ""; // now: the person goes on typing while the server answers
  sessionStorage.setItem("unsent", text); // until the server has it: the page may be loaded again before
  attached.length = 0;
  showAttached();
  editing = null;
  try {
    const prompt = files.length ? [...(text.trim() ? [{ type: "text", text }] : []), ...files.map((each) => each.part)] : text;
    if (edited) await again(edited.item, edited.text, prompt); else await start({ prompt });
    sessionStorage.removeItem("unsent");
  } catch (error) {
    sendButton.disabled = false;
    sessionStorage.removeItem("unsent");
    promptField.value = promptField.value || text;
    attached.unshift(...files);
    showAttached();
    if (error.status === 401) needToken(); else add("error", "Error", error.message);
  }
}

async function start(turn) {
  if (session) {
    try { await call("POST", path("/turns"), turn); return; } catch (error) { if (error.status !== 404) throw error; }
    await open({ session_id: session }); // the server had closed it
  } else {
    await open({});
  }
  follow();
  await call("POST", path("/turns"), turn);
}

function edit(item, text) {
  editing = { item, text };
  promptField.value = text;
  promptField.focus();
  state.textContent = "Editing a message: what follows it is replaced";
}

// Ask once more from one of the person's messages on: what came after it is given up.
async function again(item, text, prompt) {
  if (!stopButton.disabled) throw new Error("the agent is working; stop it first");
  const { messages } = await call("GET", path());
  const later = [...log.querySelectorAll(".user")];
  const same = later.slice(later.indexOf(item)).filter((each) => each.prompt === text).length; // counted from the end
  const indexes = messages.flatMap((message, index) => (message.role === "user" && textOf(message) === text ? [index] : []));
  const keep = indexes.at(-same);
  if (keep === undefined) throw new Error("the agent does not have this message any more");
  while (item.nextSibling) item.nextSibling.remove(); // before the events of the new turn come
  item.remove();
  try { await start({ prompt, keep }); } catch (error) { await resume(); throw error; }
}

async function attach(files) {
  for (const file of files) {
    const data = await new Promise((done, failed) => {
      const reader = new FileReader();
      reader.onload = () => done(reader.result);
      reader.onerror = () => failed(reader.error);
      reader.readAsDataURL(file);
    });
    const isImage = /^image\/(png|jpeg|gif|webp)$/.test(file.type);
    const part = isImage ? { type: "image_url", image_url: { url: data } } : { type: "file", file: { filename: file.name, file_data: data } };
    attached.push({ name: file.name, part });
  }
  showAttached();
}

function showAttached() {
  element("attached").replaceChildren(...attached.map((each) => {
    const item = make("li");
    const taken = button(`${each.name} ×`, () => { attached.splice(attached.indexOf(each), 1); showAttached(); });
    taken.setAttribute("aria-label", `Do not attach ${each.name}`);
    item.append(taken);
    return item;
  }));
}

async function stop() {
  if (editing) { editing = null; promptField.value = ""; setRunning(!stopButton.disabled); }
  if (stopButton.disabled) return;
  state.textContent = "Stopping";
  await call("POST", path("/stop"), {});
}

element("ask").addEventListener("submit", (event) => { event.preventDefault(); send(); });
promptField.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
promptField.addEventListener("paste", (event) => { if (event.clipboardData.files.length) { event.preventDefault(); reported(attach)(event.clipboardData.files); } });
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => { event.preventDefault(); reported(attach)(event.dataTransfer.files); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") reported(stop)(); });
stopButton.addEventListener("click", reported(stop));
element("attach").addEventListener("click", () => element("files").click());
element("files").addEventListener("change", reported(async (event) => { await attach(event.target.files); event.target.value = ""; }));
element("search").addEventListener("input", showList);
element("menu").addEventListener("click", () => element("menu").setAttribute("aria-expanded", element("sidebar").classList.toggle("open")));
element("new").addEventListener("click", () => { begin(); closeMenu(); });
element("theme").addEventListener("click", () => {
  const isDark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  localStorage.setItem("theme", document.documentElement.dataset.theme = isDark ? "light" : "dark");
});
element("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = element("token").value.trim();
  sessionStorage.setItem("token", token);
  connect();
});

// The token comes in the fragment, which a browser sends to no server; it does not stay in the address.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem("token", given);
  history.replaceState(null, "", location.pathname);
}
token = sessionStorage.getItem("token") ?? "";
if (localStorage.getItem("theme")) document.documentElement.dataset.theme = localStorage.getItem("theme");
connect();
