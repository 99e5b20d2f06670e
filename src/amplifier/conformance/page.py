"""A report as one self-contained HTML page, without scripts."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from amplifier._internal.json import visible_text
from amplifier.conformance.report import STATUS_WORDS, Cause, ClauseOutcome, Report, details
from amplifier.tracing.page import style_page

__all__ = ["write_page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #fff; --line: #ddd; --soft: #666;
  --good: #17693b; --bad: #a4161a; --fair: #7a5c00; --bad-paper: #fbf6f6; --fair-paper: #fbf9f0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #16181c; --line: #333;
  --soft: #999; --good: #6cc491; --bad: #f28b82; --fair: #e0b84c; --bad-paper: #241a1a;
  --fair-paper: #242014; } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; line-height: 1.25; } h2 { font-size: 1.15rem; line-height: 1.25; }
h3 { font-size: 1rem; margin: .4rem 0; }
.badge { display: inline-flex; font-weight: 600; border-radius: .3rem; overflow: hidden;
  color: #fff; }
.badge span { padding: .15rem .6rem; background: #444; } .badge .conforms { background: #17693b; }
.badge .violations { background: #a4161a; } .badge .unchecked { background: #7a5c00; }
article { border-left: 4px solid var(--bad); padding: .2rem 1rem; margin: 1rem 0;
  background: var(--bad-paper); }
article.recommended { border-color: var(--fair); background: var(--fair-paper); }
dl { margin: .4rem 0; } dt { color: var(--soft); font-size: .85rem; } dd { margin: 0 0 .4rem; }
code { white-space: pre-wrap; font-size: .9rem; }
ul { padding-left: 1.2rem; } li { margin: .2rem 0; } .status { font-weight: 600; }
.kept { color: var(--good); } .broken { color: var(--bad); }
.recommended .status { color: var(--fair); }
.not_checked, footer { color: var(--soft); } summary { cursor: pointer; }
"""


def write_page(report: Report) -> str:
    """Return a report as HTML: the verdict, the findings, the limits, the counts, the clauses."""
    broken = [outcome for outcome in report.clauses if outcome.status == "broken"]
    others = [outcome for outcome in report.clauses if outcome.status != "broken"]
    verdict = f'<span class="{report.verdict}">{report.verdict}</span>'
    body = f"""
<header><h1>{_text(report.module)}</h1>
<p class="badge"><span>{_text(report.type)}</span>{verdict}</p>
<p>{_text(report.summary)}</p></header>
{_section("Findings", "".join(map(_finding, report.causes)))}
{_section("Not examined, and other limits", _list(report.limits))}
<section><h2>Clauses</h2><p>{_text(report.counts)}</p>{_clauses(broken)}
<details><summary>The other clauses</summary>{_clauses(others)}</details></section>
<footer><p>{_text(report.source)}; {_text(report.run)}</p></footer>
"""
    return style_page(_text(f"{report.module}: {report.verdict}"), body, _STYLE)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def _list(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{_text(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def _clauses(outcomes: Iterable[ClauseOutcome]) -> str:
    items = "".join(map(_clause, outcomes))
    return f"<ul>{items}</ul>" if items else ""


def _clause(outcome: ClauseOutcome) -> str:
    status = f'<span class="status {outcome.status}">{STATUS_WORDS[outcome.status]}</span>'
    rank = "" if outcome.level == "required" else " (recommended)"
    text = f"{_text(outcome.id)}{rank}: {_text(outcome.text)}"
    return f'<li class="{outcome.level}">{status} {text}</li>\n'


def _finding(cause: Cause) -> str:
    level = "required" if cause.is_required else "recommended"
    facts = "".join(
        f"<dt>{label.capitalize()}</dt><dd><code>{_text(text)}</code></dd>"
        for label, text in details(cause).items()
    )
    head = f"{cause.head}: {cause.shown.what}"
    return f'<article class="{level}"><h3>{_text(head)}</h3><dl>{facts}</dl></article>\n'


def _text(value: str) -> str:
    return escape(visible_text(value))
