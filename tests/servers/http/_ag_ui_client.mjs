// Runs agents with the official client of AG-UI, which checks every event: for each line of JSON it reads, it prints one with what it has
// received.
//
// A step is a prompt, {answer} for every question that the client knows of, {resume} with answers of a client before it,
// {result} of the call of a tool of the client, or {lost}: a prompt whose run is broken off when its call has begun, and asked for again,
// after the file {gate} has been made.
import { writeFileSync } from "node:fs";
import { createInterface } from "node:readline";

const { HttpAgent, buildResumeArray } = await import(process.argv[2]);
console.error = () => {};
for await (const line of createInterface({ input: process.stdin })) console.log(JSON.stringify(await run(JSON.parse(line))));

async function run({ url, token, steps, thread, messages, tools, context }) {
  const headers = { Authorization: `Bearer ${token}` };
  const agent = new HttpAgent({ url, headers, threadId: thread, initialMessages: messages });
  const kinds = [];
  const outcomes = [];
  const failures = [];
  for (const step of steps) {
    let { resume } = step;
    const prompt = typeof step === "string" ? step : step.lost;
    if (prompt) agent.addMessage({ id: crypto.randomUUID(), role: "user", content: prompt });
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
    let runId;
    if (step.lost) {
      runId = crypto.randomUUID();
      agent.headers = { ...headers, "Last-Event-ID": "0" };
      const client = new HttpAgent({ url, headers: agent.headers, threadId: agent.threadId, initialMessages: agent.messages });
      await client.runAgent({ runId }, { onToolCallStartEvent: () => client.abortRun() });
      writeFileSync(step.gate, "");
    }
    try {
      await agent.runAgent({ runId, tools, context, ...(resume && { resume }) }, { onEvent });
    } catch (error) {
      failure ??= String(error.message ?? error);
    }
    failures.push(failure);
  }
  const interrupts = agent.pendingInterrupts;
  return { kinds, outcomes, failures, interrupts, thread, messages: agent.messages };
}
