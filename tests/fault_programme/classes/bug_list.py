"""The planted bugs: a small change of the sources each, and the quick setting of the class that claims to catch it."""

from __future__ import annotations

from typing import Any, Final

import attrs


@attrs.frozen
class Bug:
    """One planted bug.

    Args:
        name: What is wrong then.
        file: Below ``src/amplifier``.
        old: Text that is in the file exactly once.
        new: Its replacement.
        fault_class: The class that claims it.
        arguments: Of the chunk of that class which must fail.
    """

    name: str
    file: str
    old: str
    new: str
    fault_class: str
    arguments: dict[str, Any]


def _walk(name: str, file: str, old: str, new: str, *, backend: str = "trio") -> Bug:
    return Bug(name, f"kernel/{file}", old, new, "lifecycle", {"backend": backend, "first": 0, "count": 60})


def _call(name: str, file: str, old: str, new: str, boundary: str, loop: str = "loop-basic", step: int = 1) -> Bug:
    arguments = {"backend": "trio", "loop": loop, "step": step, "boundary": boundary}
    return Bug(name, file, old, new, "foreign-calls", arguments)


BUGS: Final = (
    # ── hooks ──
    _call(
        "a gate that fails lets the event pass",
        "kernel/hooks/dispatch.py",
        "        if not registration.is_gate:\n            return False",
        "        if registration.name:\n            return False",
        "hook.gate",
    ),
    _call(
        "a handler has no deadline",
        "kernel/hooks/dispatch.py",
        "series.arm(registration.seconds, now, answer)",
        "series.arm(None, now, answer)",
        "hook.observer",
        step=7,
    ),
    _call(
        "a failing handler of a collection ends the collection",
        "kernel/hooks/dispatch.py",
        "            _log_skipped(registration, exc, timeout)\n\n    async with",
        "            raise\n\n    async with",
        "hook.collected",
    ),
    _walk(
        "handlers go on after a denial",
        "hooks/merge.py",
        "                self._denial = self._own(result, is_partial)\n                return True",
        "                self._denial = self._own(result, is_partial)\n                return False",
    ),
    _walk(
        "a modification is reported as nothing",
        "hooks/merge.py",
        '        if self._modified:\n            action = "modify"',
        '        if self._modified:\n            action = "continue"',
    ),
    Bug(
        "handlers run in the order of registration",
        "kernel/hooks/registry.py",
        "    return registration.priority, registration.seq",
        "    return 0, registration.seq",
        "load",
        {"kind": "handlers", "backend": "trio", "share": 0.01},
    ),
    _walk(
        "handlers of one priority run in reverse",
        "hooks/registry.py",
        "    return registration.priority, registration.seq",
        "    return registration.priority, -registration.seq",
    ),
    _walk(
        "unregister removes the oldest of a name",
        "hooks/registry.py",
        "self.remove(max(candidates, key=lambda r: r.seq))",
        "self.remove(min(candidates, key=lambda r: r.seq))",
    ),
    _walk(
        "a new handler for every event is not seen by known events",
        "hooks/registry.py",
        "            self._ready.clear()",
        "            self._ready.pop(event, None)",
    ),
    _walk(
        "a removed handler stays in the list",
        "hooks/registry.py",
        "        handlers.remove(registration)\n",
        "",
    ),
    Bug(
        "an emit keeps its payload",
        "kernel/hooks/registry.py",
        "            result = await dispatch.run(handlers)",
        '            self.__dict__.setdefault("kept", []).append(dispatch.payload)\n'
        "            result = await dispatch.run(handlers)",
        "load",
        {"kind": "memory of emits", "backend": "trio", "share": 0.004},
    ),
    # ── approvals ──
    _call(
        "an approval system that fails allows",
        "kernel/hooks/approvals.py",
        'return Decision(False, f"Approval failed',
        'return Decision(True, f"Approval failed',
        "approval",
    ),
    _call(
        "an answer that is no text allows",
        "kernel/hooks/approvals.py",
        'answered %r instead of one of %r: denied", answer, options)\n            return Decision(False,',
        'answered %r instead of one of %r: denied", answer, options)\n            return Decision(True,',
        "approval",
    ),
    _call(
        "an approval has no deadline",
        "kernel/hooks/approvals.py",
        "await run_bounded(answer, gate.timeout,",
        "await run_bounded(answer, None,",
        "approval",
    ),
    _call(
        "an approval that is not answered in time allows",
        "kernel/hooks/approvals.py",
        'if gate.default == "allow":',
        'if gate.default != "allow":',
        "approval",
    ),
    # ── closing ──
    _walk(
        "cleanups run in the order of registration",
        "runtime/cleanup_stack.py",
        "for key, entry in reversed(self._entries.items()):",
        "for key, entry in self._entries.items():",
    ),
    _call(
        "a failing cleanup ends the closing",
        "kernel/runtime/cleanup_stack.py",
        "        return _judged(exc)\n    return None",
        "        raise\n    return None",
        "cleanup",
    ),
    _call(
        "a cleanup has no deadline",
        "kernel/runtime/cleanup_stack.py",
        "            await calls.run(answer, seconds, entry)",
        "            await answer",
        "cleanup",
    ),
    _walk(
        "a session that was closed without a turn stays running",
        "session/closing.py",
        '            self._status.status = "completed"',
        '            self._status.status = "running"',
    ),
    _walk(
        "a request to stop that met no turn is not announced",
        "session/closing.py",
        "        await self._announce(self._turns.announce_requests)  # of a stop that met no turn\n",
        "",
    ),
    # ── cancellation ──
    _walk(
        "a graceful stop does not reach the children",
        "runtime/cancellation.py",
        "            child.request_graceful(grace, reason=reason)",
        "            pass",
    ),
    _walk(
        "an immediate stop does not reach the children",
        "runtime/cancellation.py",
        "            child.request_immediate(reason=reason)",
        "            pass",
    ),
    _walk(
        "a child of a stopped session is not stopped",
        "runtime/cancellation.py",
        "            child.request_immediate(reason=self._reason)",
        "            pass",
    ),
    _walk(
        "reset does not reset",
        "runtime/cancellation.py",
        "        self._claims = {}\n        self._requests.clear()",
        "        self._requests.clear()",
    ),
    _walk(
        "a closed child stays registered",
        "runtime/cancellation.py",
        "        self._children = tuple(other for other in self._children if other is not child)",
        "        self._children = tuple(self._children)",
    ),
    _call(
        "a failing cancel callback keeps the others from running",
        "kernel/runtime/cancellation.py",
        '                logger.exception("cancel callback %s failed", _name_of(callback))',
        "                raise",
        "cancel callback",
    ),
    _call(
        "a cancel callback has no deadline",
        "kernel/runtime/cancellation.py",
        "await run_bounded(answer, seconds, callback, self._watch)",
        "await answer",
        "cancel callback",
    ),
    Bug(
        "an immediate stop does not cancel the turn",
        "kernel/runtime/cancellation.py",
        "            if self._scope is not None:\n                self._scope.cancel()",
        "            pass",
        "load",
        {"kind": "fork tree", "backend": "trio", "share": 0.05},
    ),
    # ── the coordinator ──
    _walk(
        "a contribution of None is collected",
        "coordinator/contributions.py",
        "                    if value is not None:",
        "                    if value != 0:",
    ),
    _call(
        "a failing contributor ends the collection",
        "kernel/coordinator/contributions.py",
        "                    _log_failure(contributor, series.judge(exc, is_armed=is_armed))",
        "                    raise",
        "contributor",
    ),
    _walk(
        "contributors of modules stay after the closing",
        "coordinator/contributions.py",
        "            self._ledger.enter(contributor, contributor)",
        "            pass",
    ),
    _walk(
        "what modules registered stays after the closing",
        "coordinator/ownership.py",
        "            entry.drop(key)",
        "            pass",
    ),
    _walk(
        "what a module covered does not come back",
        "coordinator/ownership.py",
        "next((value for owner, value in self.below if owner is None), EMPTY)",
        "EMPTY",
    ),
    # ── opening and turns ──
    _call(
        "a failing on_session_ready ends the session",
        "kernel/session/opening.py",
        "            problem = self._failed_to_get_ready(kind, spec, exc)",
        "            raise",
        "ready",
    ),
    _walk(
        "every turn starts the session",
        "session/turn.py",
        "        if not self._started:",
        "        if self._scope is not None:",
    ),
    _walk(
        "a stopped turn counts as completed",
        "session/turn.py",
        '        self._status.status = "cancelled" if token.is_cancelled else "completed"',
        '        self._status.status = "completed"',
    ),
    _walk(
        "a turn that overran is reported as stopped",
        "session/turn.py",
        "        overran = loop_clock()() >= scope.deadline",
        "        overran = False",
    ),
    _walk(
        "a failed turn keeps its status",
        "session/turn.py",
        '        self._status.status = "failed"\n',
        "",
    ),
    # ── what modules built on the kernel promise ──
    _call(
        "a context that returns no list is not named",
        "modules/_agent_loop/request_messages.py",
        "    if isinstance(messages, list):",
        "    if isinstance(messages, object):",
        "context.get_messages",
    ),
    _call(
        "a chunk of a wrong type is not named",
        "modules/_agent_loop/provider_caller.py",
        "                if kind is None:\n",
        "                if kind is False:\n",
        "provider.stream, first piece",
        "loop-streaming",
    ),
    Bug(
        "tool calls start in a random order",
        "modules/_agent_loop/containment.py",
        "                for call in calls:\n",
        '                for call in sorted(calls, key=lambda _: __import__("os").urandom(4)):\n',
        "same-seed",
        {"backend": "asyncio", "first": 0, "count": 15},
    ),
    Bug(
        "a short write loses the rest",
        "modules/context_persistent/_message_log.py",
        "    while left:\n        left = left[os.write(file, left) :]",
        "    os.write(file, left)",
        "crash-images",
        {"kind": "calls", "way": "short", "step": 1, "backend": "trio"},
    ),
    Bug(
        "a torn record is not cut before the next one",
        "modules/context_persistent/_message_log.py",
        "            os.ftruncate(file, self._size)\n            os.fsync(file)\n",
        "",
        "crash-images",
        {"kind": "conversation", "step": 50},
    ),
    Bug(
        "a message is acknowledged before it is written",
        "modules/context_persistent/_message_log.py",
        "            _write_all(file, data)\n            if sync:\n",
        '            __import__("threading").Timer(0.002, _write_all, (file, data)).start()\n            if sync:\n',
        "kills",
        {"kind": "mixed", "first": 0, "count": 12},
    ),
    Bug(
        "a control character in a YAML plan is no plan error",
        "cli/agent/plan_files.py",
        "    except yaml.YAMLError as error:",
        "    except yaml.scanner.ScannerError as error:",
        "hostile-inputs",
        {"kind": "plan files", "backend": "asyncio", "first": 0, "count": 150},
    ),
    Bug(
        "a run that was ended by a signal exits with 1",
        "cli/agent/agent_run.py",
        "            self.exit_code = 128 + ended_by",
        "            self.exit_code = 1",
        "signals",
        {"backend": "trio", "kind": "TERM", "moments": 2},
    ),
)
