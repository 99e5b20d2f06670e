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
            kwargs: ``coordinator``, for loops that accept it; every argument is passed by keyword.

        Returns:
            The text of the answer.
        """
        ...


CLAUSES: tuple[Clause, ...] = (
    required(
        "O1", "The orchestrator has an async execute that takes prompt, context, providers, tools and hooks by keyword."
    ),
    required("O2", "After mount it stands at the mount point 'orchestrator'."),
    required("O3", "execute returns the text of the answer, a str."),
    required("O4", "execution:start is the first event of a turn."),
    required("O5", "execution:end is emitted on every way out, with status completed, cancelled or error.", law="L5"),
    required("O6", "orchestrator:complete is emitted on every way out.", law="L5"),
    required(
        "O7", "Every model call has a provider:request before it, and a provider:response after it if it succeeded."
    ),
    required(
        "O8",
        "Every tool run has a tool:pre before it, and a tool:post after it if the tool returned; both name the tool.",
    ),
    required("O9", "The prompt is stored before the model is asked."),
    required("O10", "The messages of every request come from get_messages_for_request."),
    required("O11", "The assistant's message is stored before the results of its tool calls.", law="L5"),
    required("O12", "Results are stored in the order of their calls, under the ids of their calls.", law="L5"),
    required(
        "O13", "Every call gets exactly one result: also if denied, unknown, failing, cancelled or refused.", law="L5"
    ),
    required("O14", "A tool that raises gets an error result and a tool:error, and disturbs no neighbour.", law="L4"),
    required("O15", "After a deny at tool:pre the tool does not run, and the model is told the reason.", law="L7"),
    required(
        "O16", "A modify takes effect: at tool:pre on what the tool is given, at tool:post on what is stored.", law="L7"
    ),
    required("O17", "After an ask_user at tool:pre the tool runs only if it was approved.", law="L7"),
    required(
        "O18", "Injections from tool hooks are stored, at once or right after the results of that answer.", law="L7"
    ),
    required("O19", "Ephemeral injections reach the next request and are never stored.", law="L7"),
    required(
        "O20",
        "After a deny at provider:request, or at prompt:submit if it is emitted, the model is not asked.",
        law="L7",
    ),
    required("O21", "A provider's error leaves execute with its own type.", law="L9"),
    required("O22", "After a graceful stop running tools finish, and no model call and no tool is started.", law="L2"),
    required("O23", "The number of model calls per turn has a limit, and every turn starts counting anew.", law="L3"),
    required(
        "O24",
        "Every answer is stored, structured content as it came: thinking with its signature, not flattened to text.",
        law="L6",
    ),
    recommended("O25", "With several providers the configured one is asked, else the first."),
    recommended("O26", "After a provider's error provider:error is emitted and the next turn works.", law="L5"),
    recommended(
        "O27", "The answer is passed on in pieces while it arrives, as content_block events or an async generator."
    ),
    recommended("O28", "prompt:submit is emitted before the prompt is stored, prompt:complete after the answer."),
    recommended("O29", "After a deny at tool:post the model gets an error result instead of the tool's.", law="L7"),
)
