// Pages about a task come before the reference, and that before the pages that list every name of the API.
document.addEventListener("DOMContentLoaded", () => {
  Scorer.score = ([name, _title, _anchor, _description, score]) =>
    score + (name.startsWith("reference/api/") ? -20 : name.startsWith("reference/") ? 0 : 10);
});

// Search results have excerpts of their pages, which Sphinx fetches. A browser fetches no files, and the manual is usually
// opened as files: there the texts come from a script that the build writes.
if (location.protocol === "file:") {
  const script = document.createElement("script");
  script.src = "_static/page_texts.js";
  const loaded = new Promise((resolve) => script.addEventListener("load", resolve));
  document.head.append(script);
  window.fetch = async (address) => {
    await loaded;
    return new Response(PAGE_TEXTS[address]);
  };
}
