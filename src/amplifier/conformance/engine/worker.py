"""The process in which a module is run: reads a job, runs one check after another, and writes messages, one JSON line each, to standard output.

The module cannot harm the controller: what it prints is discarded, a call that cannot be stopped ends this process, and
the controller starts another one for the remaining steps. A step is one check. Cases are listed and drawn, and failing ones shrunk by way of Hypothesis:
for every clause that drawn cases break the smallest one is looked for. The same seed draws the same cases. Started as
``python -m amplifier.conformance.engine.worker``; needs the ``testing`` extra.
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

_ALIVE_INTERVAL = 1.0
_STEP_SECONDS = {"quick": 25.0, "thorough": 400.0}
"""What one step may take, not counting the time in which there was no processor for this process."""


def main() -> int:
    """Do the job on standard input."""
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
    except BaseException as error:  # noqa: BLE001 — third-party code: importing may raise anything, exit included
        what = advise_on_alias(f"it cannot be imported: {type(error).__name__}: {error}", error)
        # Our own error is about an entry point that leads nowhere, for which the clause has the advice.
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
        watched = (runner, emit, job, get_native_id())
        threading.Thread(
            target=_watch, args=watched, name=f"{KIT_THREAD} watch", daemon=True
        ).start()
        runner.run()
    emit({"end": True})
    return 0


async def _load(job: Job) -> LoadedTarget:
    """Import the module as the kernel does, while an event loop runs: a module that runs one of its own fails here, at that line."""
    return load(job.target, job.config, job.plan)


def _watch(runner: Runner, emit: Emit, job: Job, main_thread: int) -> None:
    """End the process when a step, or all of them, take longer than they may: a last resort, for checks count calls."""
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
    """Keep standard output for messages; what the module prints is discarded."""
    kept = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return os.fdopen(kept, "wb")


# ── drawn cases ──

Play = Callable[[Any], list[Fault]]

CALLS = 4_000
"""The calls of the module in all cases of the quick profile; only one that starts processes reaches it."""
SHRINKING = 150
"""Cases tried at most in making one smaller."""
SHRINKING_LISTED = 50
"""Cases tried at most in making one smaller without Hypothesis, for each broken clause."""
SHRINKING_CALLS = 3_000
"""The calls of the module in these cases."""
SHRINKING_SECONDS = 2.0
"""Seconds of work in these cases, shared by the clauses that a step finds broken."""


def explore(
    cases: SearchStrategy[Any],
    play: Play,
    ctx: CheckContext,
    *,
    examples: int,
    known: Set[str] = frozenset(),
) -> list[Fault]:
    """Play many drawn cases; return the fault of the smallest failing one for each clause that was broken and not known to be."""
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
        found = [fault for fault in play(case) if fault.clause == clause]
        best = found or best
        return bool(found)

    # An error of Hypothesis: the module does not do the same every time.
    with suppress(HypothesisException, _Enough):
        quiet = quiet_settings(examples + SHRINKING, Phase.generate, Phase.shrink)
        find(cases, breaks, settings=quiet, random=random.Random(ctx.seed))
    return best[0] if best else None


Emit = Callable[[dict[str, Any]], None]

PROFILES = {"quick": (20, 24), "thorough": (150, 400)}
"""How many cases a check draws, and how many suspension points of a call are tried."""
_MOST_TRIGGERS = 60
_DYNAMIC_KINDS = ("structure", "behaviour", "cancellation", "hygiene")


@contextmanager
def _deterministic_order(backend: str, seed: int) -> Iterator[None]:
    """Let everything happen in the same order each time: trio would shuffle its tasks, and programs draw at random."""
    random.seed(seed)
    if backend != "trio":
        yield
        return
    from amplifier.testing.cancel_sweep.trio_trial import deterministic_scheduling  # noqa: PLC0415 — it imports trio

    with deterministic_scheduling(seed):
        yield


class Runner:
    """The checks of one job, on its one backend.

    Args:
        loaded: The module.
        job: What to do.
        emit: Sends a message to the controller.
        abandon: Sends a fault of a step and ends the process, when a call of the module cannot be stopped.

    Attributes:
        step: The name of the check that runs.
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
        """What there is to do, in order."""
        chosen = [
            check
            for check in checks_for(self._loaded.module_type, _DYNAMIC_KINDS)
            if self._backend in self._loaded.backends
            and self._job.selects(check)
            and check.name not in self._job.skip
        ]
        return sorted(chosen, key=lambda check: not check.ends_run)

    def run(self) -> None:
        """Do every step and send what is found."""
        for number, check in enumerate(self.steps()):
            self.step = check.name
            self._emit({"start": check.name})
            started = worked_time()
            if number == 0:
                self._guess_config()
            if not check.ends_run:
                self._choose_inputs()
            self._state.restore()  # what one step changed, another must not take for given
            self._coverage = StepCoverage(backends=[self._backend])
            self._playing, self._sent = None, set()
            try:
                for fault in reversed(
                    self._explore(check)
                ):  # of several against one clause the last that is sent counts
                    self._send(fault)
            except MountFailed as failed:
                self._send_faults()
                self._emit({"unmounted": str(failed), "step": check.name})
            except BaseException as error:  # noqa: BLE001 — a check that fails itself shows nothing about the module
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
        """Return the first clause that the case played last has found broken."""
        faults = [] if self._playing is None else self._playing.faults
        return faults[0].clause if faults else None

    def _send(self, fault: Fault) -> None:
        self._emit({"fault": attrs.asdict(fault), "step": self.step})

    def _send_faults(self) -> None:
        """Send what the step has found so far, each clause once: it may not come to its end. What it makes of it then takes its place."""
        if self._playing is None or self._is_shrinking:
            return  # a smaller case may be none that a session could have
        for fault in _with_input(self._playing, CHECKS[self.step].inputs):
            if fault.clause not in self._sent:
                self._sent.add(fault.clause)
                self._send(fault)

    def _exit_fault(self, error: BaseException) -> Fault:
        """The fault of a module that raised an exit in a task of its own, which asyncio lets out of the loop."""
        what = f"it raised {type(error).__name__}, which ends the process that runs it; a module must not do that"
        location = self._loaded.target.location_of(error)
        return Fault(clause="A17", what=what, location=location, hint=ENDS_PROCESS_HINT)

    def _run(self, function: Callable[[CheckContext], Any]) -> Any:
        return run_virtually(function, self._stage(None), backend=self._backend)

    def _guess_config(self) -> None:
        """Find the settings with which the module can be examined, what it looks for, and whether its calls start processes."""
        if self._loaded.module_type in ("hook", "tool", "provider"):
            patterns = patterns_in(self._loaded.target)
            found_texts = (text for pattern in patterns for text in texts_matching(pattern))
            triggers = tuple(dict.fromkeys(found_texts))[:_MOST_TRIGGERS]
            self._loaded = attrs.evolve(self._loaded, triggers=triggers)
        try:
            found = self._run(find_working_config)
        except BaseException:  # noqa: BLE001 — third-party code; the checks report what is wrong with it
            return
        guessed = {
            key: value for key, value in found.config.items() if key not in self._loaded.config
        }
        if guessed:
            self._emit({"note": f"mounted with settings guessed from its source: {guessed!r}"})
        self._loaded = found
        if self._job.has_hung:
            return  # perhaps in this
        before = started_processes()
        try:
            self._run(_use)
        except BaseException:  # noqa: BLE001 — as above
            return
        self._loaded = attrs.evolve(found, starts_processes=started_processes() > before)

    def _choose_inputs(self) -> None:
        """Choose inputs of tools, once; this makes many calls."""
        loaded = self._loaded
        if self._has_chosen or loaded.module_type != "tool" or self._job.has_hung:
            return
        self._has_chosen = True
        if not loaded.starts_processes:
            with suppress(Exception):  # third-party code; the checks report what is wrong with it
                chosen = self._run(choose_inputs)
                self._loaded = attrs.evolve(loaded, chosen_inputs=chosen)

    def _explore(self, check: Check) -> list[Fault]:
        """Run a check: once, once more with the replayed case, or on cases listed and drawn for it."""
        replayed = (
            None
            if self._job.replay is None
            else with_service(read_replay_token(self._job.replay)[1])
        )
        if check.inputs is None or (replayed is not None and "listed" not in replayed):
            return self._play(check, replayed)
        self._coverage.mount_attempted = True  # also if there is nothing to draw cases for
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
                found = self._play(check, candidate, token)
            except Exception:  # noqa: BLE001 — it is not a case of this check any more
                return False
            finally:
                self._is_shrinking = False
            alike = [each for each in found if each.clause == fault.clause]
            alike = [each for each in alike if _gist(each.what) == gist]
            smallest = alike[0] if alike else smallest
            return bool(alike)

        budget = self._stage(None).budget(SHRINKING_CALLS, seconds)
        smallest_case = shrunk(case, fails, budget, SHRINKING_LISTED)
        self._is_locating = True
        fails(smallest_case)
        self._is_locating = False
        return smallest

    def _play(self, check: Check, case: Any, token: Any = None) -> list[Fault]:
        """Run a check on a case; the token is what to write into a command that plays it again."""
        stage = attrs.evolve(
            self._stage(case), coverage=self._coverage, token=case if token is None else token
        )
        self._playing = stage
        is_cleaned = check.name == "every_module.cleans_up"
        if is_cleaned:
            gc.collect()  # what earlier steps have left
        with (
            _deterministic_order(self._backend, self._job.seed),
            dropped_objects() as (unawaited, unclosed),
        ):
            run = anyio.run if check.real_time else run_virtually
            run(check.run, stage, backend=self._backend)
            if is_cleaned:
                gc.collect()
        # What a cancelled call leaves is looked at in other ways.
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
    """Return the first words of a fault, without values: they are the same in a smaller case."""
    return _PLAIN_WORD.findall(_QUOTED.sub("", what))[:_GIST_WORDS]


def exit_in(error: BaseException) -> BaseException | None:
    """The exit that an error is, or that a group of errors holds; None if there is none."""
    if isinstance(error, BaseExceptionGroup):
        return next(
            (found for each in error.exceptions if (found := exit_in(each)) is not None), None
        )
    return error if isinstance(error, (SystemExit, KeyboardInterrupt)) else None


def _with_input(stage: CheckContext, inputs: str | None) -> list[Fault]:
    """Return the faults of a check, each with its input: the case, where there is no other."""
    faults = []
    for fault in stage.faults:
        is_case = fault.input is None or fault.input is stage.case
        given = in_words(inputs, stage.case) if is_case else fault.input
        faults.append(
            attrs.evolve(fault, input=without_service(given), case=without_service(stage.token))
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
    """What the strategies need to know of the module, as JSON values: its schemas, its handlers, words of its source."""
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
            facts["handlers"] = [[each.name, each.event] for each in scene.registrations]
    except MountFailed:
        return facts
    return facts


if __name__ == "__main__":
    sys.exit(main())
