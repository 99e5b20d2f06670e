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
    return Bug(
        name, f"kernel/{file}", old, new, "lifecycle", {"backend": backend, "first": 0, "count": 60}
    )


def _call(
    name: str, file: str, old: str, new: str, boundary: str, loop: str = "loop-basic", step: int = 1
) -> Bug:
    arguments = {"backend": "trio", "loop": loop, "step": step, "boundary": boundary}
    return Bug(name, file, old, new, "foreign-calls", arguments)


def _hole(name: str, file: str, old: str, new: str, test: str, match: str) -> Bug:
    return Bug(name, file, old, new, "holes", {"test": test, "match": match})


_OWN_FILES = "modules/tools/test_tool_bash_own_files.py"
_GUARDS = "durable/test_guards.py"
_CTRL_C = "kernel/sweeps/test_interrupts.py"

BUGS: Final = (
    # ── hooks ──
    _call(
        "a gate that fails lets the event pass",
        "kernel/hooks/dispatch.py",
        '        if not registration.is_gate:\n            return False\n        reason = f"gate',
        '        if registration.name:\n            return False\n        reason = f"gate',
        "hook.gate",
    ),
    _walk(
        "handlers go on after a denial",
        "hooks/merge.py",
        "                self._deny(result, is_partial)\n                return True",
        "                self._deny(result, is_partial)\n                return False",
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
        "a new handler for every event is not seen by known events",
        "hooks/registry.py",
        "            self._ready.clear()",
        "            self._ready.pop(event, None)",
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
    # ── closing ──
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
        "a cancel callback has no deadline",
        "kernel/runtime/cancellation.py",
        "await run_bounded(answer, seconds, label, self._watch)",
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
        "coordinator/ownership.py",
        "                if value is not None:",
        "                if value != 0:",
    ),
    _call(
        "a failing contributor ends the collection",
        "kernel/coordinator/ownership.py",
        '                logger.warning("%s failed: %s", contributor, failure, exc_info=failure)\n',
        "                raise\n",
        "contributor",
    ),
    # ── opening and turns ──
    _walk(
        "a stopped turn counts as completed",
        "session/turn.py",
        '        self._status.status = "cancelled" if token.is_cancelled else "completed"',
        '        self._status.status = "completed"',
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
        "modules/loop/_messages.py",
        "    if isinstance(messages, list):",
        "    if isinstance(messages, object):",
        "context.get_messages",
    ),
    _call(
        "a chunk of a wrong type is not named",
        "modules/loop/_provider_caller.py",
        "                if kind is None:\n",
        "                if kind is False:\n",
        "provider.stream, first piece",
        "loop-streaming",
    ),
    Bug(
        "tool calls start in a random order",
        "modules/loop/_containment.py",
        "                for call in calls:\n",
        '                for call in sorted(calls, key=lambda _: __import__("os").urandom(4)):\n',
        "same-seed",
        {"backend": "asyncio", "first": 0, "count": 15},
    ),
    Bug(
        "memory shows a message that the disk refused",
        "modules/context/persistent.py",
        "        await self._in_thread(on_disk)\n        in_memory()\n",
        "        in_memory()\n        await self._in_thread(on_disk)\n",
        "crash-images",
        {"kind": "limits", "step": 7000, "backend": "trio"},
    ),
    Bug(
        "a damaged log is taken for one that was cut",
        "store/_database.py",
        "        if lost := find_lost_transactions(log):\n",
        "        if (lost := find_lost_transactions(log)) < 0:\n",
        "crash-images",
        {"kind": "hole", "step": 9001},
    ),
    Bug(
        "a message is acknowledged before it is written",
        "store/_conversations.py",
        "        self._change(work)\n        self._length += len(texts)\n",
        '        __import__("threading").Timer(0.002, self._change, (work,)).start()\n        self._length += len(texts)\n',
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
    # ── holes: the sandbox ──
    _hole(
        "the interpreter in the workspace is not read-only in bubblewrap",
        "modules/tools/bash/_sandbox_paths.py",
        "        own = {*map(_real, own_folders()), *self._helpers, *own_places()}\n",
        "        own = set[str]()\n",
        _OWN_FILES,
        "helper_below_writable_folder",
    ),
    _hole(
        "a command plants a program in a folder of the search path",
        "modules/tools/bash/_protected_paths.py",
        "*_own_code(), *search_folders()])",
        "*_own_code()])",
        _OWN_FILES,
        "plants_no_program",
    ),
    _hole(
        "a plan lets commands change a folder of the search path",
        "modules/tools/bash/_sandbox_paths.py",
        "        for folder in self._changeable:\n            check_search_path(folder)\n",
        "",
        _OWN_FILES,
        "search_path_folder_cannot_be_writable",
    ),
    _hole(
        "of the package only a part is read-only",
        "_internal/programs.py",
        "PACKAGE = str(Path(__file__).parents[1])",
        'PACKAGE = str(Path(__file__).parents[1] / "modules")',
        _OWN_FILES,
        "installed_in_place",
    ),
    _hole(
        "another session may redirect the working directory",
        "modules/tools/bash/_sandbox_paths.py",
        "self._workspaces.get(directory, workspace)) != workspace:",
        "workspace) != workspace:",
        _OWN_FILES,
        "redirected_working_directory",
    ),
    _hole(
        "what is mounted is not compared with what was checked",
        "_internal/supervisor.py",
        "if path not in points or _identity(path) != identity",
        "if path not in points",
        _OWN_FILES,
        "redirected_during_setup",
    ),
    _hole(
        "helpers are taken from any entry of the search path",
        "_internal/programs.py",
        "    return shutil.which(name, path=safe_search_path(path, avoid=avoid))",
        "    return shutil.which(name, path=path)",
        _OWN_FILES,
        "current_folder_programs",
    ),
    _hole(
        "a second Python imports from the current folder",
        "_internal/programs.py",
        '    return [sys.executable, "-P", *arguments]',
        "    return [sys.executable, *arguments]",
        _OWN_FILES,
        "command_line_executes_nothing",
    ),
    _hole(
        "a writable folder that became a link is followed",
        "modules/tools/bash/_sandbox_paths.py",
        "            if os.path.realpath(folder) != folder:\n",
        "            if not folder:\n",
        _OWN_FILES,
        "writable_folder_turned_link",
    ),
    _hole(
        "a working directory behind a planted link is followed",
        "modules/tools/bash/_sandbox_paths.py",
        "            if any(is_below(link, folder) for folder in self._changeable):\n",
        "            if not link:\n",
        _OWN_FILES,
        "working_directory_behind_link",
    ),
    _hole(
        "hooks of git can be written",
        "modules/tools/bash/_sandbox_paths.py",
        "        mounted = listed[:_MAX_MOUNTS]\n",
        "        mounted = listed[:0]\n",
        _OWN_FILES,
        "repository_and_configuration_are_read_only",
    ),
    _hole(
        "system calls are not filtered",
        "_internal/supervisor.py",
        '"--seccomp", str(described_filter), "--"]',
        '"--"]',
        _OWN_FILES,
        "escaping_system_calls",
    ),
    # ── holes: guards ──
    _hole(
        "a schema leads to another document",
        "_internal/json/_schema_validator.py",
        "_Measured(schema)\n    try:\n        validator = jsonschema_rs.validator_for(\n"
        "            schema, retriever=_refuse,",
        "_Measured({})\n    try:\n        validator = jsonschema_rs.validator_for(\n"
        "            schema,",
        "internal/test_schema_validator.py",
        "nothing_is_fetched",
    ),
    _hole(
        "a schema may have any size",
        "_internal/json/_schema_validator.py",
        "_MAX_PARTS = 200_000",
        "_MAX_PARTS = 10**30",
        "internal/test_schema_validator.py",
        "beyond_limit",
    ),
    _hole(
        "a rule about a built-in tool allows another module's",
        "modules/hooks/_approval_rules.py",
        '            if self.action == "allow" and call.is_stand_in:',
        '            if self.action == "none" and call.is_stand_in:',
        "modules/tools/mcp/test_names.py",
        "test_",
    ),
    _hole(
        "a server takes the name of a mounted tool",
        "modules/tools/mcp/_tools.py",
        "        if not self._is_ours(name):\n            return",
        "        if name not in self._mounted:\n            return None\n        if not self._is_ours(name):\n            return",
        "modules/tools/mcp/test_names.py",
        "never_has_name",
    ),
    _hole(
        "every notice of a change is a request of its own",
        "modules/tools/mcp/_connection.py",
        "                attempt.changed.set()\n",
        "                await self._refresh(attempt.client)  # type: ignore[arg-type]\n",
        "modules/tools/mcp/test_hostile_results.py",
        "flood",
    ),
    _hole(
        "blank characters of a question are shown as they are",
        "_internal/json/_text.py",
        "character.isprintable() and character not in _BLANK and",
        "character.isprintable() and",
        "modules/hooks/test_hooks_approval_attacks.py",
        "terminal_escapes_never_reach",
    ),
    _hole(
        "tokens without a name stay",
        "_internal/json/redaction.py",
        "    return _redact_tokens(text) if len(text) >= _RUN else text",
        "    return text",
        "modules/hooks/test_redaction_shapes.py",
        "recall_of_tokens_of_unknown_services",
    ),
    _hole(
        "what is beside a secret's word has to be random by itself",
        "_internal/json/redaction.py",
        "        return begin if _may_be_random(text[start:end]) and _suggest_secret(before[-2:]) else None",
        "        return None",
        "modules/hooks/test_redaction_shapes.py",
        "right_after",
    ),
    _hole(
        "without a terminal a question is denied and the turn is over",
        "cli/agent/approvals.py",
        "            keeps_turn=True,\n",
        "",
        "cli/test_run.py",
        "without_terminal",
    ),
    # ── holes: durable turns ──
    _hole(
        "one consent permits every repeat",
        "durable/_running_turn.py",
        "        parts = [recorded, prompt, options, begun] if begun else [recorded, prompt, options]",
        "        parts = [recorded, prompt, options]",
        _GUARDS,
        "consent_permits_one_repeat and local",
    ),
    _hole(
        "a worker that was suspended judges the others at once",
        "durable/_worker.py",
        "            self._seen = {}\n        self._looked",
        "            self._seen = {name: (count, _LOOKS) for name, (count, _) in self._seen.items()}\n        self._looked",
        "durable/test_suspended_workers.py",
        "does_not_judge and local",
    ),
    _hole(
        "a turn may kill its workers without end",
        "durable/_suspects.py",
        "        return range((self.attempts + 1) // 2, self.attempts)",
        "        return range(0)",
        _GUARDS,
        "suspect",
    ),
    # ── holes: the kernel ──
    _hole(
        "handlers of a module that asks for the hooks have no owner",
        "kernel/coordinator/coordinator.py",
        '            if mount_point == "hooks" and self._owner is not None:',
        '            if mount_point == "hook" and self._owner is not None:',
        "kernel/coordinator/test_module_view.py",
        "handlers_belong_to_registering_module",
    ),
    _hole(
        "an approval may wait for ever",
        "kernel/hooks/merge.py",
        "    try:\n        check_timeout(seconds)\n    except (TypeError, ValueError) as problem:",
        "    try:\n        float(str(seconds))\n    except (TypeError, ValueError) as problem:",
        "kernel/hooks/test_approvals.py",
        "wrong_timeout",
    ),
    # ── the kernel: changes that a maintainer might make ──
    _hole(
        "a shielded child is waited for without a shield",
        "kernel/runtime/child.py",
        "                with cancel_scope(shield=True) if shield else _NO_SCOPE:\n                    async with",
        "                with _NO_SCOPE:\n                    async with",
        "kernel/runtime/test_child.py",
        "result_of_shielded_child",
    ),
    _hole(
        "a shielded child is cancelled with its caller",
        "kernel/runtime/child.py",
        "        with cancel_scope(shield=True) if shield else _NO_SCOPE:\n            outcome",
        "        with _NO_SCOPE:\n            outcome",
        "kernel/runtime/test_child.py",
        "native_cancels_wait_for_shielded",
    ),
    _hole(
        "the error of the work is lost beside a native cancel",
        "kernel/runtime/child.py",
        "            raise stop from outcome.error",
        "            raise stop",
        "kernel/runtime/test_child.py",
        "native_cancels_wait_for_shielded",
    ),
    _hole(
        "trio doesn't interrupt a caller whose work has swallowed it",
        "kernel/runtime/child.py",
        "            await anyio.lowlevel.checkpoint_if_cancelled()",
        "            pass",
        "kernel/runtime/test_child.py",
        "swallowed_cancellation",
    ),
    _hole(
        "a finished child keeps its outcome",
        "kernel/runtime/child.py",
        "        del outcome, stop",
        "        del stop",
        "kernel/runtime/test_child.py",
        "keeps_nothing_alive",
    ),
    _hole(
        "a native cancel is taken for that of a scope",
        "kernel/runtime/child.py",
        " > 1 or not is_from_scope",
        " > 1",
        "kernel/runtime/test_child.py",
        "beside_scope",
    ),
    _hole(
        "cleanups run in the order of registration",
        "kernel/runtime/cleanup.py",
        "            for entry in reversed(self._entries.values())",
        "            for entry in self._entries.values()",
        "kernel/runtime/test_cleanup_stack.py",
        "runs_once_per_owner",
    ),
    _hole(
        "a slow cleanup takes the time of the others",
        "kernel/runtime/cleanup.py",
        "reserve = budget.reserve(MIN_SHARE * full_share, len(known))",
        "reserve = 0.0",
        "kernel/runtime/test_cleanup_stack.py",
        "share_short_time",
    ),
    _hole(
        "a cleanup has its own deadline only",
        "kernel/runtime/cleanup.py",
        "share = budget.share(seconds, len(known) + 1, reserve)",
        "share = seconds",
        "kernel/runtime/test_cleanup_stack.py",
        "share_short_time",
    ),
    _hole(
        "cleanups that register cleanups never end",
        "kernel/runtime/cleanup.py",
        "                if entry in known or not budget.is_used_up:",
        "                if entry:",
        "kernel/runtime/test_cleanup_stack.py",
        "steps_adding_steps",
    ),
    _hole(
        "the end is announced before the stop",
        "kernel/session/closing.py",
        "[self._announce_requests, self._announce_end]",
        "[self._announce_end, self._announce_requests]",
        "kernel/session/test_turn.py",
        "request_before_closing",
    ),
    _hole(
        "cleanups that observers of failures register never run",
        "kernel/session/closing.py",
        "so `_unwind` runs again.\n            self._unwind,\n",
        "so `_unwind` runs again.\n",
        "kernel/session/test_closing.py",
        "registered_while_closing",
    ),
    _hole(
        "the children of a closed session run on",
        "kernel/session/closing.py",
        '        coordinator.cancellation.stop_children("the session it was forked from was closed")\n',
        "",
        "kernel/session/test_closing.py",
        "turn_of_child",
    ),
    _hole(
        "a parent keeps its closed children",
        "kernel/session/closing.py",
        "            self._parent.unregister_child(self._coordinator.cancellation)",
        "            pass",
        "kernel/session/test_session.py",
        "parent_stop_reaches",
    ),
    _hole(
        "a closing session still takes work",
        "kernel/session/closing.py",
        "        self._coordinator.refuse_work()\n",
        "",
        "kernel/runtime/test_task_host.py",
        "work_after_cleanup",
    ),
    _hole(
        "the closing isn't shielded",
        "kernel/session/session.py",
        "            await run_in_child(closing.close, name=name, shield=True)",
        "            await run_in_child(closing.close, name=name)",
        "kernel/session/test_stops_of_the_process.py",
        "single_ctrl_c",
    ),
    _hole(
        "a turn that overran without an await is in time",
        "kernel/session/turn.py",
        "        overran = scope.deadline != math.inf and current_time() >= scope.deadline",
        "        overran = False",
        "kernel/session/test_turn.py",
        "turn_timeout_precedes",
    ),
    _hole(
        "terminal events aren't shielded",
        "kernel/hooks/registry.py",
        "            with cancel_scope(shield=True):\n                result",
        "            with cancel_scope():\n                result",
        "kernel/hooks/test_dispatch.py",
        "waits_for_terminal",
    ),
    _hole(
        "terminal events have no limit",
        "kernel/hooks/registry.py",
        "        limit = TERMINAL_SECONDS if is_terminal else None",
        "        limit = None",
        "kernel/hooks/test_dispatch.py",
        "share_five_seconds",
    ),
    _hole(
        "only the first handler of a dispatch has a deadline",
        "kernel/hooks/dispatch.py",
        "                        deadline.arm(registration.seconds, now, answer)\n",
        "                        if deadline.scope is None:\n                            deadline.arm(registration.seconds, now, answer)\n",
        "kernel/hooks/test_dispatch.py",
        "late_handler_is_blamed",
    ),
    _hole(
        "a call that refuses is reported every second",
        "kernel/runtime/watchdog.py",
        "min(interval * 2, MAX_INTERVAL)",
        "min(interval, MAX_INTERVAL)",
        "kernel/runtime/test_watchdog.py",
        "growing_intervals",
    ),
    _hole(
        "calls in flight keep their time while the session closes",
        "kernel/coordinator/coordinator.py",
        "            self.watch.tighten(now + min(TERMINAL_SECONDS, teardown / 2))\n",
        "",
        "kernel/session/test_closing.py",
        "call_in_flight",
    ),
    _hole(
        "a structured module is left after the cleanups it registered",
        "kernel/runtime/task_host.py",
        "        self.cleanups.move_up(entry)\n        return task",
        "        return task",
        "kernel/runtime/test_task_host.py",
        "leaves_before_cleanups",
    ),
    _hole(
        "an interrupt in an abandoned text is kept",
        "kernel/session/stream.py",
        "            self._hand_over_interrupt()\n        finally:",
        "        finally:",
        "kernel/session/test_reentry.py",
        "abandoned_text_ends",
    ),
    _hole(
        "cancel callbacks are cancelled with their turn",
        "kernel/runtime/cancellation.py",
        "            with cancel_scope(shield=True):\n                for callback",
        "            with cancel_scope():\n                for callback",
        "kernel/runtime/test_cancellation.py",
        "under_cancelled_caller",
    ),
    _hole(
        "the grace of a turn reaches the next one",
        "kernel/runtime/cancellation.py",
        "        self._scope = None\n        self._end_grace()",
        "        self._scope = None",
        "kernel/session/test_turn.py",
        "grace_ends",
    ),
    _hole(
        "a module that failed to mount isn't undone",
        "kernel/session/opening.py",
        "            await coordinator.undo(owner)\n",
        "",
        "kernel/session/test_opening.py",
        "failed_instance",
    ),
    _hole(
        "a plan that changed before the opening isn't read again",
        "kernel/session/opening.py",
        "            parts.append(object())\n",
        "            parts.append(value)\n",
        "kernel/session/test_opening.py",
        "another_container",
    ),
    _hole(
        "a task of an earlier turn is taken for a part of this one",
        "kernel/session/session.py",
        "lifecycle.turn.mark in inside_turns.get()",
        "inside_turns.get()",
        "kernel/session/test_reentry.py",
        "earlier_turn",
    ),
    _hole(
        "an interrupted handler keeps the others running",
        "kernel/hooks/dispatch.py",
        "            interrupts.append(interrupt)\n            group.cancel_scope.cancel()",
        "            interrupts.append(interrupt)",
        "kernel/hooks/test_registry.py",
        "collected_handler_propagates",
    ),
)
