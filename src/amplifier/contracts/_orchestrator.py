"""The orchestrator contract: the loop that turns a prompt into a response.

`Orchestrator` is the Protocol, `CLAUSES` are the rules.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from ._clause import Clause, recommended, required
from ._context import ContextManager
from ._host import Hooks
from ._provider import Provider
from ._tool import Tool


@runtime_checkable
class Orchestrator(Protocol):
    """What the session needs of an orchestrator.

    A loop that can go on with a turn that was cut off also has ``async def resume(self, context, providers, tools, hooks, **kwargs)``,
    which stores no prompt: it completes the latest turn of the conversation and returns the text of the answer. The session calls it
    for ``session.resume_turn()``, and refuses that for a loop without it. As ``execute`` it is given ``answer_format`` if the caller
    asked for a typed answer, and has to name it.

    `isinstance` looks at member names only, and a tool has ``execute`` too. What a module is follows from its declared
    type.
    """

    async def execute(
        self,
        prompt: str,
        context: ContextManager,
        providers: dict[str, Provider],
        tools: dict[str, Tool],
        hooks: Hooks,
        **kwargs: Any,
    ) -> str:
        """Run one turn.

        Args:
            prompt: The user's input.
            context: Where the conversation is kept.
            providers: The models there are, by name.
            tools: The tools there are, by name.
            hooks: Where events are emitted.
            kwargs: ``coordinator``, for loops that accept it, and ``answer_format`` if the caller asked for a typed answer and the
                loop names it; every argument is passed by keyword.

        Returns:
            The text of the answer.
        """
        ...


CLAUSES: tuple[Clause, ...] = (
    required(
        "O1",
        "The orchestrator has an async execute that takes prompt, context, providers, tools and hooks by keyword.",
        source="orchestrator contract, Required",
        hint="Declare async def execute(self, prompt, context, providers, tools, hooks, **kwargs).",
    ),
    required(
        "O2",
        "The orchestrator is mounted at 'orchestrator'.",
        source="orchestrator contract, Required",
        hint='Call coordinator.mount("orchestrator", loop) or return the loop from mount.',
        look_at=("mount",),
    ),
    required(
        "O3",
        "execute returns the text of the answer, a str.",
        source="orchestrator contract, Required",
        hint="Return the text of the last answer of this turn, without thinking, an empty string if there is none; a failing tool "
        "does not end the turn.",
    ),
    required(
        "O4",
        "execution:start is the first event of a turn.",
        source="contract clarifications: orchestrators",
        hint="Emit execution:start before anything else.",
    ),
    required(
        "O5",
        "execution:end is emitted on every way out, with status completed, cancelled or error.",
        law="L5",
        source="contract clarifications: orchestrators",
        hint="Emit execution:end once, last, in a finally block, shielded, with the status of the way out.",
    ),
    required(
        "O6",
        "orchestrator:complete is emitted on every way out.",
        law="L5",
        source="contract clarifications: orchestrators",
        hint="Emit orchestrator:complete once, in a finally block, shielded.",
    ),
    required(
        "O7",
        "Every model call has a provider:request before it, and a provider:response after it if it succeeded.",
        source="orchestrator contract, Required",
        hint="Emit provider:request before and provider:response after every call of complete.",
    ),
    required(
        "O8",
        "Every tool run has a tool:pre before it, and a tool:post after it if the tool returned; both name the tool.",
        source="orchestrator contract, Required",
        hint="Emit tool:pre before and tool:post after every call of execute of a tool, with tool_name and tool_call_id of that "
        "call, tool:post with its result.",
    ),
    required(
        "O9",
        "The prompt is stored before the model is asked.",
        source="orchestrator contract, Required",
        hint="Store the user's message once, before the first model call.",
    ),
    required(
        "O10",
        "The messages of every request come from get_messages_for_request.",
        source="contract clarifications: orchestrators",
        hint="Build every request from await context.get_messages_for_request(provider=provider).",
    ),
    required(
        "O11",
        "The assistant's message is stored before the results of its tool calls.",
        law="L5",
        source="contract clarifications: orchestrators",
        hint="Store the assistant's message as soon as it has come, before its tools run.",
    ),
    required(
        "O12",
        "Results are stored in the order of their calls, under the ids of their calls.",
        law="L5",
        source="contract clarifications: orchestrators",
        hint="Gather the results of parallel tools, and store them in the order of the calls.",
    ),
    required(
        "O13",
        "Every call gets exactly one result: also if denied, unknown, failing, cancelled or refused.",
        law="L5",
        source="L5",
        hint="Make a result for every call on every way out, in a shielded section when cancelled.",
    ),
    required(
        "O14",
        "A tool that raises gets an error result and a tool:error, and disturbs no neighbour.",
        law="L4",
        source="contract clarifications: orchestrators",
        hint="Catch Exception around each tool by itself, emit tool:error and store an error result.",
    ),
    required(
        "O15",
        "After a deny at tool:pre the tool does not run, and the model gets the reason.",
        law="L7",
        source="orchestrator contract, Required",
        hint="Look at the verdict of tool:pre; on deny store an error result with its reason instead of running "
        "the tool.",
    ),
    required(
        "O16",
        "A modify takes effect: at tool:pre on what the tool is given, at tool:post on what is stored.",
        law="L7",
        source="orchestrator contract, Required",
        hint="Take tool_input from the verdict's data at tool:pre, and result at tool:post.",
    ),
    required(
        "O17",
        "After an ask_user at tool:pre the tool runs only if it was approved.",
        law="L7",
        source="orchestrator contract, Required",
        hint="Pass the verdict to coordinator.process_hook_result and run the tool only if it comes back as continue.",
    ),
    required(
        "O18",
        "Injections from tool hooks are stored, at once or right after the results of that answer.",
        law="L7",
        source="contract clarifications: orchestrators",
        hint="Pass verdicts of tool events to coordinator.process_hook_result, after the results if it has to wait.",
    ),
    required(
        "O19",
        "Ephemeral injections reach the next request and are never stored.",
        law="L7",
        source="contract clarifications: orchestrators",
        hint="Add ephemeral injections to the messages of the next request only.",
    ),
    required(
        "O20",
        "After a deny at provider:request, or at prompt:submit if it is emitted, the model is not asked.",
        law="L7",
        source="orchestrator contract, Required",
        hint="Look at the verdicts of provider:request and prompt:submit; on deny end the turn without calling the provider.",
    ),
    required(
        "O21",
        "A provider's error leaves execute with its own type.",
        law="L9",
        source="contract clarifications: orchestrators",
        hint="Let errors of the provider pass: emit provider:error and raise the same exception again.",
    ),
    required(
        "O22",
        "After a graceful stop running tools finish, and no model call and no tool is started.",
        law="L2",
        source="L2",
        hint="Look at coordinator.cancellation.is_graceful before each model call and each tool, and let running tools finish.",
    ),
    required(
        "O23",
        "The number of model calls per turn has a limit, and every turn starts counting anew.",
        law="L3",
        source="contract clarifications: orchestrators",
        hint="Count model calls in a local variable of execute, against a limit.",
    ),
    required(
        "O24",
        "Every answer is stored, structured content as it came: thinking with its signature, not flattened to text.",
        law="L6",
        source="contract clarifications: orchestrators",
        hint="Store the response's content blocks as they are, not only their text.",
    ),
    recommended(
        "O25",
        "With several providers the configured one is asked, else the first.",
        source="orchestrator contract, Recommended",
        hint="Read the provider's name from the configuration, else take the first one.",
    ),
    recommended(
        "O26",
        "After a provider's error provider:error is emitted and the next turn works.",
        law="L5",
        source="orchestrator contract, Recommended",
        hint="Emit provider:error before raising, and keep nothing half done on the loop.",
    ),
    recommended(
        "O27",
        "The answer is passed on in pieces while it arrives, as content_block events or an async generator.",
        source="orchestrator contract, Recommended",
        hint="Emit content_block events while the answer comes.",
    ),
    recommended(
        "O28",
        "prompt:submit is emitted before the prompt is stored, prompt:complete after the answer.",
        source="recommendation of this project",
        hint="Emit prompt:submit before storing the prompt and prompt:complete at the end.",
    ),
    recommended(
        "O29",
        "After a deny at tool:post the model gets an error result instead of the tool's.",
        law="L7",
        source="recommendation of this project",
        hint="Look at the verdict of tool:post; on deny store an error result.",
    ),
    recommended(
        "O30",
        "Blocks of a type that the contract does not define are stored as they came.",
        law="L6",
        source="contract clarifications: orchestrators",
        hint="Store every block of the response, also those of a type that you do not know.",
    ),
)
