"""From a chat request to a reply: a pure function of the request, without memory, clock or chance."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from amplifier.models import ChatRequest

from .._tool_base import shown
from ._answers import TOOLS, Call, Data
from ._prompt_rules import RULES, Instruction, read_instructions
from ._request import Place, Turn, read_result, read_turn

_MOST_INSTRUCTIONS = 12
_LONGEST_REPLY = 100_000

_REAL_MODEL = (
    "For a language model set ANTHROPIC_API_KEY or OPENAI_API_KEY and run `amplifier run -p anthropic` or "
    "`amplifier run -p openai`; `-p local` runs a model file on this machine."
)
_FOOTER = (
    f"_provider-offline: no language model, only fixed rules over your words and the tools' results. {_REAL_MODEL}_"
)


@attrs.frozen
class Reply:
    """A reply.

    Attributes:
        text: Its text.
        calls: The tool calls to make, by their ids; with their results the answer goes on.
    """

    text: str
    calls: Mapping[str, Call] = attrs.field(factory=dict)


def reply_to(request: ChatRequest, *, max_calls: int, max_steps: int) -> Reply:
    """Reply to a request.

    Instructions that only look are carried out at the same time. One that may change something waits for all before it, and all
    after it wait for it.

    Args:
        request: Not changed; the same request always gets the same reply.
        max_calls: Tool calls in one turn.
        max_steps: Replies with tool calls in one turn.
    """
    turn = read_turn(request)
    # `shown` spells out lone surrogates, which JSON cannot hold, with six characters at most; it cuts nothing off here.
    instructions = read_instructions(shown(turn.prompt, 6 * len(turn.prompt)))
    if not any(instruction.rule for instruction in instructions):
        return Reply(_help_text([instruction.words for instruction in instructions], turn.tools))
    left = 0 if turn.steps >= max_steps else max(0, max_calls - len(turn.results))
    wanted: dict[Place, Call] = {}
    sections: list[str] = []
    for number, instruction in enumerate(instructions[:_MOST_INSTRUCTIONS]):
        rule = instruction.rule
        changes = rule is not None and TOOLS[rule.tool].changes
        if changes and wanted:
            break
        outcome = _carry_out(number, instruction, turn, may_call=len(wanted) < left)
        if isinstance(outcome, str):
            heading = f"### {shown(instruction.words, 120)}\n\n" if len(instructions) > 1 else ""
            sections.append(heading + outcome)
        else:
            place, call = outcome
            wanted[place] = call
            if changes:
                break
    if wanted:
        calls = {turn.new_id(place): call for place, call in wanted.items()}
        return Reply(f"Calling {', '.join(map(_shown_call, wanted.values()))}.", calls)
    if len(instructions) > _MOST_INSTRUCTIONS:
        left_out = len(instructions) - _MOST_INSTRUCTIONS
        sections.append(f"I carry out {_MOST_INSTRUCTIONS} instructions at a time; the last {left_out} are left out.")
    return Reply(shown("\n\n".join([*sections, _FOOTER]), _LONGEST_REPLY))


def _carry_out(number: int, instruction: Instruction, turn: Turn, *, may_call: bool) -> str | tuple[Place, Call]:
    """Run an answer with the results that there are; returns its text, or the call that it waits for."""
    if instruction.rule is None:
        return "I do not understand this and did nothing for it. The prompt `help` lists what I understand."
    answer = instruction.rule.answer(instruction.groups)
    call = next(answer)
    place = number, 0
    while True:
        result = _result(place, call, turn, may_call=may_call)
        if result is None:
            return place, call
        if isinstance(result, str):
            return f"Could not {call.purpose}: {shown(result, 500)}"
        try:
            call = answer.send(result)
        except StopIteration as finished:
            return str(finished.value)
        place = number, place[1] + 1


def _result(place: Place, call: Call, turn: Turn, *, may_call: bool) -> Data | str | None:
    """The result of a call, or why there will be none; None if the call is to be made."""
    tool = TOOLS[call.tool]
    if call.tool not in turn.tools:
        return f"this needs the tool `{call.tool}` of {tool.module}, not offered here"
    text = turn.results.get(place)
    if text is not None:
        return read_result(text, tool.key, tool.kind)
    # Calls are made in the order of their places: one before a call that the conversation shows has been made, and the
    # context has left it out. It must not be made twice.
    if turn.results and place <= max(turn.results):
        return f"the result of `{call.tool}` is not in the conversation"
    return None if may_call else "not done: one turn makes only a limited number of tool calls"


def _shown_call(call: Call) -> str:
    subjects = ("command", "url", "file_path", "pattern", "path", "action")
    subject = next(str(call.arguments[key]) for key in subjects if key in call.arguments)
    return f"`{call.tool}` ({shown(subject.replace('`', chr(39)), 60)})"


def _help_text(unknown: list[str], offered: frozenset[str]) -> str:
    start = "".join(f"I do not understand {shown(repr(words), 200)}.\n" for words in unknown[:_MOST_INSTRUCTIONS])
    examples = []
    for rule in RULES:
        missing = "" if rule.tool in offered else f" — not here: needs {rule.tool} of {TOOLS[rule.tool].module}"
        examples.append(f"- {rule.example}{missing}\n")
    return (
        f"{start}I am provider-offline, no language model: fixed rules that know a few instructions about the working directory "
        f"and carry them out with the real tools. I understand, also several at once:\n\n{''.join(examples)}\n{_REAL_MODEL}"
    )
