// Runs an agent with the official client of AG-UI, which checks every event; prints what it has received as JSON.
//
// A step is a prompt, {answer} for every question that the client knows of, {resume} with answers of a client before it,
// or {result} of the call of a tool of the client.
const [, , library, given] = process.argv;
const { url, token, steps, thread, messages, tools } = JSON.parse(given);
const { HttpAgent, buildResumeArray } = await import(library);

console.error = () => {};
const headers = { Authorization: `Bearer ${token}` };
const agent = new HttpAgent({ url, headers, threadId: thread, initialMessages: messages });
const kinds = [];
const outcomes = [];
const failures = [];
for (const step of steps) {
  let { resume } = step;
  if (typeof step === "string") agent.addMessage({ id: crypto.randomUUID(), role: "user", content: step });
  if (step.result) {
    const { id } = agent.messages.findLast((message) => message.toolCalls).toolCalls[0];
    agent.addMessage({ id: crypto.randomUUID(), role: "tool", toolCallId: id, content: step.result });
  }
  if (step.answer) {
    const answers = agent.pendingInterrupts.map((question) => [question.id, step.answer]);
    resume = buildResumeArray(agent.pendingInterrupts, Object.fromEntries(answers));
  }
  let failure = null;
  const onEvent = ({ event }) => {
    kinds.push(event.type);
    if (event.type === "RUN_ERROR") failure = event.message;
    if (event.type === "RUN_FINISHED") outcomes.push(event.outcome.type);
  };
  try {
    await agent.runAgent({ tools, ...(resume && { resume }) }, { onEvent });
  } catch (error) {
    failure ??= String(error.message ?? error);
  }
  failures.push(failure);
}
const interrupts = agent.pendingInterrupts;
console.log(JSON.stringify({ kinds, outcomes, failures, interrupts, thread, messages: agent.messages }));
