"""The page of the mount plan, from its JSON Schema, and the schema as a file."""

from __future__ import annotations

import json
from typing import Any

from amplifier.plan import check_plan, expand_variables, merge_plans
from amplifier.plan.spec import MODULE_ID_RULE

from ._markdown import fill, page, read_doc, table
from ._plan_schema import plan_schema

EXAMPLE = """
{
  "session": {
    "orchestrator": {"module": "loop-streaming", "config": {"max_iterations": 20}},
    "context": "context-simple",
    "deadlines": {"hook": 30, "turn": 600}
  },
  "providers": [
    {"module": "provider-anthropic", "config": {"api_key": "${ANTHROPIC_API_KEY}"}},
    {"module": "provider-openai-compatible", "instance_id": "local", "config": {"base_url": "http://localhost:8000/v1"}}
  ],
  "tools": ["tool-todo", {"module": "tool-filesystem", "config": {"allowed_paths": ["."]}}],
  "hooks": [{"module": "hooks-approval", "on_failure": "deny"}]
}
"""

BESIDE = """
{
  "session": {"orchestrator": "loop-basic", "context": "context-simple"},
  "orchestrator": {"config": {"max_iterations": 20}}
}
"""

_PAGE = """
    A mount plan lists the modules of an agent and their config. It is a dict in Python; on the command line a file in YAML, TOML or
    JSON. The kernel reads it when a session is made, and once more when the session is opened, if it was changed in between.

    <example>

    All problems of a plan are reported at once in one [`PlanError`](errors.md#planerror), each with its path, such as
    `$.tools[0].module`. A misspelt section or key (`hoks`, `on_fail`) is a problem, with the name that was probably meant:
    ignoring it could mean an agent without its gate. A section or key that resembles none of these is ignored with a warning,
    because applications keep data of their own in plans; only `deadlines` takes no others. The contents of a module's `config`,
    of `metadata` and of `agents` are not examined, so they may hold live objects: clients, callables, queues. A
    module gets a dict of its own with the plan's own values in it; one that wants to change a list or dict there copies it first,
    because other sessions may have the same plan.

    ## Sections

    <sections>

    ## `session`

    <session>

    The seconds in `deadlines` have [a page of their own](deadlines.md).

    ## Modules

    A module is written as its id alone, or as a mapping:

    <module>

    `instance_id` is for providers only, `on_failure` for hooks only. <rule> The [loader](api/loading.md#moduleloader) looks
    for it among the modules registered in process, the entry points of installed packages, the folders named by
    `AMPLIFIER_MODULES` and the [built-in modules](modules/index.md); if the application has mounted a [module source
    resolver](contracts/source.md), that is asked first, unless `source` pins a module. So an installed third-party module takes
    precedence over the built-in one of the same id. Two third-party ones are an error where the id is used and none is pinned.

    Instead of a mapping, `session.orchestrator` and `session.context` may be ids with their config beside the session:

    <beside>

    ## Order, merging, variables

    Modules are mounted in this order: orchestrator, context, providers, tools, hooks, and within a list from the first to
    the last. They are cleaned up in reverse.

    `amplifier.plan.merge_plans(base, overlay)`: <merging>

    `amplifier.plan.expand_variables(plan, env)`: <expanding>

    The command line expands variables from the environment. `AmplifierSession` does not; call `expand_variables` first.

    ## JSON Schema

    The shape of a plan is shipped as JSON Schema (2020-12):
    [mount-plan.schema.json](../../src/amplifier/plan/mount-plan.schema.json) in the package `amplifier.plan`. `amplifier
    plan schema` prints it, `amplifier.plan.plan_schema()` returns it.

    ```console
    $ amplifier plan schema > mount-plan.schema.json
    ```

    An editor then completes and checks plans. In JSON, name the file in the key `$schema`. In YAML, name it in the first
    line, for editors that use the YAML language server:

    ```yaml
    # yaml-language-server: $schema=mount-plan.schema.json
    session:
      orchestrator: loop-basic
      context: context-simple
    ```

    Every plan without problems fits the schema. The reverse does not hold, because a schema cannot express some problems: that two
    providers share a name, that `hoks` was meant to be `hooks`, or that `5.0` is not a whole number. The schema describes plans whose variables are filled in, so an
    editor marks a `${NAME}` in the place of an id. `amplifier plan check FILE` checks all of this, and whether the modules and their
    extras are installed.
"""


def mount_plan_page() -> str:
    """Show every key of a plan."""
    schema = plan_schema()
    sections, session = schema["properties"], schema["properties"]["session"]
    text = fill(
        _PAGE,
        example=_plan(EXAMPLE),
        sections=_key_table(sections, required=schema["required"]),
        session=_key_table(session["properties"], required=session["required"]),
        module=_key_table(_module_keys(sections), required=["module"]),
        rule=_sentence(MODULE_ID_RULE),
        beside=_plan(BESIDE),
        merging=read_doc(merge_plans.__doc__).text,
        expanding=read_doc(expand_variables.__doc__).text,
    )
    return page("The mount plan", text)


def _plan(text: str) -> str:
    assert check_plan(json.loads(text)) == ([], []), "the page shows it as a valid plan"
    return f"```json\n{text.strip()}\n```"


def _module_keys(sections: dict[str, Any]) -> dict[str, Any]:
    """The keys of a module in any of the lists."""
    return {
        name: about
        for section in ("tools", "providers", "hooks")
        for name, about in sections[section]["items"]["anyOf"][1]["properties"].items()
    }


def _key_table(properties: dict[str, Any], required: list[str]) -> str:
    rows = []
    for name, about in properties.items():
        default = f"`{json.dumps(about['default'])}`" if "default" in about else ""
        rows.append(
            (
                f"`{name}`",
                _type(about),
                "required" if name in required else default,
                about["description"],
            )
        )
    return table(("key", "type", "default", "meaning"), rows)


_TYPES = {
    "array": "list of modules",
    "object": "mapping",
    "string": "text",
    "boolean": "true or false",
    "integer": "whole number",
}


def _type(about: dict[str, Any]) -> str:
    if "anyOf" in about:
        return "module"
    if "enum" in about:
        return " or ".join(f"`{json.dumps(value)}`" for value in about["enum"] if value is not None)
    if "properties" in about:
        return "mapping"
    kinds = about.get("type", "anything")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return " or ".join(_TYPES.get(kind, kind) for kind in kinds if kind != "null")


def _sentence(rule: str) -> str:
    """The rule of a message, ``expected a module id: a letter, …``, as a sentence of a page."""
    text = rule.removeprefix("expected ").replace(":", " is", 1)
    return f"{text[:1].upper()}{text[1:]}."
