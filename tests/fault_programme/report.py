"""What came out: ``faults.json`` for programs and a Markdown table for readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .parts import FaultClass
from .progress import Progress


def summary(classes: Mapping[str, FaultClass], progress: Progress) -> dict[str, Any]:
    """The content of ``faults.json``: for each class what was run, what failed and the figures."""
    found = {name: _of_class(each, progress) for name, each in classes.items()}
    return {
        "complete": all(each["chunks_run"] == each["chunks"] for each in found.values()),
        "cases": sum(each["cases"] for each in found.values()),
        "failures": sum(len(each["failures"]) for each in found.values()),
        "classes": found,
    }


def _of_class(fault_class: FaultClass, progress: Progress) -> dict[str, Any]:
    share = progress.shares.get(fault_class.name, 1.0)
    chunks = fault_class.chunks(share)
    results = [result for chunk in chunks if (result := progress.result(fault_class.name, chunk.name)) is not None]
    figures: dict[str, float] = {}
    for result in results:
        for name, number in result.outcome.figures.items():
            figures[name] = figures.get(name, 0) + number
    return {
        "title": fault_class.title,
        "unit": fault_class.unit,
        "share": share,
        "chunks": len(chunks),
        "chunks_run": len(results),
        "cases": sum(result.outcome.cases for result in results),
        "failures": [problem for result in results for problem in result.outcome.failures],
        "figures": figures,
        "seconds": round(sum(result.seconds for result in results), 1),
        "ended": max((result.ended for result in results), default=None),
    }


def table(found: Mapping[str, Any]) -> str:
    """The same as a Markdown table, one row for each class."""
    lines = [
        "| class | what | share | cases | failures | minutes | figures |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, each in found["classes"].items():
        missing = each["chunks"] - each["chunks_run"]
        cases = f"{each['cases']:,} {each['unit']}" + (
            f" ({missing} of {each['chunks']} chunks not run)" if missing else ""
        )
        figures = "; ".join(f"{words}: {_shown(number)}" for words, number in each["figures"].items())
        cells = [name, each["title"], f"{each['share']:.4g}", cases, str(len(each["failures"]))]
        lines.append(f"| {' | '.join(cells)} | {each['seconds'] / 60:.1f} | {figures} |")
    return "\n".join(lines) + "\n"


def _shown(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:.3g}"
