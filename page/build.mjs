// Bundles markdown.js and its libraries into the chat page, and writes their licences beside it.
import { build } from "esbuild";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";

const target = process.argv[2] ?? "../src/amplifier/servers/http/chat_page";
const { metafile } = await build({
  entryPoints: ["markdown.js"],
  outfile: `${target}/markdown.js`,
  bundle: true,
  minify: true,
  format: "iife",
  globalName: "Markdown",
  target: "es2022",
  charset: "utf8",
  conditions: ["worker"], // the variants that parse no HTML with the browser: the policy of the page forbids it
  legalComments: "none",
  banner: { js: "// Built by `make page` from page/markdown.js; the licences of what is in it are in markdown.licences.txt." },
  metafile: true,
});
const packages = new Set(Object.keys(metafile.inputs).map((path) => path.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)/)?.[1]).filter(Boolean));
const byText = new Map();
for (const name of [...packages].sort()) {
  const folder = `node_modules/${name}`;
  const { version, license } = JSON.parse(readFileSync(`${folder}/package.json`));
  const file = existsSync(folder) && readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
  const text = file ? readFileSync(`${folder}/${file}`, "utf8").trim() : "no licence text in the package";
  byText.set(text, [...(byText.get(text) ?? []), `${name} ${version} (${license})`]);
}
const written = [...byText].map(([text, names]) => `${names.join("\n")}\n\n${text}\n`);
writeFileSync(`${target}/markdown.licences.txt`, written.join(`\n${"─".repeat(80)}\n\n`));
