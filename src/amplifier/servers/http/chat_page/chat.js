// The chat page. Everything that comes from the server is shown as text (textContent), never as markup.
"use strict";

const element = (id) => document.getElementById(id);
const log = element("log"), questions = element("questions"), state = element("state");
const promptField = element("prompt"), sendButton = element("send"), stopButton = element("stop");

let token = "";
let session = "";
let lastEvent = 0;
let answer = null; // the list item that the text of the running turn goes into
let thoughts = null;
const calls = new Map();
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

const path = (rest = "") => `/api/sessions/${encodeURIComponent(session)}${rest}`;

// ── showing ──

function add(kind, who, text) {
  const item = document.createElement("li");
  item.className = kind;
  if (who) {
    const name = document.createElement("span");
    name.className = "who";
    name.textContent = who;
    item.append(name);
  }
  const body = document.createElement("span");
  body.className = "text";
  body.textContent = text;
  item.append(body);
  log.append(item);
  item.scrollIntoView({ block: "end" });
  return body;
}

function folded(title) {
  const item = document.createElement("li");
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = title;
  details.append(summary);
  item.append(details);
  log.append(item);
  return { details, summary };
}

function block(parent, text) {
  const shown = document.createElement("pre");
  shown.textContent = text;
  parent.append(shown);
  return shown;
}

function setRunning(isRunning) {
  sendButton.disabled = isRunning;
  stopButton.disabled = !isRunning;
  state.textContent = isRunning ? "The agent is working" : "Ready";
}

function endParts() { answer = null; thoughts = null; }

function showCall(id, name, input) {
  const shown = folded(`${name}: running`);
  block(shown.details, JSON.stringify(input, null, 2));
  calls.set(id, { ...shown, name });
  return calls.get(id);
}

function showResult(id, name, success, output) {
  const shown = calls.get(id) ?? showCall(id, name, {});
  shown.summary.textContent = `${shown.name}: ${success ? "done" : "failed"}`;
  block(shown.details, output);
}

function ask(question) {
  if (element(`question-${question.question}`)) return;
  const box = document.createElement("div");
  box.id = `question-${question.question}`;
  box.setAttribute("role", "group");
  const text = document.createElement("p");
  text.id = `${box.id}-text`;
  text.textContent = question.prompt;
  box.setAttribute("aria-labelledby", text.id);
  const buttons = document.createElement("div");
  buttons.className = "buttons";
  for (const option of question.options) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = option;
    button.addEventListener("click", () => reply(question.question, option));
    buttons.append(button);
  }
  box.append(text, buttons);
  questions.append(box);
  state.textContent = "The agent asks for permission";
  // To the last option, which denies: a key that was meant for the message does not allow anything.
  buttons.lastElementChild?.focus();
}

async function reply(question, option) {
  try {
    await call("POST", path(`/approvals/${encodeURIComponent(question)}`), { option });
  } catch (error) {
    add("error", "Error", error.message);
  }
}

function unask(question) {
  const box = element(`question-${question}`);
  if (!box) return;
  const hadFocus = box.contains(document.activeElement);
  box.remove();
  if (hadFocus) promptField.focus();
  state.textContent = "The agent is working";
}

function show(event) {
  switch (event.type) {
    case "turn_started":
      endParts();
      if (event.prompt !== null) add("user", "You", event.prompt); // null: a turn that was cut off goes on
      setRunning(true);
      break;
    case "text":
      thoughts = null;
      if (answer === null) {
        answer = add("agent", "Agent", "");
        event.text = event.text.replace(/^\n+/, ""); // a new item needs no blank line before it
      }
      answer.textContent += event.text;
      break;
    case "thinking":
      thoughts ??= block(folded("Thoughts").details, "");
      thoughts.textContent += event.text;
      break;
    case "text_reset": // that text is void, and the answer comes from its beginning
      thoughts = null;
      if (answer?.textContent.endsWith(event.text)) answer.textContent = answer.textContent.slice(0, -event.text.length || undefined);
      break;
    case "tool_started": endParts(); showCall(event.call, event.name, event.input); break;
    case "tool_finished": showResult(event.call, event.name, event.success, event.output); break;
    case "approval_required": ask(event); break;
    case "approval_closed": unask(event.question); break;
    case "turn_ended":
      endParts();
      setRunning(false);
      if (event.status === "error") add("error", "Error", event.error);
      if (event.status === "cancelled") add("note", "", "Stopped.");
      break;
    case "gap": add("note", "", "Some events are missing here."); break;
  }
}

function showMessage(message) {
  const parts = Array.isArray(message.content) ? message.content : [{ type: "text", text: message.content ?? "" }];
  const text = parts.filter((part) => part.type === "text").map((part) => part.text).join("");
  if (message.role === "user") add("user", "You", text);
  if (message.role === "assistant") {
    if (text) add("agent", "Agent", text);
    for (const each of message.tool_calls ?? []) showCall(each.id, each.name ?? each.tool, each.arguments);
  }
  if (message.role === "tool") showResult(message.tool_call_id, message.name ?? "tool", true, text);
}

// ── the connection ──

async function follow() {
  following?.abort();
  const mine = following = new AbortController();
  for (let pause = 500; !mine.signal.aborted; pause = Math.min(2 * pause, 10000)) {
    try {
      const response = await request("GET", path(`/events?after=${lastEvent}`), undefined, { signal: mine.signal });
      if (response.status === 404) { add("note", "", "The server has closed this conversation."); await begin(); return; }
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

async function begin() {
  const opened = await call("POST", "/api/sessions", {});
  session = opened.session_id;
  lastEvent = opened.last_event_id;
  sessionStorage.setItem("session", session);
  log.replaceChildren();
  questions.replaceChildren();
  calls.clear();
  endParts();
  setRunning(false);
  follow();
  promptField.focus();
}

// A reload shows the conversation so far, then follows the running turn from its beginning.
async function resume() {
  const found = await call("GET", path());
  log.replaceChildren();
  questions.replaceChildren();
  calls.clear();
  const isRunning = found.status === "running";
  if (!isRunning) {
    found.messages.forEach(showMessage);
    lastEvent = found.last_event_id;
  } else {
    lastEvent = 0; // the events tell the whole story, as far as the server has kept them
  }
  endParts();
  setRunning(isRunning);
  follow();
  promptField.focus();
}

async function connect() {
  element("login").hidden = true;
  element("ask").hidden = false;
  try {
    session = sessionStorage.getItem("session") ?? "";
    if (session) {
      try { await resume(); return; } catch (error) { if (error.status !== 404) throw error; }
    }
    await begin();
  } catch (error) {
    if (error.status === 401) {
      element("login").hidden = false;
      element("ask").hidden = true;
      state.textContent = "A token is needed";
      element("token").focus();
    } else {
      state.textContent = "Not connected";
      add("error", "Error", error.message);
    }
  }
}

// ── what the person does ──

async function send() {
  const prompt = promptField.value;
  if (!prompt.trim() || sendButton.disabled) return;
  sendButton.disabled = true;
  try {
    await call("POST", path("/turns"), { prompt });
    promptField.value = "";
  } catch (error) {
    sendButton.disabled = false;
    add("error", "Error", error.message);
  }
}

async function stop() {
  if (stopButton.disabled) return;
  state.textContent = "Stopping";
  try {
    await call("POST", path("/stop"), {});
  } catch (error) {
    add("error", "Error", error.message);
  }
}

element("ask").addEventListener("submit", (event) => { event.preventDefault(); send(); });
promptField.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });
stopButton.addEventListener("click", stop);
element("new").addEventListener("click", () => begin().catch((error) => add("error", "Error", error.message)));
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
connect();
