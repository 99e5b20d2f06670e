"""``python -m tests.conformance.open_corpus``: the kit on the modules that it does not judge correctly yet, or was not tried on.

``corpus/<type>/open/<kind>/<name>.py`` has the form of the tested corpus (see `test_corpus`). A module that is judged correctly is
moved to ``corpus/<type>/<kind>/``, where it is tested from then on. Arguments choose modules by a part of their path.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import anyio

from amplifier.conformance import Report, check_module

CORPUS = Path(__file__).parent / "corpus"


def is_correct(file: Path, report: Report) -> bool:
    """Whether the kit found what a module's folder and name promise."""
    clause = file.stem.partition("_")[0]
    found = {finding.clause for finding in [*report.violations, *report.recommendations]}
    if file.parent.name == "faulty":
        return clause in found
    return report.ok and found == ({clause} if file.parent.name == "allowed" else set())


def main(wanted: list[str]) -> int:
    """Examine the chosen modules one after another and print a line for each."""
    chosen = [file for file in sorted(CORPUS.glob("*/open/*/*.py")) if all(word in str(file) for word in wanted)]
    correct = 0
    for file in chosen:
        report = anyio.run(partial(check_module, file, module_type=file.parents[2].name))
        correct += is_correct(file, report)
        mark = "correct" if is_correct(file, report) else "open"
        found = sorted({finding.clause for finding in [*report.violations, *report.recommendations]})
        print(f"{mark:8}{file.relative_to(CORPUS)}  {report.verdict}  {', '.join(found)}", flush=True)
    print(f"{correct} of {len(chosen)} are judged correctly")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
