"""A report as one self-contained HTML page."""

from __future__ import annotations

from html import escape

from amplifier._json import visible_text
from amplifier.conformance.report.model import STATUS_WORDS, ClauseOutcome, Finding, Report, details

__all__ = ["write_page"]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1c1e21; overflow-wrap: anywhere; }
h1, h2 { line-height: 1.25; } h2 { font-size: 1.15rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #ddd; }
td:not(:last-child), th { white-space: nowrap; vertical-align: top; }
.kept { color: #17693b; } .broken { color: #a4161a; font-weight: 600; } .not_checked, .not_applicable { color: #666; }
article { border-left: 4px solid #a4161a; padding: .2rem 1rem; margin: 1rem 0; background: #fbf6f6; }
article.recommended { border-color: #b08900; background: #fbf9f0; } code { white-space: pre-wrap; }
@media (max-width: 40rem) { body { margin: 1rem auto; } dd { margin-left: 0; } thead { display: none; }
  tr { display: block; padding: .4rem 0; border-bottom: 1px solid #ddd; } td { display: inline-block; border: 0; padding: 0 .6rem 0 0; }
  td:last-child { display: block; } }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e6e6e6; } article { background: #241a1a; }
  article.recommended { background: #242014; } td, th, tr { border-color: #333; } .kept { color: #6cc491; } .broken { color: #f28b82; } }
"""


def write_page(report: Report) -> str:
    """The report as HTML."""
    findings = [*report.violations, *report.recommendations]
    remarks = [*(f"Limitation: {text}" for text in report.limitations), *(f"Note: {text}" for text in report.notes)]
    title = f"{report.module}: {report.verdict}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{_text(title)}</title><style>{_STYLE}</style></head><body>
<h1>{_text(title)}</h1>
<p>{_text(report.type)} from {_text(report.source)}; {_text(report.counts)}; profile {_text(report.profile)},
seed {report.seed}, on {_text(", ".join(report.backends) or "nothing: it was only read")}, {report.seconds:.1f} s.</p>
{"".join(f"<p>{_text(remark)}</p>" for remark in remarks)}
{"".join(map(_finding, findings))}
<table><thead><tr><th>Clause</th><th>Status</th><th>Level</th><th>Promise</th></tr></thead><tbody>
{"".join(map(_row, report.clauses))}</tbody></table>
</body></html>
"""


def _row(outcome: ClauseOutcome) -> str:
    status = STATUS_WORDS[outcome.status]
    cells = f"<td>{_text(outcome.id)}</td><td class={outcome.status}>{status}</td><td>{outcome.level}</td>"
    return f"<tr>{cells}<td>{_text(outcome.text)}</td></tr>\n"


def _finding(found: Finding) -> str:
    facts = {**({"on": found.backend} if found.backend else {}), **details(found, 2000)}
    lines = "".join(
        f"<dt>{label.capitalize()}</dt><dd><code>{_text(text)}</code></dd>" for label, text in facts.items()
    )
    return (
        f"<article class={found.level}><h2>{_text(found.clause)}: {_text(found.what)}</h2><dl>{lines}</dl></article>\n"
    )


def _text(value: str) -> str:
    return escape(visible_text(value))
