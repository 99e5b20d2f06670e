"""Checks of tools: members and schema, results for valid and invalid inputs."""

from __future__ import annotations

import re
from typing import Any

from amplifier.conformance.harness.calls.outcome import binding_error
from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import CheckContext, MountedModule
from amplifier.conformance.harness.resources.private_directories import CANARY
from amplifier.conformance.harness.typical_use import schema_of
from amplifier.conformance.harness.work_budget import Budget
from amplifier.conformance.inputs.json_schema import schema_problem
from amplifier.conformance.inputs.tool_inputs import near_misses, sample_inputs, valid_inputs
from amplifier.conformance.target.source_literals import choices_in, inputs_in
from amplifier.contracts import tool_schema
from amplifier.errors import ContractError

from .call_series import ToolCallSeries

_TOOL = ("tool",)
_SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST_NAME = 64
_CALLS = 2_000
"""The budget of the listed inputs in the quick profile."""


@check("T1", "T2", "T3", "T14", kind="structure", types=_TOOL)
async def is_a_tool(ctx: CheckContext) -> None:
    """Reads name and description of the mounted tool, and calls execute with an empty input."""
    async with ctx.mount() as mounted:
        for at, tool in mounted.instances.items():
            name = await _read(mounted, tool, "name", "T2")
            await _read(mounted, tool, "description", "T3")
            if isinstance(name, str) and name.strip():
                is_good = _SNAKE_CASE.fullmatch(name) and len(name) <= _LONGEST_NAME
                ctx.expect(is_good, "T14", f"the name is {name!r}; expected snake_case, at most {_LONGEST_NAME} long")
            await _check_execute(mounted, at, tool)


async def _read(mounted: MountedModule, tool: Any, member: str, clause: str) -> Any:
    ctx = mounted.ctx
    first, again = [await mounted.call(getattr, tool, member) for _ in range(2)]
    if not first.returned and not hasattr(type(tool), member) and member not in getattr(tool, "__dict__", {}):
        ctx.fault("T1", f"the tool has no {member}")
        return None
    if not first.returned or not again.returned:
        ctx.fault(clause, f"reading the {member} {first if not first.returned else again}", error=first.error)
        return None
    value = first.value
    if not isinstance(value, str):
        hint = "; is it a method without @property?" if callable(value) else ""
        ctx.fault(clause, f"the {member} is of type {type(value).__name__}, expected a string{hint}")
    elif not value.strip():
        ctx.fault(clause, f"the {member} is empty")
    elif value != again.value:
        ctx.fault(clause, f"the {member} was {value!r} and then {again.value!r}")
    return value


async def _check_execute(mounted: MountedModule, at: str, tool: Any) -> None:
    execute = getattr(tool, "execute", None)
    if not callable(execute):
        mounted.ctx.fault("T1", f"the tool {at!r} has no execute")
        return
    problem = binding_error(execute, {})
    if problem is not None:
        mounted.ctx.fault("T1", f"execute cannot be called as execute(input): {problem}")
        return
    outcome = await mounted.call(execute, {})
    what = "execute is not async: it returned something that cannot be awaited"
    mounted.ctx.expect(outcome.is_async is not False, "T1", what)


@check("T7", "T11", kind="structure", types=_TOOL)
async def describes_its_input(ctx: CheckContext) -> None:
    """Reads the schema twice and validates it against the meta-schema of JSON Schema."""
    async with ctx.mount() as mounted:
        for at, tool in mounted.instances.items():
            try:
                schema = tool_schema(tool)
            except ContractError as error:
                ctx.fault("T7", str(error), error=error.__cause__)
                continue
            if schema is None:
                ctx.fault("T11", f"the tool {at!r} gives no schema of its input")
                continue
            problem = schema_problem(schema)
            if problem is not None:
                ctx.fault("T7", f"the schema of {at!r} is not a valid JSON Schema of an object: {problem}")
            elif schema != schema_of(tool):
                ctx.fault("T7", f"the schema of {at!r} is another one every time it is read")


@check(
    "T2", "T3", "T5", "T6", "T7", "T9", "T10", "T12", "T13", "T15",
    kind="behaviour", types=_TOOL, needs_success=("T9", "T10"),
)  # fmt: skip
async def answers_listed_inputs(ctx: CheckContext) -> None:
    """Calls it with all that its schema names, and with inputs that have one defect each."""
    target = ctx.loaded.target
    words, choices = inputs_in(target), choices_in(target)
    async with ctx.mount() as mounted:
        schemas = {at: schema_of(tool) for at, tool in mounted.instances.items()}
    for at, schema in schemas.items():
        valid = valid_inputs(schema, CANARY, choices)
        samples = sample_inputs(schema, CANARY, words=words, choices=choices)
        bases = [*samples[1:2], *samples[:1], *samples[2:]]  # the fullest first
        await ToolCallSeries(ctx, at, Budget(ctx, _CALLS / len(schemas))).run(
            [*valid[:20], *near_misses(schema, bases, words, choices), *valid[20:]]
        )


@check("T5", "T6", "T9", "T10", "T15", kind="behaviour", types=_TOOL, inputs="tool_inputs", needs_success=("T9", "T10"))
async def answers_drawn_inputs(ctx: CheckContext) -> None:
    """Calls it with drawn inputs: valid by its schema, almost valid, and any JSON object."""
    at, inputs = ctx.case["tool"], ctx.case["inputs"]
    await ToolCallSeries(ctx, at, is_drawn=True).run(inputs)
