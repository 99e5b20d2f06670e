"""The sandbox of commands, which bubblewrap and `amplifier._internal.supervisor` enforce."""

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
from ._aside import Aside, content_digest, keep_aside, signature
from ._git_broker import GitBroker
from ._git_call import Baselines, CallContext, named_repository
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
from ._protected_paths import imported_from, is_placeholder, own_files_problem, placeholders
from ._sandbox_paths import SandboxResolver, SandboxView, is_covered, topmost

logger = logging.getLogger("amplifier.modules.tools")

# ── bubblewrap ────────────────────────────────────────────────────────────────────────────────────
# A command has its own process ids, network, IPC and mounts. The file system is read-only for the
# command, but some parts of it are hidden and some are writable.

_PROBE_SECONDS = 30.0
CONFINEMENT = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--new-session", "--die-with-parent"),
    *("--cap-drop", "ALL"),
)
"""Options of every sandbox. ``--disable-userns`` needs bubblewrap 0.8."""
# The supervisor's program is the first process, and reports the end of the command.
_OPTIONS = (*CONFINEMENT, "--as-pid-1")
TEMPORARY = ("/tmp", "/dev/shm", "/var/tmp")
"""Folders that are empty for each command, besides the home folder."""
_SYSTEM = (
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
    # For these files, root in a namespace is root outside of it, even without capabilities. The
    # kernel runs a program from core_pattern there, for example.
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
# Container runtimes cover these files, too. They reveal names of keys, the kernel's memory, and the
# timers and interrupts of all processes.
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
"""Filters of system calls for the kernel, made by tests/_support/seccomp_filters.py."""


# The filter is read once, because it must not change while this process runs.
@functools.cache
def system_call_filter() -> bytes | None:
    """Return the filter for this machine, or None if there is none."""
    machine = {"arm64": "aarch64"}.get(os.uname().machine, os.uname().machine)
    try:
        return (_FILTERS / f"{machine}.bpf").read_bytes() if sys.maxsize > 1 << 32 else None
    except OSError:
        return None


def bubblewrap_arguments(
    program: str,
    view: SandboxView,
    *,
    directory: str,
    network: bool,
    memory: int,
    home: str,
    more: Sequence[str] = (),
    options: Sequence[str] = _OPTIONS,
) -> list[str]:
    """Return the command line of bubblewrap without the command.

    Args:
        program: The path of bubblewrap.
        view: The file system of the command.
        directory: The folder that the command runs in.
        network: True if the command may use the network.
        memory: Maximum size in bytes of all files in memory: in the folders for temporary files and
            in the home folder.
        home: The home folder.
        more: Further mounts, which come after all others.
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
    for path in view.hidden:
        arguments += _hide(path, sizes.get(path))
    for path in view.readable:
        arguments += ("--ro-bind", path, path)
    # A mount point can't be renamed or removed. If a folder around it could be renamed, a covered
    # file would appear again.
    for path in sorted({*view.writable, *view.pinned}):
        arguments += ("--bind", path, path)
    for path in sorted({*view.protected, *view.missing}):
        arguments += ("--ro-bind", path, path)
    for path in view.hidden_inside:
        arguments += _hide(path)
    for path in view.sockets:
        arguments += ("--ro-bind-try", "/dev/null", path)
    arguments += more
    # Otherwise the empty folders over hidden ones could take memory without a limit.
    for path in ("/dev", *view.hidden, *view.hidden_inside):
        if path not in sizes and Path(path).is_dir():
            arguments += ("--remount-ro", path)
    return [*arguments, "--chdir", directory]


def _hide(path: str, size: int | None = None) -> tuple[str, ...]:
    if not Path(path).is_dir():
        return ("--ro-bind", "/dev/null", path)
    return (*(() if size is None else ("--size", str(size))), "--tmpfs", path)


# The check starts a program. The permissions of this process don't change, so one check is enough.
@functools.cache
def bubblewrap_problem(program: str) -> str | None:
    """Return why bubblewrap doesn't work here, or None if it does."""
    arguments = [program, *_OPTIONS, *_SYSTEM, "--", *isolated_python_command("-c", "")]
    try:
        result = subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} cannot be run: {error}"
    if result.returncode == 0:
        return None
    problem = " ".join(result.stderr.split())[:200] or f"exit code {result.returncode}"
    return f"{program} does not work: {problem}"


# ── sandbox ───────────────────────────────────────────────────────────────────────────────────────

SandboxKind: TypeAlias = Literal["bwrap", "off"]

_MODULE = "tool-bash"
_MIB = 1 << 20


@attrs.define
class SweepReport:
    """The findings in the writable folders after a command.

    Attributes:
        notes: Sentences about changes of repositories, and about files that could not be renamed.
        aside: Files that a command made or changed, and that keep another name until someone allows
            them.
        by_git: Protected paths that git may have written, and that have been checked.
    """

    notes: list[str] = attrs.field(factory=list)
    aside: list[Aside] = attrs.field(factory=list)
    by_git: list[str] = attrs.field(factory=list)


@attrs.frozen(kw_only=True)
class Confined:
    """A command that is ready to be started.

    Attributes:
        arguments: The program and its arguments.
        environment: Its environment variables.
        supervision: The limits and mounts for the supervisor. None if there is no supervisor.
        explanation: A description of the sandbox for a command that failed. None without a sandbox.
        report: The findings, filled in when the command has ended.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    supervision: dict[str, Any] | None
    explanation: str | None = None
    report: SweepReport = attrs.field(factory=SweepReport)


@attrs.frozen(kw_only=True)
class Sandbox:
    """The sandbox for the commands of one session.

    Attributes:
        kind: ``"bwrap"``, or ``"off"`` for none.
        options: The configuration.
        program: The path of bubblewrap.
        resolver: Resolves the paths that commands may use. None without a sandbox.
        git: The profile for git calls that write to repositories. None if they can't be run.
        git_problem: The reason why git calls can't be run, or None.
    """

    kind: SandboxKind
    options: BashOptions
    program: str = ""
    resolver: SandboxResolver | None = None
    git: GitProfile | None = None
    git_problem: str | None = None
    _baselines: Baselines = attrs.field(factory=Baselines)
    _unclean: set[str] = attrs.field(factory=set)
    _changeable: set[int] = attrs.field(factory=set)

    @property
    def network(self) -> bool:
        """True if commands may use the network."""
        return self.kind == "off" or self.options.network

    @contextmanager
    def confined(
        self, arguments: Sequence[str], directory: str, environment: Mapping[str, str]
    ) -> Iterator[Confined]:
        """Prepare one command, and check the writable folders after it.

        Args:
            arguments: The shell with its command.
            directory: The working directory, which the command may change.
            environment: The environment variables of the command outside of a sandbox.

        Raises:
            ValueError: The command can't be confined to the directory, or the agent's own files
                can't be protected there.
        """
        if self.resolver is None:
            supervision: dict[str, Any] | None = {} if can_supervise() else None
            yield Confined(arguments=arguments, environment=environment, supervision=supervision)
            return
        workspace = self.resolver.workspace(directory)
        roots = [workspace, *self.resolver.writable]
        if (problem := own_files_problem(roots)) is not None:
            raise ValueError(problem)
        before = self.resolver.look(workspace)
        view = self.resolver.view(workspace, before)
        environment = {**environment, "TMPDIR": "/tmp"}
        explanation = (
            f"the sandbox ({self.kind}) allows writing below {', '.join(roots)} only"
            f"{'' if self.options.network else ', allows no network'} and hides the home folder"
        )
        if view.repositories and self.git_problem is not None:
            explanation += (
                f"; .git is read-only, and git cannot write to it because {self.git_problem}"
            )
        with ExitStack() as stack:
            view = attrs.evolve(view, missing=stack.enter_context(placeholders(view.missing)))
            report = SweepReport()
            mounted = stack.enter_context(_held_open(view.protected))
            snapshot = stack.enter_context(
                _Snapshot.taken(view, before, self.resolver.roots(workspace))
            )
            broker: GitBroker | None = None
            stack.callback(
                lambda: self._check(workspace, before, mounted, snapshot, report, broker)
            )
            more = list[str]()
            is_entry = self.resolver.protected.is_entry
            if self.git is not None:
                context = CallContext(
                    profile=self.git,
                    view=view,
                    roots=self.resolver.roots(workspace),
                    temporary=[*TEMPORARY, self.resolver.home],
                    wrapper=lambda mounts, folder: self._wrapper(
                        _existing(view), folder, mounts, CONFINEMENT
                    ),
                    limits=self._limits(),
                    environment=environment,
                    baselines=self._baselines,
                    is_obeyed=lambda path: path in before.led or is_entry(path),
                )
                broker = GitBroker(context)
                more, variables = stack.enter_context(broker.opened())
                environment = {**environment, **variables}
            wrapper = self._wrapper(view, workspace, more)
            supervision = {
                "limits": self._limits(),
                "wrapper": [os.fsencode(argument) for argument in wrapper],
                "seccomp": system_call_filter(),
                "mounts": view.mounts(),
            }
            # The kernel doesn't count the processes of root. The limit is set inside the sandbox,
            # because outside of it the other processes of the user would count.
            if os.geteuid() != 0:
                supervision["inner_limits"] = {"RLIMIT_NPROC": self.options.max_processes}
            yield Confined(
                arguments=arguments,
                environment=environment,
                supervision=supervision,
                explanation=explanation,
                report=report,
            )

    def _limits(self) -> dict[str, int]:
        return {
            "RLIMIT_CORE": 0,
            "RLIMIT_FSIZE": self.options.max_file_mb * _MIB,
            "RLIMIT_DATA": self.options.max_memory_mb * _MIB,
        }

    def _wrapper(
        self,
        view: SandboxView,
        directory: str,
        more: Sequence[str],
        options: Sequence[str] = _OPTIONS,
    ) -> list[str]:
        assert self.resolver is not None
        return bubblewrap_arguments(
            self.program,
            view,
            directory=directory,
            network=self.options.network,
            memory=self.options.max_memory_mb * _MIB,
            home=self.resolver.home,
            more=more,
            options=options,
        )

    # ── after a command ──

    def _check(
        self,
        workspace: str,
        before: Swept,
        held: frozenset[tuple[int, int]],
        snapshot: _Snapshot,
        report: SweepReport,
        broker: GitBroker | None,
    ) -> None:
        """Check the writable folders after a command.

        Settings that make git run programs are removed from repositories. Other files that control
        programs are renamed.
        """
        assert self.resolver is not None
        if broker is not None:
            report.notes += broker.notes
            report.by_git += broker.tracked()
        after = self._sweep_all(workspace, before, report)
        roots = self.resolver.roots(workspace)
        # Nothing in these folders could be changed or replaced, even if a folder around them was
        # moved.
        mounted = frozenset(path for path, identity in after.places.items() if identity in held)
        by_git, changed = frozenset(report.by_git), list[str]()
        for path, identity in after.places.items():
            if (is_covered(path, mounted) and path not in self._unclean) or is_placeholder(path):
                continue
            if path in after.repositories:
                if not is_covered(path, mounted) and any(is_below(path, root) for root in roots):
                    self._record_changeable(path, identity[1])
                notes = _clean_repository(path, roots, after.repositories, snapshot.findings)
                report.notes += notes
                if not is_covered(path, mounted):
                    report.notes += _remove_steps(path, broker, snapshot.findings)
                # Another command may have moved the repository meanwhile, so that it couldn't be
                # cleaned.
                self._unclean.discard(path)
                if any(NOT_CLEAN in note for note in notes):
                    self._unclean.add(path)
            elif before.places.get(path) == identity and snapshot.signatures.get(path) == signature(
                path
            ):
                continue
            elif not is_covered(path, by_git) and any(is_below(path, root) for root in roots):
                changed.append(path)
        if broker is not None and changed:
            paths = broker.of_the_user(topmost(changed))
            report.notes += [f"{path}: git made it as the repository had it" for path in paths]
            report.by_git += paths
            changed = [path for path in changed if not is_covered(path, frozenset(paths))]
        self._keep_aside(changed, before, after, report)
        aside = {file.path for file in report.aside}
        self.resolver.record_made(before, after, by_git=frozenset(report.by_git), aside=aside)
        for note in report.notes:
            logger.warning("tool bash: %s", note)

    def _record_changeable(self, path: str, number: int) -> None:
        """Record that commands can commit to a repository without a git call through the broker."""
        if number not in self._changeable and os.path.isdir(path):  # noqa: PTH112 — text in
            with suppress(OSError):
                UsersHistory(number).disown()
                self._changeable.add(number)

    def _sweep_all(self, workspace: str, before: Swept, report: SweepReport) -> Swept:
        """Return the protected paths that exist now.

        Folders that a command has made unreadable are made readable again.
        """
        assert self.resolver is not None
        after = self.resolver.look(workspace)
        # Another folder may have taken the name of one that was closed before.
        tried = set(before.closed.items())
        while closed := set(after.closed.items()) - tried:
            tried |= closed
            for path, _ in closed:
                open_up(path)
            after = self.resolver.look(workspace)
        for path, _ in set(after.closed.items()) - set(before.closed.items()):
            report.notes.append(f"{path} cannot be read; look at it before you run anything there")
        return after

    def _keep_aside(
        self, changed: Sequence[str], before: Swept, after: Swept, report: SweepReport
    ) -> None:
        assert self.resolver is not None
        protected = self.resolver.protected
        tops = topmost(path for path in changed if protected.is_entry(path))
        removed, names = set[str](), {path.rpartition("/")[2] for path in tops}
        # Copies of other protected files are allowed, but not copies of changed ones.
        new = frozenset(changed)
        known = {
            content_digest(path)
            for path in before.places
            if path.rpartition("/")[2] in names and not is_covered(path, new)
        }
        for path in tops:
            digest = content_digest(path)
            if (digest is None or digest not in known) and _put_aside(
                path, protected.reason_for(path), report
            ):
                removed.add(path)
        for path in topmost(
            path
            for path in changed
            if not is_covered(path, removed) and not protected.is_entry(path)
        ):
            leader = after.led.get(path, "")
            # A link that was removed leads nowhere.
            if not is_covered(leader, removed):
                _put_aside(path, f"{leader} leads programs to it", report)


def _put_aside(path: str, reason: str, report: SweepReport) -> bool:
    try:
        report.aside.append(keep_aside(path, reason))
    except OSError as error:
        problem = (
            f"{path} was made or changed by a command, and could not be renamed: {error.strerror}"
        )
        report.notes.append(f"{problem}. {reason}; look at it before you use it")
        return False
    return True


def _existing(view: SandboxView) -> SandboxView:
    """Return the view without the protected files that git has removed meanwhile."""
    return attrs.evolve(
        view, protected=tuple(path for path in view.protected if os.path.lexists(path))
    )


@contextmanager
def _held_open(paths: Iterable[str]) -> Iterator[frozenset[tuple[int, int]]]:
    """Keep files open, and yield the device and inode of each.

    git may remove a mounted file, and the file system would soon use its inode for another one.
    """
    numbers = set[tuple[int, int]]()
    with ExitStack() as stack:
        for path in paths:
            with suppress(OSError):
                descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
                stack.callback(os.close, descriptor)
                numbers.add(identity_of(descriptor))
        yield frozenset(numbers)


@attrs.frozen(eq=False)
class _Snapshot:
    """The state of the protected paths that aren't mounted, before a command.

    Attributes:
        findings: Settings and files in repositories that name programs.
        signatures: The signatures of the other paths.
        mounted: The paths that the command can't change.
        roots: The folders that it can change.
    """

    findings: frozenset[Finding]
    signatures: dict[str, tuple[Any, ...]]
    mounted: frozenset[str]
    roots: Sequence[str]

    @classmethod
    @contextmanager
    def taken(cls, view: SandboxView, swept: Swept, roots: Sequence[str]) -> Iterator[_Snapshot]:
        """Take a snapshot for a command that runs inside the context."""
        mounted = frozenset(view.protected)
        uncovered = [path for path in swept.places if not is_covered(path, mounted)]
        with _running_lock:
            repositories = [
                path for path in uncovered if path in swept.repositories and real_path(path) == path
            ]
            present = (
                finding
                for path in repositories
                if os.path.isdir(path)  # noqa: PTH112 — text in
                for finding in (*findings(path), *pending(path))
            )
            snapshot = cls(
                frozenset(
                    finding
                    for finding in present
                    if all(other._is_foreign(finding) for other in _running)
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

    def _is_foreign(self, finding: Finding) -> bool:
        """Return whether a finding can't come from this command, which is still running."""
        return (
            finding in self.findings
            or is_covered(finding.path, self.mounted)
            or not any(is_below(finding.path, root) for root in self.roots)
        )


# These are the snapshots of all commands of this process. A finding that one command has made is
# removed when that command has ended. Another command that starts meanwhile could restore it, so
# its snapshot must not contain it.
_running: list[_Snapshot] = []
_running_lock = threading.Lock()


def _clean_repository(
    path: str, roots: Sequence[str], repositories: Iterable[str], known: frozenset[Finding]
) -> list[str]:
    """Remove everything from a repository that makes git run a program.

    Returns:
        Sentences about the changes.
    """
    if not any(is_below(path, root) for root in roots) or not os.path.lexists(path):
        return []
    if os.path.islink(path):  # noqa: PTH114 — text in
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


def _remove_steps(path: str, broker: GitBroker | None, known: frozenset[Finding]) -> list[str]:
    """Remove steps from a repository that would write files that control programs.

    Returns:
        Sentences about the changes.
    """
    new = [finding for finding in pending(path) if finding not in known]
    repository = named_repository(path, os.path.dirname(path))  # noqa: PTH120 — text in
    if new and (broker is None or repository is None):
        reason = "the files that it would write are unknown"
        return take_out([attrs.evolve(finding, reason=reason) for finding in new])
    return broker.take_out_steps(repository, known) if new and broker and repository else []


def sandbox_here() -> tuple[SandboxKind, str | None]:
    """Return the sandbox of ``sandbox: "auto"`` in the current directory.

    Returns:
        The kind, and the reason if commands aren't confined.
    """
    sandbox, problem = choose_sandbox(BashOptions(), str(Path.cwd()))
    return sandbox.kind, problem


def choose_sandbox(
    options: BashOptions, directory: str, protected: ProtectedPlaces | None = None
) -> tuple[Sandbox, str | None]:
    """Choose the sandbox for the commands of a session. Programs are started to try it.

    Returns:
        The sandbox, and a warning if commands aren't confined although the plan doesn't turn the
        sandbox off.

    Raises:
        ModuleLoadError: The plan requires a sandbox that doesn't work here.
    """
    choice = options.sandbox
    if choice == "off":
        return Sandbox(kind="off", options=options), None
    problems = []
    resolver = None
    if not sys.platform.startswith("linux"):
        problems.append(f"there is no sandbox for {sys.platform}")
    elif not can_supervise():
        problems.append("the supervisor of commands does not start with this interpreter")
    elif os.path.realpath(directory) == "/":
        problems.append("the working directory is /, which leaves nothing to protect")
    else:
        try:
            resolver = SandboxResolver(options, directory, protected or ProtectedPlaces())
        except ValueError as error:
            raise ModuleLoadError(f"{_MODULE}: {error}", module_id=_MODULE) from None
        roots = [os.path.realpath(directory), *resolver.writable]
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
                sandbox = Sandbox(kind="bwrap", options=options, program=program, resolver=resolver)
                git, git_problem = open_git_profile(
                    program,
                    confinement=CONFINEMENT,
                    system_calls=system_call_filter() or b"",
                    network=options.network,
                    limits=sandbox._limits(),
                )
                return attrs.evolve(sandbox, git=git, git_problem=git_problem), None
    reason = "; ".join(problems)
    if choice != "auto":
        raise ModuleLoadError(
            f"{_MODULE}: the plan asks for the sandbox {choice!r}, which does not work here: "
            f"{reason}. Fix that, or set sandbox to 'auto' or 'off'",
            module_id=_MODULE,
        )
    return Sandbox(kind="off", options=options), f"commands run without a sandbox: {reason}"


def import_warning(sandbox: Sandbox, directory: str) -> str | None:
    """Return a warning if this process imports from folders that commands may change, or None."""
    if sandbox.resolver is None:
        return None
    folders = imported_from([os.path.realpath(directory), *sandbox.resolver.writable])
    if not folders:
        return None
    return (
        f"this process imports Python modules from {', '.join(folders)}, which commands may "
        "change; start it with `python -P`, or choose another working directory"
    )
