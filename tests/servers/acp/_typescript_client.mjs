// Drives `amplifier acp` with the TypeScript library of the protocol, which is a second implementation of the client: prints what it saw as JSON.
//
// It validates every message that the agent sends against the schema of the protocol.
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";

const [, , library, given] = process.argv;
const { command, cwd, gate } = JSON.parse(given);
const { client, methods, ndJsonStream, PROTOCOL_VERSION } = await import(library);

const seen = { kinds: [], texts: {}, stops: [], questions: [], errors: [] };
let answers = [];
let onUpdate = () => {};

async function withAgent(work) {
  const agent = spawn(command[0], command.slice(1), { cwd, stdio: ["pipe", "pipe", "inherit"] });
  const ended = new Promise((resolve) => agent.on("exit", (code, signal) => resolve(signal ?? code)));
  const editor = client({ name: "editor" })
    .onNotification(methods.client.session.update, ({ params: { sessionId, update } }) => {
      seen.kinds.push(update.sessionUpdate);
      if (update.content?.type === "text") seen.texts[sessionId] = (seen.texts[sessionId] ?? "") + update.content.text;
      onUpdate(update);
    })
    .onRequest(methods.client.session.requestPermission, ({ params }) => {
      seen.questions.push(params.toolCall.title);
      const wanted = answers.shift();
      const option = params.options.find((each) => each.kind === wanted);
      return { outcome: option ? { outcome: "selected", optionId: option.optionId } : { outcome: "cancelled" } };
    });
  const stream = ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
  await editor.connectWith(stream, async (context) => {
    const started = await context.request(methods.agent.initialize, { protocolVersion: PROTOCOL_VERSION, clientCapabilities: {} });
    seen.version = started.protocolVersion;
    await work(context);
  });
  agent.stdin.end();
  seen.exit = await ended;
}

const ask = async (context, sessionId, text) => {
  const answer = await context.request(methods.agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] });
  seen.stops.push(answer.stopReason);
};
const call = (tool, path) => `call ${tool} ${JSON.stringify({ path: `${cwd}/${path}` })}`;

let stored;
await withAgent(async (context) => {
  const { sessionId } = await context.request(methods.agent.session.new, { cwd, mcpServers: [] });
  stored = sessionId;
  await ask(context, sessionId, "say one two three");
  answers = ["allow_once", "reject_once", "none of them"];
  await ask(context, sessionId, call("risky", "allowed"));
  await ask(context, sessionId, call("risky", "rejected"));
  await ask(context, sessionId, call("risky", "cancelled"));

  // A turn that is cancelled while a tool runs, and a second prompt meanwhile.
  const running = ask(context, sessionId, call("wait_for", gate));
  await new Promise((resolve) => { onUpdate = (update) => update.sessionUpdate === "tool_call" && resolve(); });
  await ask(context, sessionId, "say me too").catch((error) => seen.errors.push(error.message));
  await context.notify(methods.agent.session.cancel, { sessionId });
  await running;
  await ask(context, sessionId, "fail").catch((error) => seen.errors.push(error.message));
  const unknown = { sessionId: "nowhere", cwd, mcpServers: [] };
  await context.request(methods.agent.session.load, unknown).catch((error) => seen.errors.push(error.message));
});
seen.first = seen.kinds;
seen.kinds = [];
await withAgent(async (context) => {
  const listed = await context.request(methods.agent.session.list, {});
  seen.listed = listed.sessions.map((each) => each.sessionId).includes(stored);
  await context.request(methods.agent.session.load, { sessionId: stored, cwd, mcpServers: [] });
  seen.replayed = seen.kinds;
  seen.texts = {};
  await ask(context, stored, "history");
});
console.log(JSON.stringify({ ...seen, text: seen.texts[stored] }));
