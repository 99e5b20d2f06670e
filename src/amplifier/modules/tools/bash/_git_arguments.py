"""Parse the arguments of a git call, and refuse calls that need a program other than git."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping

import attrs

from amplifier._internal.programs import is_below

from ._git_files import is_harmless

# These subcommands change no protected file, so the real git runs them at once. `clone` and `init`
# make a new repository, which is checked when the command has ended.
READING = frozenset(
    (
        *(
            "annotate",
            "archive",
            "blame",
            "bugreport",
            "bundle",
            "cat-file",
            "check-attr",
            "check-ignore",
        ),
        *(
            "check-mailmap",
            "check-ref-format",
            "cherry",
            "clone",
            "column",
            "count-objects",
            "describe",
        ),
        *("diagnose", "diff", "diff-files", "diff-index", "diff-tree", "difftool", "fast-export"),
        *(
            "for-each-ref",
            "for-each-repo",
            "format-patch",
            "fsck",
            "get-tar-commit-id",
            "gitk",
            "grep",
            "gui",
        ),
        *(
            "help",
            "hook",
            "init",
            "instaweb",
            "interpret-trailers",
            "lfs",
            "log",
            "ls-files",
            "ls-remote",
        ),
        *(
            "ls-tree",
            "mailinfo",
            "mailsplit",
            "merge-base",
            "merge-tree",
            "name-rev",
            "patch-id",
            "range-diff",
        ),
        *(
            "rev-list",
            "rev-parse",
            "shortlog",
            "show",
            "show-branch",
            "show-ref",
            "status",
            "stripspace",
            "var",
        ),
        *("verify-commit", "verify-pack", "verify-tag", "version", "whatchanged"),
    )
)
_WRITING = frozenset(
    (
        *(
            "add",
            "am",
            "apply",
            "bisect",
            "branch",
            "checkout",
            "checkout-index",
            "cherry-pick",
            "clean",
        ),
        *(
            "commit",
            "commit-graph",
            "commit-tree",
            "config",
            "fast-import",
            "fetch",
            "fetch-pack",
            "gc",
        ),
        *(
            "hash-object",
            "index-pack",
            "maintenance",
            "merge",
            "merge-file",
            "merge-index",
            "mktag",
            "mktree",
        ),
        *(
            "multi-pack-index",
            "mv",
            "notes",
            "pack-objects",
            "pack-refs",
            "prune",
            "prune-packed",
            "pull",
        ),
        *(
            "push",
            "read-tree",
            "rebase",
            "reflog",
            "remote",
            "repack",
            "replace",
            "rerere",
            "reset",
            "restore",
        ),
        *(
            "revert",
            "rm",
            "send-pack",
            "sparse-checkout",
            "stage",
            "stash",
            "switch",
            "symbolic-ref",
            "tag",
        ),
        *(
            "unpack-objects",
            "update-index",
            "update-ref",
            "update-server-info",
            "worktree",
            "write-tree",
        ),
    )
)
_SCRIPTS = {
    "bisect": "in most versions it is a shell script",
    **dict.fromkeys(
        ("filter-branch", "mergetool", "quiltimport", "request-pull", "submodule", "subtree"),
        "it is a shell script",
    ),
}
# These are the first arguments of calls that only read. "" stands for a call without arguments.
_READING_FORMS: Mapping[str, tuple[str, ...]] = {
    "bisect": ("log", "view", "visualize"),
    "branch": ("",),
    "config": ("get", "list"),
    "notes": ("", "list", "show"),
    "reflog": ("", "show", "exists"),
    "remote": ("", "-v", "--verbose", "show", "get-url"),
    "replace": ("", "-l", "--list"),
    "rerere": ("status", "diff", "remaining"),
    "sparse-checkout": ("list",),
    "stash": ("list", "show"),
    "submodule": ("", "status", "summary"),
    "tag": ("",),
    "worktree": ("list",),
}
_READING_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "apply": ("--stat", "--numstat", "--summary", "--check"),
    "branch": (
        *(
            "--list",
            "-l",
            "-a",
            "--all",
            "-r",
            "--remotes",
            "-v",
            "-vv",
            "--verbose",
            "--show-current",
        ),
        *(
            "--contains",
            "--no-contains",
            "--merged",
            "--no-merged",
            "--points-at",
            "--format",
            "--sort",
        ),
    ),
    "config": (
        "--get",
        "--get-all",
        "--get-regexp",
        "--get-urlmatch",
        "--list",
        "-l",
        "--get-color",
    ),
    "tag": (
        "--list",
        "-l",
        "-n",
        "--contains",
        "--merged",
        "--points-at",
        "-v",
        "--verify",
        "--sort",
    ),
}
_WRITING_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "apply": ("--apply", "--index", "--cached", "-3", "--3way", "--intent-to-add", "-N"),
    "branch": (
        *(
            "-d",
            "-D",
            "--delete",
            "-m",
            "-M",
            "--move",
            "-c",
            "-C",
            "--copy",
            "-f",
            "--force",
            "-u",
        ),
        *("--set-upstream-to", "--unset-upstream", "--edit-description", "-t", "--track"),
    ),
    "tag": ("-d", "--delete", "-a", "-m", "-F", "-s", "-f", "--force", "--annotate"),
}
_SWITCHES = frozenset(
    (
        *("--no-pager", "-P", "--paginate", "-p", "--no-optional-locks", "--literal-pathspecs"),
        *("--glob-pathspecs", "--noglob-pathspecs", "--icase-pathspecs", "--no-replace-objects"),
        *("--no-lazy-fetch", "--no-advice"),
    )
)
_WITH_PATHS = ("--git-dir", "--work-tree")
# Options that name a program or a path outside of the repository. They are compared as prefixes,
# because git accepts abbreviations.
_REFUSED: Mapping[str, tuple[str, ...]] = {
    "rebase": ("--exec", "-x"),
    "fetch": ("--upload-pack",),
    "pull": ("--upload-pack",),
    "push": ("--receive-pack", "--exec"),
    "fetch-pack": ("--upload-pack", "--exec"),
    "send-pack": ("--receive-pack", "--exec"),
    "apply": ("--unsafe-paths",),
    "bisect": ("run", "visualize", "view"),
}
_OTHER_FILES = ("--global", "--system", "--file", "-f", "--edit", "-e")
_EDITORS_THAT_DO_NOTHING = frozenset(("", ":", "true", "/bin/true", "/usr/bin/true", "cat"))
_MAX_ALIASES = 10
"""Maximum number of aliases that lead to another alias. git itself stops at a loop."""


class Refused(Exception):
    """Raised if a call needs a program other than git. The message has no full stop."""


@attrs.frozen(kw_only=True)
class ParsedCall:
    """The arguments of one call.

    Attributes:
        options: The options before the subcommand, without those for folders.
        directory: The folder that it runs in, after each ``-C``.
        git_dir: The git folder of an option or variable. None if git looks for one.
        work_tree: The work tree of an option or variable. None if git looks for one.
        subcommand: The subcommand.
        rest: The arguments of the subcommand.
        is_alias: True if an alias was expanded.
    """

    options: tuple[str, ...]
    directory: str
    git_dir: str | None
    work_tree: str | None
    subcommand: str
    rest: tuple[str, ...]
    is_alias: bool = False

    @property
    def is_writing(self) -> bool:
        """True if the call may change a repository."""
        if self.subcommand not in _WRITING and self.subcommand not in _SCRIPTS:
            return False
        return not self._only_reads()

    def _only_reads(self) -> bool:
        rest = self.rest
        if self.subcommand == "config" and len(rest) == 1 and not rest[0].startswith("-"):
            return True
        if self.subcommand == "symbolic-ref":
            return len([word for word in rest if not word.startswith("-")]) == 1 and not {
                "-d",
                "--delete",
            } & {*rest}
        if self.subcommand == "hash-object":
            return "-w" not in rest
        if (rest[0] if rest else "") in _READING_FORMS.get(self.subcommand, ()):
            return True
        options = {word.partition("=")[0] for word in rest if word.startswith("-")}
        if self.subcommand == "tag" and any(re.fullmatch(r"-n\d+", word) for word in options):
            return True
        is_reading = bool(options & {*_READING_OPTIONS.get(self.subcommand, ())})
        return is_reading and not options & {*_WRITING_OPTIONS.get(self.subcommand, ())}

    @property
    def positional(self) -> tuple[str, ...]:
        """The arguments that aren't options. A separate value of an option is one of them."""
        return tuple(word for word in self.rest if not word.startswith("-"))

    def has(self, long: str, short: str = "") -> bool:
        """Return whether the call has an option."""
        return long in self.rest or (
            short != "" and any(_is_short_of(word, short) for word in self.rest)
        )

    def command(self) -> list[str]:
        """Return the arguments with which git runs in `directory`."""
        return [*self.options, self.subcommand, *self.rest]


def parse_call(
    arguments: list[str],
    directory: str,
    variables: Mapping[str, str],
    alias: Callable[[str], str | None],
) -> ParsedCall | None:
    """Parse the arguments of a call.

    Args:
        arguments: The arguments of git.
        directory: The folder of the call.
        variables: The environment variables of the call.
        alias: Returns the meaning of an alias, or None if there is no such alias.

    Returns:
        The call, or None if it has no known subcommand.

    Raises:
        Refused: The call can't be run.
    """
    options = list[str]()
    git_dir, work_tree = variables.get("GIT_DIR"), variables.get("GIT_WORK_TREE")
    words, unknown, is_alias = [*arguments], None, False
    for _ in range(_MAX_ALIASES):
        while words and words[0].startswith("-"):
            option, has_value, value = words.pop(0).partition("=")
            if option in ("-C", "-c", *_WITH_PATHS) and not has_value:
                if not words:
                    return None
                value = words.pop(0)
            if option == "-C":
                directory = os.path.normpath(os.path.join(directory, value))  # noqa: PTH118
            elif option == "-c":
                options += ("-c", value)
            elif option == "--git-dir":
                git_dir = value
            elif option == "--work-tree":
                work_tree = value
            elif option in _SWITCHES and not has_value:
                options.append(option)
            else:
                unknown = option
        if not words or words[0] in READING | _WRITING or words[0] in _SCRIPTS:
            break
        meaning = alias(words[0])
        if meaning is None:
            return None
        if meaning.startswith("!"):
            raise Refused(
                f"the alias {words[0]} is a shell command, {meaning[1:81]!r}; run it without the "
                "alias"
            )
        words, is_alias = [*_split(meaning), *words[1:]], True
    if not words:
        return None
    parsed = ParsedCall(
        options=tuple(options),
        directory=directory,
        git_dir=git_dir,
        work_tree=work_tree,
        subcommand=words[0],
        rest=tuple(words[1:]),
        is_alias=is_alias,
    )
    if parsed.is_writing and unknown is not None:
        raise Refused(f"the option {unknown} of git is unknown here and might run a program")
    return parsed


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise Refused(f"the alias {text[:80]!r} can't be read: {error}") from None


def check_call(parsed: ParsedCall, variables: Mapping[str, str], common: str) -> None:
    """Check that a call needs no program other than git.

    Args:
        parsed: The call.
        variables: The environment variables of the call.
        common: The git folder of the repository.

    Raises:
        Refused: The call needs another program, or it would change files outside of the repository
            or in its git folder.
    """
    for option, value in zip(parsed.options, parsed.options[1:], strict=False):
        key, has_value, text = value.partition("=")
        if option == "-c" and not is_harmless(key, text if has_value else "true"):
            raise Refused(f"the setting {key} is unknown here and might run a program")
    subcommand, rest = parsed.subcommand, parsed.rest
    if subcommand in _SCRIPTS:
        raise Refused(f"git {subcommand} needs a shell, because {_SCRIPTS[subcommand]}")
    if "GIT_INDEX_FILE" in variables:
        raise Refused(
            "GIT_INDEX_FILE names a file that git can't write there; leave it out, and use git "
            "worktree"
        )
    for word in rest:
        if word == "--":
            break
        if (refused := _refused(subcommand, word)) is not None:
            raise Refused(
                f"git {subcommand} {refused} names a program, or a place outside of the repository"
            )
    if subcommand in ("worktree", "mv"):
        for word in rest:
            target = word.partition("=")[2] or word
            path = os.path.realpath(os.path.join(parsed.directory, target))  # noqa: PTH118
            if is_below(path, common) or "/.git/" in f"{path}/":
                raise Refused(f"{word} leads into a git folder")
    if subcommand == "config":
        _check_setting(parsed)
    for name in ("GIT_SEQUENCE_EDITOR", "GIT_EDITOR"):
        if variables.get(name, "") not in _EDITORS_THAT_DO_NOTHING:
            raise Refused(
                f"{name} names a program; write the steps with --fixup and --autosquash instead"
            )


def _refused(subcommand: str, word: str) -> str | None:
    name = word.partition("=")[0]
    is_long = name.startswith("--") and len(name) > 3
    for option in _REFUSED.get(subcommand, ()):
        if word == option or (is_long and option.startswith(name)) or _is_short_of(word, option):
            return option
    return None


def _check_setting(parsed: ParsedCall) -> None:
    for word in parsed.rest:
        name = word.partition("=")[0]
        if any(
            name == option or (len(name) > 4 and option.startswith(name)) for option in _OTHER_FILES
        ):
            raise Refused(
                f"git config {name} changes a file outside of this repository, or needs an editor"
            )
    plain = [word for word in parsed.positional if word not in ("set", "unset")]
    if len(plain) > 1 and "." in plain[0] and not is_harmless(plain[0], plain[1]):
        raise Refused(f"the setting {plain[0]} can name a program for the user's git")


def _is_short_of(word: str, option: str) -> bool:
    """Return whether a word such as ``-am`` contains a short option.

    Letters after an option with a value belong to the value.
    """
    if len(option) != 2 or word.startswith("--") or not word.startswith("-"):
        return False
    letters = (
        re.split(r"[mFCcSut]", word[1:], maxsplit=1)[0] if option[1] not in "cuS" else word[1:]
    )
    return option[1] in letters
