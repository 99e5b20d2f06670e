"""The lint of the tree's text: relative links in Markdown lead somewhere, and no file names a path of one machine.

Run by ``make check`` as ``python -m tests._support.prose`` and by `tests/architecture/test_prose.py`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import unquote

from tests._support.manual import is_generated, manual_pages, read_page
from tests._support.tree import ROOT, relative, text_files

_LINK = re.compile(r"!?\[[^\]\[]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)

_ANYBODY = "(?!(?:somebody|user|you)/)"  # any reader's own folder
# Spelled in pieces, or this file would find itself.
_MACHINE_FOLDERS = "|".join(
    ["ro" + "ot", "wo" + "rk", "tm" + "p", *(h + rf"/{_ANYBODY}\w+" for h in ("home", "Users"))]
)
_MACHINE_PATH = re.compile(rf"(?<![\w.:/~}}-])/(?:{_MACHINE_FOLDERS})/\w")


def broken_links(path: Path, text: str) -> list[str]:
    """The relative links of one Markdown file that lead nowhere, one sentence each."""
    problems = []
    prose = _CODE.sub("", _FENCE.sub("", text))
    for target in _LINK.findall(prose):
        if _ELSEWHERE.match(target):
            continue
        name, _, anchor = unquote(target).partition("#")
        found = (path.parent / name).resolve()
        if not found.exists():
            problems.append(f"{relative(path)}: the link to {target!r} leads to no file")
        elif anchor and (not name or found.suffix == ".md"):
            there = read_page(found) if name else text
            if anchor not in _anchors(there):
                problems.append(f"{relative(path)}: the link to {target!r} leads to no heading")
    return problems


def _anchors(text: str) -> set[str]:
    """The anchors a Markdown host makes of a file's headings."""
    plain = (
        re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading)
        for heading in _HEADING.findall(_FENCE.sub("", text))
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def machine_paths(path: Path, text: str) -> list[str]:
    """Where one file names a folder that exists on one machine only, one sentence each."""
    return [
        f"{relative(path)}:{number}: names a path of one machine: {line.strip()[:80]!r}"
        for number, line in enumerate(text.splitlines(), start=1)
        if _MACHINE_PATH.search(line)
    ]


def problems_in_tree() -> list[str]:
    """Everything wrong with the text of this repository."""
    problems = []
    generated = [(path, read_page(path)) for path in manual_pages() if is_generated(path)]
    for path, text in [
        *((path, text) for path, text in text_files() if not is_generated(path)),
        *generated,
    ]:
        problems += machine_paths(path, text)
        if path.suffix == ".md":
            problems += broken_links(path, text)
    return problems


def main() -> int:
    """Print every problem; the exit code is 1 if there was one."""
    problems = problems_in_tree()
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"prose: {len(problems)} problems below {ROOT.name}/")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
