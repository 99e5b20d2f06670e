"""Run the checks of a job in this process, and write messages as JSON lines to standard output.

Started as ``python -m amplifier.conformance.engine.worker``. It needs the ``testing`` extra.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from functools import partial
from threading import get_native_id
from typing import Any, NoReturn

import anyio
import attrs
from hypothesis import Phase, find, given
from hypothesis import seed as seeded
from hypothesis.errors import HypothesisException
from hypothesis.strategies import SearchStrategy

from amplifier.conformance.checks.registry import CHECKS, Check, checks_for
from amplifier.conformance.engine.cases import CASES, quiet_settings, texts_matching
from amplifier.conformance.engine.job import Job, read_replay_token
from amplifier.conformance.engine.results import (
    ABANDONED,
    ENDS_PROCESS_HINT,
    IMPORT,
    IMPORT_HINT,
    TOO_SLOW,
)
from amplifier.conformance.engine.shrinking import shrunk
from amplifier.conformance.inputs.in_words import in_words
from amplifier.conformance.inputs.server_process import (
    service_address,
    with_service,
    without_service,
)
from amplifier.conformance.inputs.values import use_address
from amplifier.conformance.target.calls import (
    KIT_THREAD,
    let_time_jump,
    machine_load,
    remember_hang,
    run_virtually,
    worked_time,
)
from amplifier.conformance.target.chosen_inputs import choose_inputs
from amplifier.conformance.target.locate import LoadedTarget, load
from amplifier.conformance.target.mounted import CheckContext, Fault, MountFailed, StepCoverage
from amplifier.conformance.target.process import (
    ProcessState,
    continue_below_reaper,
    dropped_objects,
    mark_descendants,
    started_processes,
)
from amplifier.conformance.target.source import choices_in, inputs_in, patterns_in, texts_in
from amplifier.conformance.target.use import (
    find_working_config,
    run_typical_operations,
    schema_of,
    sought_texts,
)
from amplifier.errors import ModuleLoadError
from amplifier.loading.importing import advise_on_alias
from amplifier.models import from_json

# The module cannot harm the controller. Its output is discarded. A call that cannot be stopped ends
# this process, and the controller starts another one for the remaining steps. A step is one check.
# Cases are listed and drawn. For each clause that drawn cases break, Hypothesis looks for the
# smallest one. The same seed draws the same cases.

_ALIVE_INTERVAL = 1.0
_STEP_SECONDS = {"quick": 25.0, "thorough": 400.0}
"""Maximum time of one step, excluding the time in which this process had no processor."""


def main() -> int:
    """Run the job that standard input has."""
    continue_below_reaper()
    job = from_json(Job, sys.stdin.buffer.read())
    output = _take_over_stdout()
    mark_descendants()
    let_time_jump()
    if job.has_hung:
        remember_hang()
    logging.raiseExceptions = False
    writing = threading.RLock()

    def emit(message: dict[str, Any]) -> None:
        line = json.dumps(message, default=repr, ensure_ascii=True).encode() + b"\n"
        with writing:
            output.write(line)
            output.flush()

    def abandon(step: str, fault: Fault) -> NoReturn:
        emit({"fault": attrs.asdict(fault), "step": step})
        os._exit(ABANDONED)

    emit({"start": IMPORT})
    try:
        loaded = anyio.run(_load, job, backend=job.backends[0])
    except BaseException as error:  # noqa: BLE001 — importing may raise anything, even an exit
        what = advise_on_alias(f"it cannot be imported: {type(error).__name__}: {error}", error)
        # This error is ours. It is about an entry point without a target, and the clause has the
        # advice.
        hint = None if isinstance(error, ModuleLoadError) else IMPORT_HINT
        fault = Fault(clause="A1", what=what, location=job.target.location_of(error), hint=hint)
        emit({"fault": attrs.asdict(fault), "step": IMPORT})
    else:
        if "amplifier_core" in sys.modules:
            place = sys.modules["amplifier_core"].__file__
            emit({"note": f"it imports amplifier_core, here an alias of this kernel ({place})"})
        runner = Runner(loaded, job, emit, abandon)
        steps = [check.name for check in runner.steps()]
        emit(
            {
                "module_type": loaded.module_type,
                "backends": list(loaded.backends),
                "needs_island": loaded.needs_island,
                "steps": steps,
            }
        )
        arguments = (runner, emit, job, get_native_id())
        threading.Thread(
            target=_watch, args=arguments, name=f"{KIT_THREAD} watch", daemon=True
        ).start()
        runner.run()
    emit({"end": True})
    return 0


async def _load(job: Job) -> LoadedTarget:
    """Import the module while an event loop runs, as the kernel does.

    A module that starts another loop fails here, at that line.
    """
    return load(job.target, job.config, job.plan)


def _watch(runner: Runner, emit: Emit, job: Job, main_thread: int) -> None:
    """End the process when a step, or all steps together, take too long.

    This is a last resort, since checks limit the number of their calls.
    """
    step, started, begun = "", worked_time(main_thread), worked_time(main_thread)
    while True:
        time.sleep(_ALIVE_INTERVAL)
        emit({"alive": runner.step})
        if runner.step != step:
            step, started = runner.step, worked_time(main_thread)
        load = machine_load()
        if step and worked_time(main_thread) - started > _STEP_SECONDS[job.profile] * load:
            why = f"it took more than {_STEP_SECONDS[job.profile]:g} s"
        elif step and worked_time(main_thread) - begun > job.seconds * load:
            why = "the examination took too long"
        else:
            continue
        emit({"failed": why, "step": step})
        emit({"done": step, "coverage": {}, "seconds": (worked_time(main_thread) - started) / load})
        os._exit(TOO_SLOW)


def _take_over_stdout() -> Any:
    """Return standard output for messages, and discard everything that the module prints."""
    kept = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return os.fdopen(kept, "wb")


# ── drawn cases ──

Play = Callable[[Any], list[Fault]]

CALLS = 4_000
"""Maximum number of calls of the module in all cases of the quick profile.

Only a module that starts processes reaches it.
"""
SHRINKING = 150
"""Maximum number of cases that are tried to make one smaller."""
SHRINKING_LISTED = 50
"""Maximum number of such cases without Hypothesis, for each broken clause."""
SHRINKING_CALLS = 3_000
"""Maximum number of calls of the module in the cases that are tried to make one smaller."""
SHRINKING_SECONDS = 2.0
"""Maximum seconds of work in these cases, shared by the broken clauses of a step."""


def explore(
    cases: SearchStrategy[Any],
    play: Play,
    ctx: CheckContext,
    *,
    examples: int,
    known: Set[str] = frozenset(),
) -> list[Fault]:
    """Play many drawn cases, and return a fault for each broken clause that is not `known`.

    Each is the fault of the smallest case that breaks the clause.
    """
    failing: dict[str, Fault] = {}
    budget = ctx.budget(CALLS)

    def trial(case: Any) -> None:
        if budget.is_spent():
            return
        for fault in play(case):
            if fault.clause not in known:
                failing.setdefault(fault.clause, fault)

    quiet = quiet_settings(examples, Phase.explicit, Phase.generate)
    seeded(ctx.seed)(quiet(given(cases)(trial)))()
    seconds = SHRINKING_SECONDS / max(len(failing), 1)
    return [
        _smallest(cases, play, clause, ctx, examples, seconds) or fault
        for clause, fault in failing.items()
    ]


class _Enough(BaseException):
    """Raised in a case that Hypothesis tries, to end its search. It would handle an `Exception`."""


def _smallest(
    cases: SearchStrategy[Any],
    play: Play,
    clause: str,
    ctx: CheckContext,
    examples: int,
    seconds: float,
) -> Fault | None:
    best: list[Fault] = []
    left = examples + SHRINKING
    budget = ctx.budget(SHRINKING_CALLS, seconds)

    def breaks(case: Any) -> bool:
        nonlocal left, best
        left -= 1
        if left < 0 or budget.is_spent():
            raise _Enough
        faults = [fault for fault in play(case) if fault.clause == clause]
        best = faults or best
        return bool(faults)

    # Hypothesis raises if the fault is not reproduced, because the module behaves differently.
    with suppress(HypothesisException, _Enough):
        quiet = quiet_settings(examples + SHRINKING, Phase.generate, Phase.shrink)
        find(cases, breaks, settings=quiet, random=random.Random(ctx.seed))
    return best[0] if best else None


Emit = Callable[[dict[str, Any]], None]

PROFILES = {"quick": (20, 24), "thorough": (150, 400)}
"""Numbers of drawn cases for each check and of suspension points for each call, by profile."""
_MAX_TRIGGERS = 60
_DYNAMIC_KINDS = ("structure", "behaviour", "cancellation", "hygiene")


@contextmanager
def _deterministic_order(backend: str, seed: int) -> Iterator[None]:
    """Make everything happen in the same order every time.

    Otherwise trio shuffles its tasks, and programs draw random numbers.
    """
    random.seed(seed)
    if backend != "trio":
        yield
        return
    # This module imports trio.
    from amplifier.testing.cancel_sweep.trio_trial import (  # noqa: PLC0415
        deterministic_scheduling,
    )

    with deterministic_scheduling(seed):
        yield


class Runner:
    """The checks of one job, on its one backend.

    Args:
        loaded: The module.
        job: The job.
        emit: Sends a message to the controller.
        abandon: Sends a fault of a step and ends the process, since a call cannot be stopped.

    Attributes:
        step: The name of the running check.
    """

    def __init__(
        self, loaded: LoadedTarget, job: Job, emit: Emit, abandon: Callable[[str, Fault], NoReturn]
    ) -> None:
        self._loaded = loaded
        self._job = job
        self._backend = job.backends[0]
        self._emit = emit
        self._abandon = abandon
        self._examples, self._points = PROFILES[job.profile]
        self._facts: dict[str, Any] = {}
        self._coverage = StepCoverage()
        self._playing: CheckContext | None = None
        self._sent: set[str] = set()
        self._state = ProcessState()
        self._has_chosen = False
        self._is_shrinking = self._is_locating = False
        self.step: str = ""

    def steps(self) -> list[Check]:
        """Return the checks of the job in their order."""
        chosen = [
            check
            for check in checks_for(self._loaded.module_type, _DYNAMIC_KINDS)
            if self._backend in self._loaded.backends
            and self._job.selects(check)
            and check.name not in self._job.skip
        ]
        return sorted(chosen, key=lambda check: not check.ends_run)

    def run(self) -> None:
        """Run every step and send its faults."""
        for number, check in enumerate(self.steps()):
            self.step = check.name
            self._emit({"start": check.name})
            started = worked_time()
            if number == 0:
                self._guess_config()
            if not check.ends_run:
                self._choose_inputs()
            # A step must not depend on changes by another step.
            self._state.restore()
            self._coverage = StepCoverage(backends=[self._backend])
            self._playing, self._sent = None, set()
            try:
                # If several faults against one clause are sent, the last one counts.
                for fault in reversed(self._explore(check)):
                    self._send(fault)
            except MountFailed as failed:
                self._send_faults()
                self._emit({"unmounted": str(failed), "step": check.name})
            # A check that fails by itself shows nothing about the module.
            except BaseException as error:  # noqa: BLE001
                self._send_faults()
                if (exiting := exit_in(error)) is not None:
                    self._send(self._exit_fault(exiting))
                self._emit({"failed": f"{type(error).__name__}: {error}", "step": check.name})
            seconds = (worked_time() - started) / machine_load()
            self._emit(
                {"done": check.name, "coverage": attrs.asdict(self._coverage), "seconds": seconds}
            )
            if check.ends_run and (broken := self._broken_clause()):
                self._emit(
                    {"gave_up": f"{broken} is broken, and every other check would take long"}
                )
                return

    def _broken_clause(self) -> str | None:
        """Return the first clause that the most recent case has broken, or None."""
        faults = [] if self._playing is None else self._playing.faults
        return faults[0].clause if faults else None

    def _send(self, fault: Fault) -> None:
        self._emit({"fault": attrs.asdict(fault), "step": self.step})

    def _send_faults(self) -> None:
        """Send the step's faults so far, one for each clause, because the step may not finish.

        A finished step sends its faults again, and these replace the earlier ones.
        """
        # A smaller case may be impossible in a session.
        if self._playing is None or self._is_shrinking:
            return
        for fault in _with_input(self._playing, CHECKS[self.step].inputs):
            if fault.clause not in self._sent:
                self._sent.add(fault.clause)
                self._send(fault)

    def _exit_fault(self, error: BaseException) -> Fault:
        """Return the fault of a module that raised an exit in a task.

        Asyncio lets such an exit leave the loop.
        """
        what = (
            f"it raised {type(error).__name__}, which ends the process that runs it; "
            "a module must not do that"
        )
        location = self._loaded.target.location_of(error)
        return Fault(clause="A17", what=what, location=location, hint=ENDS_PROCESS_HINT)

    def _run(self, function: Callable[[CheckContext], Any]) -> Any:
        return run_virtually(function, self._stage(None), backend=self._backend)

    def _guess_config(self) -> None:
        """Find settings for the module, its triggers, and whether its calls start processes."""
        if self._loaded.module_type in ("hook", "tool", "provider"):
            patterns = patterns_in(self._loaded.target)
            texts = (text for pattern in patterns for text in texts_matching(pattern))
            triggers = tuple(dict.fromkeys(texts))[:_MAX_TRIGGERS]
            self._loaded = attrs.evolve(self._loaded, triggers=triggers)
        # The module may raise anything here. The checks report its faults.
        try:
            configured = self._run(find_working_config)
        except BaseException:  # noqa: BLE001
            return
        guessed = {
            key: value for key, value in configured.config.items() if key not in self._loaded.config
        }
        if guessed:
            self._emit({"note": f"mounted with settings guessed from its source: {guessed!r}"})
        self._loaded = configured
        # The module may have hung in the typical operations.
        if self._job.has_hung:
            return
        before = started_processes()
        try:
            self._run(_use)
        except BaseException:  # noqa: BLE001
            return
        self._loaded = attrs.evolve(configured, starts_processes=started_processes() > before)

    def _choose_inputs(self) -> None:
        """Choose inputs of tools, which takes many calls, unless that was done before."""
        loaded = self._loaded
        if self._has_chosen or loaded.module_type != "tool" or self._job.has_hung:
            return
        self._has_chosen = True
        if not loaded.starts_processes:
            # The checks report the faults of the module.
            with suppress(Exception):
                chosen = self._run(choose_inputs)
                self._loaded = attrs.evolve(loaded, chosen_inputs=chosen)

    def _explore(self, check: Check) -> list[Fault]:
        """Run a check once, with the replayed case, or on its listed and drawn cases."""
        replayed = (
            None
            if self._job.replay is None
            else with_service(read_replay_token(self._job.replay)[1])
        )
        if check.inputs is None or (replayed is not None and "listed" not in replayed):
            return self._play(check, replayed)
        # This is needed even for a module without any cases.
        self._coverage.mount_attempted = True
        self._facts = self._facts or self._run(_gather_facts)
        strategy, listing = CASES[check.inputs]
        listed = list(listing(self._facts))
        if replayed is not None:
            return [
                fault
                for case in listed[replayed["listed"] :][:1]
                for fault in self._play(check, case, replayed)
            ]
        known: dict[str, Fault] = {}
        places: dict[str, Any] = {}
        for number, case in enumerate(listed):
            for fault in self._play(check, case, {"listed": number}):
                known.setdefault(fault.clause, fault)
                places.setdefault(fault.clause, case)
        cases, examples = strategy(self._facts), self._examples
        play = partial(self._play, check)
        drawn = explore(cases, play, self._stage(None), examples=examples, known=set(known))
        large = [(fault, places[name]) for name, fault in known.items()]
        large += [(fault, fault.case) for fault in drawn]
        seconds = SHRINKING_SECONDS / max(len(large), 1)
        return [self._shrunk(check, fault, case, seconds) for fault, case in large]

    def _shrunk(self, check: Check, fault: Fault, case: Any, seconds: float) -> Fault:
        """Return the fault of the smallest case that breaks the clause in the same way."""
        smallest, gist = fault, _gist(fault.what)

        def fails(candidate: Any) -> bool:
            nonlocal smallest
            self._is_shrinking = True
            try:
                token = fault.case if candidate is case else None
                faults = self._play(check, candidate, token)
            except Exception:  # noqa: BLE001 — it is no longer a case of this check
                return False
            finally:
                self._is_shrinking = False
            similar = [
                other
                for other in faults
                if other.clause == fault.clause and _gist(other.what) == gist
            ]
            smallest = similar[0] if similar else smallest
            return bool(similar)

        budget = self._stage(None).budget(SHRINKING_CALLS, seconds)
        smallest_case = shrunk(case, fails, budget, SHRINKING_LISTED)
        self._is_locating = True
        fails(smallest_case)
        self._is_locating = False
        return smallest

    def _play(self, check: Check, case: Any, token: Any = None) -> list[Fault]:
        """Run a check on a case.

        The token stands for the case in a command that replays it. None means the case itself.
        """
        stage = attrs.evolve(
            self._stage(case), coverage=self._coverage, token=case if token is None else token
        )
        self._playing = stage
        is_cleaned = check.name == "every_module.cleans_up"
        # Collect the garbage of earlier steps.
        if is_cleaned:
            gc.collect()
        with (
            _deterministic_order(self._backend, self._job.seed),
            dropped_objects() as (unawaited, unclosed),
        ):
            run = anyio.run if check.real_time else run_virtually
            run(check.run, stage, backend=self._backend)
            if is_cleaned:
                gc.collect()
        # Leftovers of cancelled calls are checked in other ways.
        if check.kind == "behaviour" or is_cleaned:
            self._report_unawaited(stage, unawaited)
        if is_cleaned and unclosed and self._job.covers(check, "A23"):
            text, lines = unclosed[0]
            own = [
                self._loaded.target.location_at(*line)
                for line in lines
                if self._loaded.target.owns(line[0])
            ]
            stage.fault(
                "A23",
                f"{text}: it was left to the garbage collector",
                location=own[0] if own else None,
            )
        for note in stage.notes:
            self._emit({"note": note})
        self._send_faults()
        return _with_input(stage, check.inputs)

    def _report_unawaited(
        self, stage: CheckContext, unawaited: list[tuple[str, list[tuple[str, int]]]]
    ) -> None:
        """Report the first coroutine that a line of the module has created and not awaited."""
        target = self._loaded.target
        for text, lines in unawaited if not self._job.only or "A14" in self._job.only else ():
            own = [target.location_at(file, line) for file, line in lines if target.owns(file)]
            if own:
                stage.fault(
                    "A14",
                    f"the {text}",
                    location=own[-1],
                    hint="Await it, or start it in a task group.",
                )
                return

    def _stage(self, case: Any) -> CheckContext:
        return CheckContext(
            loaded=self._loaded,
            backend=self._backend,
            seed=self._job.seed,
            points=self._points,
            case=case,
            abort=lambda fault: self._abandon(self.step, fault),
            before_call=self._send_faults,
            locates=self._is_locating,
        )


_QUOTED = re.compile(r"(['\"]).*?\1")
_PLAIN_WORD = re.compile(r"[A-Za-z_]{3,}")
_GIST_WORDS = 4


def _gist(what: str) -> list[str]:
    """Return the first words of a fault without values, which are the same in a smaller case."""
    return _PLAIN_WORD.findall(_QUOTED.sub("", what))[:_GIST_WORDS]


def exit_in(error: BaseException) -> BaseException | None:
    """Return an error if it is an exit, the exit in a group of errors, or None if there is none."""
    if isinstance(error, BaseExceptionGroup):
        exits = (exit_in(member) for member in error.exceptions)
        return next((inner for inner in exits if inner is not None), None)
    return error if isinstance(error, (SystemExit, KeyboardInterrupt)) else None


def _with_input(stage: CheckContext, inputs: str | None) -> list[Fault]:
    """Return the faults of a check, each with its input. The case is the input if there is none."""
    faults = []
    for fault in stage.faults:
        is_case = fault.input is None or fault.input is stage.case
        shown = in_words(inputs, stage.case) if is_case else fault.input
        faults.append(
            attrs.evolve(fault, input=without_service(shown), case=without_service(stage.token))
        )
    return faults


async def _use(stage: CheckContext) -> None:
    async with stage.mount() as mounted:
        if stage.loaded.module_type == "tool":
            schemas = json.dumps(
                [schema_of(tool) for tool in mounted.instances.values()], default=repr
            ).lower()
            if any(f'"{word}' in schemas for word in ("url", "uri")):
                use_address(f"{service_address()}/page")
        await run_typical_operations(mounted)


async def _gather_facts(stage: CheckContext) -> dict[str, Any]:
    """Return facts for the strategies as JSON values: schemas, handlers and words of the source."""
    target = stage.loaded.target
    facts: dict[str, Any] = {
        "words": inputs_in(target),
        "texts": texts_in(target),
        "choices": choices_in(target),
        "triggers": list(stage.loaded.triggers),
        "sought": sought_texts(stage.loaded) if stage.loaded.module_type == "tool" else [],
        "tools": {},
        "handlers": [],
    }
    try:
        async with stage.mount() as scene:
            if stage.loaded.module_type == "tool":
                facts["tools"] = {name: schema_of(tool) for name, tool in scene.instances.items()}
            facts["handlers"] = [[entry.name, entry.event] for entry in scene.registrations]
    except MountFailed:
        return facts
    return facts


if __name__ == "__main__":
    sys.exit(main())
