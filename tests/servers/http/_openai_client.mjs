// Talks to an agent with the official SDK of OpenAI for JavaScript; prints what it has received as JSON.
const [, , library, baseURL, apiKey] = process.argv;
const { default: OpenAI } = await import(library);

const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const model = "amplifier";
const user = (content) => ({ role: "user", content });
const found = {};

found.settings = JSON.parse(
  (await client.chat.completions.create({ model, messages: [user("settings")], temperature: 0.5 })).choices[0].message.content,
);
const stream = await client.chat.completions.create({ model, messages: [user("say one two")], stream: true });
found.stream = "";
for await (const chunk of stream) found.stream += chunk.choices[0]?.delta.content ?? "";

const schema = {
  type: "object",
  properties: { name: { type: "string" }, red: { type: "integer" } },
  required: ["name", "red"],
  additionalProperties: false,
};
const format = { type: "json_schema", json_schema: { name: "colour", schema, strict: true } };
const colour = [user('call final_result {"name": "rust", "red": 183}')];
found.typed = (await client.chat.completions.parse({ model, messages: colour, response_format: format })).choices[0].message.parsed;

const parameters = { type: "object", properties: { town: { type: "string" } }, required: ["town"] };
const runner = client.chat.completions.runTools({
  model,
  messages: [user('call weather {"town": "Oslo"}')],
  tools: [{ type: "function", function: { name: "weather", parameters, parse: JSON.parse, function: ({ town }) => `rain in ${town}` } }],
});
found.tool = await runner.finalContent();

const first = await client.responses.create({ model, input: "history" });
const second = await client.responses.stream({ model, input: "history", previous_response_id: first.id }).finalResponse();
found.responses = second.output_text;
try {
  await client.chat.completions.create({ model, messages: [user("say hello")], seed: 7 });
} catch (error) {
  found.refused = [error.constructor.name, error.param];
}
console.log(JSON.stringify(found));
