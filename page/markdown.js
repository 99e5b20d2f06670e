// Markdown as elements of the page. It is parsed, sanitised and highlighted as trees, from which elements are made one by one: no text is
// ever parsed as HTML, so the page needs no exception from its policy (trusted-types 'none'). HTML in Markdown is shown as text.
import { sanitize, defaultSchema } from "hast-util-sanitize";
import { toDom } from "hast-util-to-dom";
import { createLowlight } from "lowlight";
import { fromMarkdown } from "mdast-util-from-markdown";
import { gfmFromMarkdown } from "mdast-util-gfm";
import { toHast } from "mdast-util-to-hast";
import { gfm } from "micromark-extension-gfm";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import csharp from "highlight.js/lib/languages/csharp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import makefile from "highlight.js/lib/languages/makefile";
import markdown from "highlight.js/lib/languages/markdown";
import python from "highlight.js/lib/languages/python";
import ruby from "highlight.js/lib/languages/ruby";
import rust from "highlight.js/lib/languages/rust";
import shell from "highlight.js/lib/languages/shell";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";

const LONGEST_CODE = 50_000; // characters; longer code is not highlighted
// Not all of highlight.js: the package that everyone installs has the page in it.
const lowlight = createLowlight({ bash, c, cpp, csharp, css, diff, go, ini, java, javascript, json, makefile, markdown, python, ruby, rust, shell, sql, typescript, xml, yaml });
const asText = { disable: { null: ["htmlFlow", "htmlText"] } };
const schema = { ...defaultSchema, tagNames: defaultSchema.tagNames.filter((name) => name !== "img"), protocols: { href: ["http", "https", "mailto"] } };

const textOf = (node) => (node.type === "text" ? node.value : (node.children ?? []).map(textOf).join(""));

function change(node, parent) {
  if (node.tagName === "a") node.properties = { ...node.properties, target: "_blank", rel: ["noopener", "noreferrer"] };
  if (node.tagName === "code" && parent?.tagName === "pre") {
    const language = (node.properties?.className ?? []).map(String).find((name) => name.startsWith("language-"))?.slice(9);
    const code = textOf(node);
    if (language && lowlight.registered(language) && code.length <= LONGEST_CODE) node.children = lowlight.highlight(language, code).children;
    return;
  }
  for (const child of node.children ?? []) change(child, node);
}

// Images become their text, and a line that the model ended stays one.
function simplify(node) {
  if (node.type === "image" || node.type === "imageReference") Object.assign(node, { type: "text", value: node.alt || node.url || "" });
  if (node.children) node.children = node.children.flatMap((child) => {
    simplify(child);
    if (child.type !== "text") return [child];
    return child.value.split("\n").flatMap((value, line) => [...(line ? [{ type: "break" }] : []), { type: "text", value }]);
  });
}

// The elements of some Markdown.
export function render(text) {
  const parsed = fromMarkdown(text, { extensions: [gfm(), asText], mdastExtensions: [gfmFromMarkdown()] });
  simplify(parsed);
  const tree = sanitize(toHast(parsed), schema);
  change(tree);
  return toDom(tree, { fragment: true });
}

// The elements of code in a language that is known, else null.
export function highlight(language, code) {
  if (!lowlight.registered(language) || code.length > LONGEST_CODE) return null;
  return toDom(lowlight.highlight(language, code), { fragment: true });
}
