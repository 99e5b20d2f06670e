// Checks recorded runs of AG-UI with the official client: for each line, a list of events, it prints what is wrong with them.
// `EventSchemas` knows the members of an event, `verifyEvents` the order of events.
import { createInterface } from "node:readline";

const [client, schemas, streams] = process.argv.slice(2);
const { verifyEvents } = await import(client);
const { EventSchemas } = await import(schemas);
const { from, lastValueFrom, toArray } = await import(streams);
for await (const line of createInterface({ input: process.stdin })) console.log(JSON.stringify(await problems(JSON.parse(line))));

async function problems(events) {
  const found = [];
  for (const event of events) {
    const read = EventSchemas.safeParse(event);
    if (!read.success) found.push(`${event.type}: ${read.error.issues.map((issue) => `${issue.path.join(".")}: ${issue.message}`)}`);
    else found.push(...Object.keys(event).filter((name) => !(name in read.data)).map((name) => `${event.type}: ${name} is unknown`));
  }
  try {
    await lastValueFrom(from(events).pipe(verifyEvents(false), toArray()));
  } catch (error) {
    found.push(String(error.message ?? error));
  }
  return found;
}
