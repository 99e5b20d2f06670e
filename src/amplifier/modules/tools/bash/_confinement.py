"""What a command may do: which files it sees and changes, whether it reaches the network, how much it may use.

`choose_sandbox` decides once per mount whether commands are confined; `Sandbox.confined` prepares one command. bubblewrap, which
runs a command in namespaces of its own, and `amplifier._internal.supervisor` enforce it.
"""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from amplifier._internal.programs import find_program, is_below, isolated_python_command
from amplifier.errors import ModuleLoadError

from ..._shared.git_configuration import real_path
from ..._shared.place_sweep import Swept
from ..._shared.processes import can_supervise
from ..._shared.protected_places import ProtectedPlaces
from ._aside import Aside, content, keep_aside, signature
from ._git_broker import GitBroker
from ._git_call import Baselines, Surroundings, named_repository
from ._git_files import (
    NOT_CLEAN,
    Finding,
    findings,
    open_up,
    pointer_target,
    read_text,
    set_aside,
    take_out,
)
from ._git_history import UsersHistory
from ._git_profile import GitProfile, identity_of, open_git_profile
from ._git_steps import pending
from ._options import BashOptions
from ._own_files import imported_from, is_placeholder, own_files_problem, placeholders
from ._places import PlaceFinder, Places, is_covered, topmost

logger = logging.getLogger("amplifier.modules.tools")

# ── bubblewrap ─────────────────────────────────────────────────────────────────────────────────────
# Its command line: the command has its own process ids, network, IPC and mounts; it sees the file system read-only, without the
# places that are hidden, and may change the writable ones.

_PROBING = 30.0
CONFINEMENT = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--new-session", "--die-with-parent"),
    *("--cap-drop", "ALL"),
)
"""Of every sandbox. bubblewrap knows the last of these since version 0.8."""
# The supervisor's program is the first process: it reports how the command ended.
_OPTIONS = (*CONFINEMENT, "--as-pid-1")
TEMPORARY = ("/tmp", "/dev/shm", "/var/tmp")
"""Folders that each command finds empty, besides the home."""
_SYSTEM = (
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
    # Root stays root outside of its namespace for these files, without any capability: core_pattern runs programs there.
    *(
        "--ro-bind-try",
        "/proc/sys",
        "/proc/sys",
        "--ro-bind-try",
        "/proc/sysrq-trigger",
        "/proc/sysrq-trigger",
    ),
    *("--ro-bind-try", "/proc/fs", "/proc/fs", "--ro-bind-try", "/proc/driver", "/proc/driver"),
)
# What container runtimes cover, too: names of keys, the kernel's memory, timers and interrupts of all processes.
_KERNEL_FILES = (
    *(
        "/proc/keys",
        "/proc/key-users",
        "/proc/kcore",
        "/proc/timer_list",
        "/proc/sched_debug",
        "/proc/latency_stats",
    ),
    *(
        "/proc/acpi",
        "/proc/scsi",
        "/proc/asound",
        "/proc/interrupts",
        "/sys/firmware",
        "/sys/kernel/security",
    ),
)
_FILTERS = Path(__file__).parent / "seccomp"
"""Programs for the kernel that check each system call; made by tests/_support/seccomp_filters.py."""


@functools.cache  # read once: it must stay what it was when this process began
def system_call_filter() -> bytes | None:
    """Return the filter for this machine; None if there is none."""
    machine = {"arm64": "aarch64"}.get(os.uname().machine, os.uname().machine)
    try:
        return (_FILTERS / f"{machine}.bpf").read_bytes() if sys.maxsize > 1 << 32 else None
    except OSError:
        return None


def bubblewrap_arguments(
    program: str,
    places: Places,
    *,
    directory: str,
    network: bool,
    memory: int,
    home: str,
    more: Sequence[str] = (),
    options: Sequence[str] = _OPTIONS,
) -> list[str]:
    """Return the command line without the command.

    Args:
        program: bubblewrap.
        places: What the command sees.
        directory: Where it runs.
        network: Whether it reaches the network.
        memory: Bytes that all files in memory together may have: the folders for temporary files, and the home.
        home: The home folder.
        more: Further mounts, after all others.
        options: The options for namespaces.
    """
    sizes = {
        "/tmp": memory // 2,
        home: memory // 4,
        "/dev/shm": memory // 8,
        "/var/tmp": memory // 8,
    }
    arguments = [program, *options, *(("--share-net",) if network else ()), *_SYSTEM]
    arguments += ("--size", str(sizes["/dev/shm"]), "--tmpfs", "/dev/shm")
    for path in _KERNEL_FILES:
        if Path(path).exists():
            arguments += _hide(path)
    for path in places.hidden:
        arguments += _hide(path, sizes.get(path))
    for path in places.readable:
        arguments += ("--ro-bind", path, path)
    # A mount point cannot be renamed or removed. What is covered would show again if a folder around it could be.
    for path in sorted({*places.writable, *places.pinned}):
        arguments += ("--bind", path, path)
    for path in sorted({*places.protected, *places.missing}):
        arguments += ("--ro-bind", path, path)
    for path in places.hidden_inside:
        arguments += _hide(path)
    for path in places.sockets:
        arguments += ("--ro-bind-try", "/dev/null", path)
    arguments += more
    # What is hidden would otherwise be memory without a limit.
    for path in ("/dev", *places.hidden, *places.hidden_inside):
        if path not in sizes and Path(path).is_dir():
            arguments += ("--remount-ro", path)
    return [*arguments, "--chdir", directory]


def _hide(path: str, size: int | None = None) -> tuple[str, ...]:
    if not Path(path).is_dir():
        return ("--ro-bind", "/dev/null", path)
    return (*(() if size is None else ("--size", str(size))), "--tmpfs", path)


@functools.cache  # it starts a program; what the kernel allows does not change while this process runs
def bubblewrap_problem(program: str) -> str | None:
    """Return why bubblewrap does not work here; None if it works."""
    arguments = [program, *_OPTIONS, *_SYSTEM, "--", *isolated_python_command("-c", "")]
    try:
        done = subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBING,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} cannot be run: {error}"
    if done.returncode == 0:
        return None
    return f"{program} does not work: {' '.join(done.stderr.split())[:200] or f'exit code {done.returncode}'}"


# ── sandbox ────────────────────────────────────────────────────────────────────────────────────────

SandboxKind: TypeAlias = Literal["bwrap", "off"]

_MODULE = "tool-bash"
_MIB = 1 << 20


@attrs.define
class Settled:
    """What was found in the writable folders after a command.

    Attributes:
        notes: What was taken out of repositories, and of what could not be kept aside, as sentences.
        aside: Places that a command made or changed, which are kept aside until someone allows them.
        by_git: Protected places that git may have written, which were looked at already.
    """

    notes: list[str] = attrs.field(factory=list)
    aside: list[Aside] = attrs.field(factory=list)
    by_git: list[str] = attrs.field(factory=list)


@attrs.frozen(kw_only=True)
class Confined:
    """A command as it is started.

    Attributes:
        arguments: The program and its arguments.
        environment: All it gets to see.
        supervision: What the supervisor applies; None for no supervisor.
        explanation: What the sandbox allows, for a command that failed; None without a sandbox.
        settled: Filled in when the command has ended.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    supervision: dict[str, Any] | None
    explanation: str | None = None
    settled: Settled = attrs.field(factory=Settled)


@attrs.frozen(kw_only=True)
class Sandbox:
    """How the commands of one session are confined.

    Attributes:
        kind: What enforces it.
        program: The path of bubblewrap.
        finder: Which files they see.
        git: How their git calls write to repositories; None if they can't.
        git_problem: Why they can't.
    """

    kind: SandboxKind
    options: BashOptions
    program: str = ""
    finder: PlaceFinder | None = None
    git: GitProfile | None = None
    git_problem: str | None = None
    _baselines: Baselines = attrs.field(factory=Baselines)
    _unclean: set[str] = attrs.field(factory=set)
    _changeable: set[int] = attrs.field(factory=set)

    @property
    def network(self) -> bool:
        """Whether commands reach the network."""
        return self.kind == "off" or self.options.network

    @contextmanager
    def confined(
        self, arguments: Sequence[str], directory: str, environment: Mapping[str, str]
    ) -> Iterator[Confined]:
        """Prepare one command, and tidy up after it.

        Args:
            arguments: The shell with its command.
            directory: The working directory, which the command may change.
            environment: What the command gets to see outside of a sandbox.

        Raises:
            ValueError: There is nothing to be confined to, or the agent's own files cannot be protected there.
        """
        if self.finder is None:
            supervision: dict[str, Any] | None = {} if can_supervise() else None
            yield Confined(arguments=arguments, environment=environment, supervision=supervision)
            return
        workspace = self.finder.workspace(directory)
        roots = [workspace, *self.finder.writable]
        if (problem := own_files_problem(roots)) is not None:
            raise ValueError(problem)
        before = self.finder.look(workspace)
        places = self.finder.places(workspace, before)
        environment = {**environment, "TMPDIR": "/tmp"}
        explanation = (
            f"the sandbox ({self.kind}) allows writing below {', '.join(roots)} only"
            f"{'' if self.options.network else ', allows no network'} and hides the home folder"
        )
        if places.repositories and self.git_problem is not None:
            explanation += (
                f"; .git is read-only, and git cannot write to it because {self.git_problem}"
            )
        with ExitStack() as stack:
            places = attrs.evolve(places, missing=stack.enter_context(placeholders(places.missing)))
            settled = Settled()
            mounted = stack.enter_context(_held(places.protected))
            snapshot = stack.enter_context(
                _Snapshot.kept(places, before, self.finder.roots(workspace))
            )
            broker: GitBroker | None = None
            stack.callback(
                lambda: self._settle(workspace, before, mounted, snapshot, settled, broker)
            )
            more = list[str]()
            is_entry = self.finder.protected.is_entry
            if self.git is not None:
                surroundings = Surroundings(
                    profile=self.git,
                    places=places,
                    roots=self.finder.roots(workspace),
                    temporary=[*TEMPORARY, self.finder.home],
                    wrapper=lambda mounts, folder: self._wrapper(
                        _that_exist(places), folder, mounts, CONFINEMENT
                    ),
                    limits=self._limits(),
                    environment=environment,
                    baselines=self._baselines,
                    obeyed=lambda path: path in before.led or is_entry(path),
                )
                broker = GitBroker(surroundings)
                more, variables = stack.enter_context(broker.opened())
                environment = {**environment, **variables}
            wrapper = self._wrapper(places, workspace, more)
            supervision = {
                "limits": self._limits(),
                "wrapper": [os.fsencode(argument) for argument in wrapper],
                "seccomp": system_call_filter(),
                "mounts": places.changeable(),
            }
            if os.geteuid() != 0:  # the kernel does not count the processes of root
                # Inside and not before: outside, the processes that the user has already would count.
                supervision["inner_limits"] = {"RLIMIT_NPROC": self.options.max_processes}
            yield Confined(
                arguments=arguments,
                environment=environment,
                supervision=supervision,
                explanation=explanation,
                settled=settled,
            )

    def _limits(self) -> dict[str, int]:
        return {
            "RLIMIT_CORE": 0,
            "RLIMIT_FSIZE": self.options.max_file_mb * _MIB,
            "RLIMIT_DATA": self.options.max_memory_mb * _MIB,
        }

    def _wrapper(
        self, places: Places, directory: str, more: Sequence[str], options: Sequence[str] = _OPTIONS
    ) -> list[str]:
        assert self.finder is not None
        return bubblewrap_arguments(
            self.program,
            places,
            directory=directory,
            network=self.options.network,
            memory=self.options.max_memory_mb * _MIB,
            home=self.finder.home,
            more=more,
            options=options,
        )

    # ── after a command ──

    def _settle(
        self,
        workspace: str,
        before: Swept,
        held: frozenset[tuple[int, int]],
        snapshot: _Snapshot,
        settled: Settled,
        broker: GitBroker | None,
    ) -> None:
        """Take out of repositories what makes git run programs, and keep aside what else programs obey by themselves."""
        assert self.finder is not None
        if broker is not None:
            settled.notes += broker.notes
            settled.by_git += broker.tracked()
        after = self._look_into_all(workspace, before, settled)
        roots = self.finder.roots(workspace)
        # Nothing in it could be changed or replaced, wherever it was moved with the folder that it is in.
        mounted = frozenset(path for path, found in after.places.items() if found in held)
        by_git, changed = frozenset(settled.by_git), list[str]()
        for path, found in after.places.items():
            if (is_covered(path, mounted) and path not in self._unclean) or is_placeholder(path):
                continue
            if path in after.repositories:
                if not is_covered(path, mounted) and any(is_below(path, root) for root in roots):
                    self._note_changeable(path, found[1])
                notes = _judge_repository(path, roots, after.repositories, snapshot.findings)
                settled.notes += notes
                if not is_covered(path, mounted):
                    settled.notes += _without_steps(path, broker, snapshot.findings)
                # Another command may have moved it meanwhile, so that nothing could be taken out.
                self._unclean.discard(path)
                if any(NOT_CLEAN in note for note in notes):
                    self._unclean.add(path)
            elif before.places.get(path) == found and snapshot.signatures.get(path) == signature(
                path
            ):
                continue
            elif not is_covered(path, by_git) and any(is_below(path, root) for root in roots):
                changed.append(path)
        if broker is not None and changed:
            made = broker.of_the_user(topmost(changed))
            settled.notes += [f"{path}: git made it as the repository had it" for path in made]
            settled.by_git += made
            changed = [path for path in changed if not is_covered(path, frozenset(made))]
        self._keep_aside(changed, before, after, settled)
        aside = {each.path for each in settled.aside}
        self.finder.note_made(before, after, by_git=frozenset(settled.by_git), aside=aside)
        for note in settled.notes:
            logger.warning("tool bash: %s", note)

    def _note_changeable(self, path: str, number: int) -> None:
        """Note that commands commit to a repository without a call that tells their commits from the user's."""
        if number not in self._changeable and os.path.isdir(path):  # noqa: PTH112 - text in
            with suppress(OSError):
                UsersHistory(number).disown()
                self._changeable.add(number)

    def _look_into_all(self, workspace: str, before: Swept, settled: Settled) -> Swept:
        """Return the protected places that exist now, after folders that a command made unreadable are readable again."""
        assert self.finder is not None
        after = self.finder.look(workspace)
        # Another folder may have the name of one that was closed before.
        tried = set(before.closed.items())
        while closed := set(after.closed.items()) - tried:
            tried |= closed
            for path, _ in closed:
                open_up(path)
            after = self.finder.look(workspace)
        for path, _ in set(after.closed.items()) - set(before.closed.items()):
            settled.notes.append(
                f"{path} cannot be looked into; look at it before you run anything there"
            )
        return after

    def _keep_aside(
        self, changed: Sequence[str], before: Swept, after: Swept, settled: Settled
    ) -> None:
        assert self.finder is not None
        protected = self.finder.protected
        tops = topmost(path for path in changed if protected.is_entry(path))
        gone, names = set[str](), {path.rpartition("/")[2] for path in tops}
        # What the command has changed is no pattern for others, nor is what lies in it.
        new = frozenset(changed)
        known = {
            content(path)
            for path in before.places
            if path.rpartition("/")[2] in names and not is_covered(path, new)
        }
        for path in tops:
            found = content(path)
            if (found is None or found not in known) and _put_aside(
                path, protected.reason_for(path), settled
            ):
                gone.add(path)
        for path in topmost(
            path for path in changed if not is_covered(path, gone) and not protected.is_entry(path)
        ):
            leader = after.led.get(path, "")
            # A link that is gone leads nowhere.
            if not is_covered(leader, gone):
                _put_aside(path, f"{leader} leads programs to it", settled)


def _put_aside(path: str, reason: str, settled: Settled) -> bool:
    try:
        settled.aside.append(keep_aside(path, reason))
    except OSError as error:
        problem = (
            f"{path} was made or changed by a command, and could not be renamed: {error.strerror}"
        )
        settled.notes.append(f"{problem}. {reason}; look at it before you use it")
        return False
    return True


def _that_exist(places: Places) -> Places:
    """Return the places without those that git has removed since."""
    return attrs.evolve(
        places, protected=tuple(path for path in places.protected if os.path.lexists(path))
    )


@contextmanager
def _held(paths: Iterable[str]) -> Iterator[frozenset[tuple[int, int]]]:
    """Return the device and inode of each place, which nothing new can get inside the context.

    git may remove what is mounted, and a file system soon uses the number of an inode again.
    """
    found = set[tuple[int, int]]()
    with ExitStack() as stack:
        for path in paths:
            with suppress(OSError):
                descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
                stack.callback(os.close, descriptor)
                found.add(identity_of(descriptor))
        yield frozenset(found)


@attrs.frozen(eq=False)
class _Snapshot:
    """What can be told before a command of the protected places that are not mounted.

    Attributes:
        findings: What names programs in repositories.
        signatures: Of the other places.
        mounted: The places that the command can't change.
        roots: The folders that it can change.
    """

    findings: frozenset[Finding]
    signatures: dict[str, tuple[Any, ...]]
    mounted: frozenset[str]
    roots: Sequence[str]

    @classmethod
    @contextmanager
    def kept(cls, places: Places, swept: Swept, roots: Sequence[str]) -> Iterator[_Snapshot]:
        """Return the snapshot of a command that runs inside the context."""
        mounted = frozenset(places.protected)
        uncovered = [path for path in swept.places if not is_covered(path, mounted)]
        with _running_lock:
            found = (
                finding
                for path in uncovered
                if path in swept.repositories and real_path(path) == path and os.path.isdir(path)  # noqa: PTH112
                for finding in (*findings(path), *pending(path))
            )
            snapshot = cls(
                frozenset(
                    each for each in found if all(other._may_know(each) for other in _running)
                ),
                {path: signature(path) for path in uncovered if path not in swept.repositories},
                mounted,
                roots,
            )
            _running.append(snapshot)
        try:
            yield snapshot
        finally:
            with _running_lock:
                _running.remove(snapshot)

    def _may_know(self, finding: Finding) -> bool:
        """Check whether a finding that is there while this command runs can be of someone else."""
        return (
            finding in self.findings
            or is_covered(finding.path, self.mounted)
            or not any(is_below(finding.path, root) for root in self.roots)
        )


# Of all commands of this process. What one of them has made is not known to another one that starts meanwhile: it is
# taken out when the first has ended, and could be brought back by the second.
_running: list[_Snapshot] = []
_running_lock = threading.Lock()


def _judge_repository(
    path: str, roots: Sequence[str], repositories: Iterable[str], known: frozenset[Finding]
) -> list[str]:
    """Take out of something of git's what makes git run a program; returns sentences about it."""
    if not any(is_below(path, root) for root in roots) or not os.path.lexists(path):
        return []
    if os.path.islink(path):  # noqa: PTH114 - text in
        return set_aside(path, "a link to a repository")
    if os.path.isdir(path):  # noqa: PTH112
        return take_out([finding for finding in findings(path) if finding not in known])
    target = pointer_target(read_text(path) or "")
    real = real_path(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120
    if path.endswith("/.git") and not any(
        is_below(real, f"{folder}/{name}")
        for folder in repositories
        for name in ("worktrees", "modules")
    ):
        return set_aside(path, f"it leads git to {real}")
    return []


def _without_steps(path: str, broker: GitBroker | None, known: frozenset[Finding]) -> list[str]:
    """Take out of a repository that commands can change what is still to write what programs obey; returns sentences."""
    found = [each for each in pending(path) if each not in known]
    repository = named_repository(path, os.path.dirname(path))  # noqa: PTH120 - text in
    if found and (broker is None or repository is None):
        reason = "what it would write can't be told"
        return take_out([attrs.evolve(each, reason=reason) for each in found])
    return broker.take_out_steps(repository, known) if found and broker and repository else []


def sandbox_here() -> tuple[SandboxKind, str | None]:
    """What ``sandbox: "auto"`` means in the current directory, and why commands are not confined if they are not."""
    sandbox, problem = choose_sandbox(BashOptions(), str(Path.cwd()))
    return sandbox.kind, problem


def choose_sandbox(
    options: BashOptions, directory: str, protected: ProtectedPlaces | None = None
) -> tuple[Sandbox, str | None]:
    """Find out how commands can be confined here; starts programs to try it.

    Returns:
        The sandbox, and a warning if commands are not confined although the plan did not turn the sandbox off.

    Raises:
        ModuleLoadError: The plan asks for a sandbox that does not work here.
    """
    wanted = options.sandbox
    if wanted == "off":
        return Sandbox(kind="off", options=options), None
    problems = []
    finder = None
    if not sys.platform.startswith("linux"):
        problems.append(f"there is no sandbox for {sys.platform}")
    elif not can_supervise():
        problems.append("the supervisor of commands does not start with this interpreter")
    elif os.path.realpath(directory) == "/":
        problems.append("the working directory is /, which leaves nothing to protect")
    else:
        try:
            finder = PlaceFinder(options, directory, protected or ProtectedPlaces())
        except ValueError as error:
            raise ModuleLoadError(f"{_MODULE}: {error}", module_id=_MODULE) from None
        roots = [os.path.realpath(directory), *finder.writable]
        if (problem := own_files_problem(roots)) is not None:
            problems.append(problem)
        else:
            program = find_program("bwrap", avoid=roots)
            if program is None:
                problems.append("bubblewrap (bwrap) is not installed")
            elif (problem := bubblewrap_problem(program)) is not None:
                problems.append(problem)
            elif system_call_filter() is None:
                problems.append(f"there is no filter of system calls for {os.uname().machine}")
            else:
                sandbox = Sandbox(kind="bwrap", options=options, program=program, finder=finder)
                git, git_problem = open_git_profile(
                    program,
                    confinement=CONFINEMENT,
                    system_calls=system_call_filter() or b"",
                    network=options.network,
                    limits=sandbox._limits(),
                )
                return attrs.evolve(sandbox, git=git, git_problem=git_problem), None
    reason = "; ".join(problems)
    if wanted != "auto":
        raise ModuleLoadError(
            f"{_MODULE}: the plan asks for the sandbox {wanted!r}, which does not work here: {reason}. Install what is "
            "missing, or set sandbox to 'auto' or 'off'",
            module_id=_MODULE,
        )
    return Sandbox(kind="off", options=options), f"commands run without a sandbox: {reason}"


def import_warning(sandbox: Sandbox, directory: str) -> str | None:
    """That this process imports from folders that its commands may change; None if it does not."""
    if sandbox.finder is None:
        return None
    found = imported_from([os.path.realpath(directory), *sandbox.finder.writable])
    return (
        f"this process imports Python modules from {', '.join(found)}, which commands may change; start it with `python -P`, "
        "or choose another working directory"
        if found
        else None
    )
