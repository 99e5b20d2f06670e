"""The modules of ``corpus/``: ``<type>/<kind>/<name>.py``, or ``<name>.patch`` for one that differs little from another.

A patch is a unified diff whose first line names the module that it changes, in ``sound/`` unless the name leads elsewhere; that module may be a patch itself. A hunk is found by
its lines and not by their numbers, so the module may change elsewhere; a hunk that is not there exactly once is an error.

``python -m tests.conformance.corpus_modules provider/faulty/P10_new_ids`` prints the text of a module.
"""

from __future__ import annotations

import sys
from pathlib import Path

from attrs import frozen

CORPUS = Path(__file__).parent / "corpus"


@frozen
class CorpusModule:
    """A module of the corpus.

    Attributes:
        file: The module, or the patch that makes it.
    """

    file: Path

    @property
    def type(self) -> str:
        return self.file.relative_to(CORPUS).parts[0]

    @property
    def kind(self) -> str:
        return self.file.parent.name

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def clause(self) -> str:
        return self.name.partition("_")[0]

    def source(self) -> str:
        text = self.file.read_text(encoding="utf-8")
        if self.file.suffix == ".py":
            return text
        changed = text.splitlines()[0].removeprefix("--- ").removesuffix(".py")
        return patched(text, corpus_module(f"{self.type}/sound/{changed}").source())

    def path(self, folder: Path) -> Path:
        """The module as a file: its own, or one written into a folder."""
        if self.file.suffix == ".py":
            return self.file
        written = folder / f"{self.name}.py"
        written.write_text(self.source(), encoding="utf-8")
        return written


def corpus_modules(kind: str, type_: str = "*") -> list[CorpusModule]:
    """The modules of a kind: ``faulty``, ``sound``, ``allowed``, or a part such as ``open/faulty``."""
    return [
        CorpusModule(file)
        for file in sorted(CORPUS.glob(f"{type_}/{kind}/*"))
        if file.suffix in {".py", ".patch"}
    ]


def corpus_module(name: str) -> CorpusModule:
    """One module by ``<type>/<kind>/<name>``."""
    (file,) = (
        file for suffix in (".py", ".patch") if (file := CORPUS / f"{name}{suffix}").exists()
    )
    return CorpusModule(file)


def patched(patch: str, text: str) -> str:
    """The text that a patch makes of another.

    Raises:
        ValueError: A hunk is not in the text, or more than once.
    """
    head, *hunks = patch.split("\n@@")
    text = "\n" + text
    for hunk in hunks:
        lines = hunk.removesuffix("\n").split("\n")[1:]
        before = "".join(f"\n{line[1:]}" for line in lines if line[:1] != "+") + "\n"
        after = "".join(f"\n{line[1:]}" for line in lines if line[:1] != "-") + "\n"
        if text.count(before) != 1:
            raise ValueError(f"{text.count(before)} places for a hunk of\n{head}\n{hunk}")
        text = text.replace(before, after)
    return text[1:]


if __name__ == "__main__":
    print(corpus_module(sys.argv[1]).source(), end="")
