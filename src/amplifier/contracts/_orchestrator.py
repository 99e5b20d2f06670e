"""The orchestrator contract: the loop that turns a prompt into a response.

`Orchestrator` is the Protocol, and `CLAUSES` are the rules.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from ._clause import constructors, numbered
from ._context import ContextManager
from ._host import Hooks
from ._provider import Provider
from ._tool import Tool


@runtime_checkable
class Orchestrator(Protocol):
    """Interface of an orchestrator for the session.

    A loop that can continue an interrupted turn also has ``async def resume(self, context,
    providers, tools, hooks, **kwargs)``. It stores no prompt, completes the latest turn of the
    conversation and returns the text of the answer. ``session.resume_turn()`` calls it, and is
    refused for a loop without it. Like ``execute`` it must name ``answer_format`` to be asked for a
    typed answer.

    `isinstance` checks member names only, and a tool has ``execute`` too. The declared type of a
    module distinguishes them.
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
            prompt: Text of the user's input.
            context: The stored conversation.
            providers: Providers by name.
            tools: Tools by name.
            hooks: Hooks for emitting events.
            kwargs: ``coordinator`` for loops that accept it, ``answer_format`` for a typed answer,
                and ``prompt_blocks`` for a prompt of blocks. The session refuses a typed answer or
                blocks for a loop that does not name the parameter. The blocks are content of a
                message in its JSON form and are stored in place of the text. Every argument is
                passed by keyword.

        Returns:
            The text of the answer.
        """


required, clarified, recommended, advised = constructors("orchestrator contract", "orchestrators")

# The texts are wrapped at 100 columns. The formatter would join them to longer lines.
# fmt: off
CLAUSES = numbered(
    O1=required(
        "The orchestrator has an async execute that takes prompt, context, providers, tools and "
        "hooks by keyword.",
        hint="Declare async def execute(self, prompt, context, providers, tools, hooks, **kwargs).",
    ),
    O2=required(
        "The orchestrator is mounted at 'orchestrator'.",
        hint='Call coordinator.mount("orchestrator", loop) or return the loop from mount.',
        look_at=("mount",),
    ),
    O3=required(
        "execute returns the text of the answer, a str.",
        hint="Return the text of the last answer of this turn, without thinking, or an empty "
        "string if there is none. A failing tool does not end the turn.",
    ),
    O4=clarified(
        "execution:start is the first event of a turn.",
        hint="Emit execution:start before anything else.",
    ),
    O5=clarified(
        "execution:end is emitted on every way out, with status completed, cancelled or error.",
        law="L5",
        hint="Emit execution:end once, last, in a finally block, shielded, with the status of the "
        "way out.",
    ),
    O6=clarified(
        "orchestrator:complete is emitted on every way out.",
        law="L5",
        hint="Emit orchestrator:complete once, in a finally block, shielded.",
    ),
    O7=required(
        "Every model call has a provider:request before it, and a provider:response after it if "
        "it succeeded.",
        hint="Emit provider:request before and provider:response after every call of complete.",
    ),
    O8=required(
        "Every tool run has a tool:pre before it, and a tool:post after it if the tool returned, "
        "and both name the tool.",
        hint="Emit tool:pre before and tool:post after every call of a tool's execute, with "
        "tool_name and tool_call_id of that call, and tool:post with its result.",
    ),
    O9=required(
        "The prompt is stored before the model is called.",
        hint="Store the user's message once, before the first model call.",
    ),
    O10=clarified(
        "The messages of every request come from get_messages_for_request, and its tools are the "
        "session's, with their schemas.",
        hint="Build every request from await context.get_messages_for_request(provider=provider), "
        "and a ToolSpec of each tool.",
    ),
    O11=clarified(
        "The assistant's message is stored before the results of its tool calls.",
        law="L5",
        hint="Store the assistant's message as soon as it arrives, before its tools run.",
    ),
    O12=clarified(
        "Results are stored in the order of their calls, under the ids of their calls.",
        law="L5",
        hint="Gather the results of parallel tools, and store them in the order of the calls.",
    ),
    O13=required(
        "Every call gets exactly one result: also if denied, unknown, failing, cancelled or "
        "refused.",
        law="L5",
        source="L5",
        hint="Make a result for every call on every way out, in a shielded scope when cancelled.",
    ),
    O14=clarified(
        "A tool that raises gets an error result and a tool:error, and does not affect other "
        "calls.",
        law="L4",
        hint="Catch Exception around each tool separately, emit tool:error and store an error "
        "result.",
    ),
    O15=required(
        "After a deny at tool:pre the tool does not run, and the model gets the reason.",
        law="L7",
        hint="Check the verdict of tool:pre. On deny, store an error result with its reason "
        "instead of running the tool.",
    ),
    O16=required(
        "A modify takes effect: at tool:pre on the tool's input, at tool:post on the stored "
        "result.",
        law="L7",
        hint="Take tool_input from the verdict's data at tool:pre, and result at tool:post.",
    ),
    O17=required(
        "After an ask_user at tool:pre the tool runs only if the user approved it.",
        law="L7",
        hint="Pass the verdict to coordinator.process_hook_result and run the tool only if it "
        "comes back as continue.",
    ),
    O18=clarified(
        "Injections from tool hooks are stored, at once or right after the results of that answer.",
        law="L7",
        hint="Pass verdicts of tool events to coordinator.process_hook_result, after the results "
        "if it has to wait.",
    ),
    O19=clarified(
        "Ephemeral injections reach the next request and are never stored.",
        law="L7",
        hint="Add ephemeral injections to the messages of the next request only.",
    ),
    O20=required(
        "After a deny at provider:request, or at prompt:submit if it is emitted, the model is not "
        "called.",
        law="L7",
        hint="Check the verdicts of provider:request and prompt:submit. On deny, end the turn "
        "without calling the provider.",
    ),
    O21=clarified(
        "A provider's error leaves execute with its own type.",
        law="L9",
        hint="Let errors of the provider propagate: emit provider:error and raise the same "
        "exception again.",
    ),
    O22=required(
        "After a graceful stop running tools finish, and no model call and no tool starts.",
        law="L2",
        source="L2",
        hint="Check coordinator.cancellation.is_graceful before each model call and each tool, "
        "and let running tools finish.",
    ),
    O23=clarified(
        "The number of model calls per turn has a limit, and the count starts anew with every "
        "turn.",
        law="L3",
        hint="Count model calls in a local variable of execute, against a limit.",
    ),
    O24=clarified(
        "Every answer is stored, structured content unchanged: thinking with its signature, not "
        "flattened to text.",
        law="L6",
        hint="Store the response's content blocks unchanged, not only their text.",
    ),
    O25=recommended(
        "With several providers the configured one is called, otherwise the first.",
        hint="Read the provider's name from the configuration, and without one take the first.",
    ),
    O26=recommended(
        "After a provider's error provider:error is emitted and the next turn works.",
        law="L5",
        hint="Emit provider:error before raising, and keep no unfinished state on the loop.",
    ),
    O27=recommended(
        "The answer is passed on in pieces while it arrives, as content_block events or an async "
        "generator.",
        hint="Emit content_block events while the answer arrives.",
    ),
    O28=advised(
        "prompt:submit is emitted before the prompt is stored, prompt:complete after the answer.",
        hint="Emit prompt:submit before storing the prompt and prompt:complete at the end.",
    ),
    O29=advised(
        "After a deny at tool:post the model gets an error result instead of the tool's.",
        law="L7",
        hint="Check the verdict of tool:post. On deny, store an error result.",
    ),
    O30=recommended(
        "Blocks of a type that the contract does not define are stored unchanged.",
        law="L6",
        source="contract clarifications: orchestrators",
        hint="Store every block of the response, also blocks of unknown types.",
    ),
)
# fmt: on
