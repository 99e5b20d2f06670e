// Runs an agent with the official client of AG-UI, which checks every event; prints what it has received as JSON.
const [, , library, url, token, prompt] = process.argv;
const { HttpAgent } = await import(library);

const agent = new HttpAgent({ url, headers: { Authorization: `Bearer ${token}` }, threadId: "thread-1" });
const kinds = [];
let failure = null;
for (const content of prompt.split("|")) {
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
  try {
    await agent.runAgent({}, { onEvent: ({ event }) => { kinds.push(event.type); } });
  } catch (error) {
    failure = String(error.message ?? error);
  }
}
console.log(JSON.stringify({ kinds, failure, messages: agent.messages }));
