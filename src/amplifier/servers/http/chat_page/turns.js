"use strict";
// The turns of an engine: listed every two seconds, shown, stopped, resumed and released.
const token = new URLSearchParams(location.hash.slice(1)).get("token") ?? "";
const element = (id) => document.getElementById(id);
for (const state of ["queued", "running", "held", "completed", "failed", "stopped"]) element("state").add(new Option(state));

async function ask(path, method = "GET") {
  const answer = await fetch(path, { method, headers: { Authorization: `Bearer ${token}` } });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error.message);
  return body;
}

async function attempt(work) {
  try {
    await work();
  } catch (error) {
    element("counts").textContent = String(error.message);
  }
}

function button(turn, name, work) {
  const made = document.createElement("button");
  made.textContent = name;
  made.setAttribute("aria-label", `${name} turn ${turn.turn_id}`);
  made.addEventListener("click", () => attempt(work));
  return made;
}

function row(turn, now) {
  const path = `/api/turns/${encodeURIComponent(turn.turn_id)}`;
  const show = async () => (element("shown").textContent = JSON.stringify(await ask(path), null, 2));
  const act = (name) => button(turn, name, async () => { await ask(`${path}/${name}`, "POST"); await list(); await show(); });
  const made = document.createElement("tr");
  const age = `${Math.max(0, Math.round((turn.ended ?? now) - turn.started))} s`;
  for (const text of [turn.turn_id, turn.session_id, turn.state, age, turn.attempt, turn.takeovers, turn.error ?? ""])
    made.insertCell().textContent = text;
  const possible = { queued: ["stop"], running: ["stop", "release"], held: ["resume", "stop"] }[turn.state] ?? [];
  made.insertCell().append(button(turn, "show", show), ...possible.map(act));
  return made;
}

async function list() {
  const { turns, counts, now } = await ask(`/api/turns?state=${element("state").value}`);
  const states = Object.entries(counts.states).map(([state, count]) => `${count} ${state}`).join(", ") || "no turns";
  element("counts").textContent = `${states}; the oldest open one is ${Math.round(counts.oldest)} s old`;
  element("turns").replaceChildren(...turns.map((turn) => row(turn, now)));
}

element("state").addEventListener("change", () => attempt(list));
attempt(list);
setInterval(() => document.activeElement?.tagName === "BUTTON" || attempt(list), 2000); // a row with the focus stays where it is
