"""``python -m tests.conformance.open_corpus``: the kit on the modules that it does not judge correctly yet, or was not tried on.

``corpus/<type>/open/<kind>/<name>.py`` has the form of the tested corpus (see `test_corpus`). A module that is judged correctly is
moved to ``corpus/<type>/<kind>/``, where it is tested from then on. Arguments choose modules by a part of their path.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import anyio

from amplifier.conformance import Report, check_module
from tests.conformance.corpus_modules import CORPUS, CorpusModule, corpus_modules


def is_correct(module: CorpusModule, report: Report) -> bool:
    """Whether the kit found what a module's folder and name promise."""
    found = {finding.clause for finding in [*report.violations, *report.recommendations]}
    if module.kind == "faulty":
        return module.clause in found
    return report.ok and found == ({module.clause} if module.kind == "allowed" else set())


def main(wanted: list[str]) -> int:
    """Examine the chosen modules one after another and print a line for each."""
    chosen = [
        module
        for module in corpus_modules("open/*")
        if all(word in str(module.file) for word in wanted)
    ]
    correct = 0
    for module in chosen:
        with tempfile.TemporaryDirectory() as folder:
            report = anyio.run(
                partial(check_module, module.path(Path(folder)), module_type=module.type)
            )
        correct += is_correct(module, report)
        mark = "correct" if is_correct(module, report) else "open"
        found = sorted(
            {finding.clause for finding in [*report.violations, *report.recommendations]}
        )
        print(
            f"{mark:8}{module.file.relative_to(CORPUS)}  {report.verdict}  {', '.join(found)}",
            flush=True,
        )
    print(f"{correct} of {len(chosen)} are judged correctly")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
