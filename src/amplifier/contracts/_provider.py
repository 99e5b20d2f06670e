"""The provider contract: a language model behind one interface.

`Provider` is the Protocol, and `CLAUSES` are the rules.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from amplifier.models import ChatRequest, ChatResponse, ModelInfo, ProviderInfo, ToolCall

from ._clause import constructors, numbered


@runtime_checkable
class Provider(Protocol):
    """Interface of a provider for the orchestrator.

    `isinstance` does not check the optional members. A provider that can stream has
    ``stream(request, **kwargs)``. It returns an async context manager that yields an async iterator
    of `StreamChunk`, with the whole response in the last one. The context manager should also be an
    async iterator over the same chunks, because published loops read it with a bare ``async for``.
    Such an iterator closes itself at its end, when it fails and when its reader is cancelled, each
    time before the reader continues. An iterator abandoned between two chunks closes when it is
    collected, or with the provider at the latest.

    Two members serve budgets. ``estimate_cost(request, *, input_tokens, output_tokens, **kwargs)``
    returns the maximum cost of a call in US dollars as a Decimal, or None if the price is unknown.
    ``output_limit(request, **kwargs)`` returns the maximum number of output tokens of the call.
    Both take the keywords of ``complete`` and contact no service.

    One member serves contexts. ``async count_tokens(request, **kwargs)`` returns the number of
    tokens that the service counts for a request, or None.
    """

    @property
    def name(self) -> str:
        """Name under which the provider is mounted, such as ``anthropic``."""

    def get_info(self) -> ProviderInfo:
        """Describe the provider without contacting its service.

        Returns:
            Identity, capabilities and ``defaults``. A context reads ``context_window`` and
            ``max_output_tokens`` there.
        """

    async def list_models(self) -> list[ModelInfo]:
        """List the models that are known with the available credentials."""

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        """Send a request to the model and return the response.

        Args:
            request: The conversation and its options. It must not be changed.
            kwargs: Options for one provider, ignored by the others.

        Raises:
            LLMError: The call failed. The fields indicate whether a retry may help.
        """

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        """Return the tool calls of a response, in order."""


required, clarified, recommended, advised = constructors("provider contract", "providers")

# The texts are wrapped at 100 columns. The formatter would join them to longer lines.
# fmt: off
CLAUSES = numbered(
    P1=required(
        "The provider has a name, get_info, async list_models, async complete and "
        "parse_tool_calls.",
        hint="Give the provider name, get_info, async list_models, async complete and "
        "parse_tool_calls.",
    ),
    P2=required(
        "The provider is mounted at 'providers', unless mount declined by returning None.",
        hint='Call coordinator.mount("providers", provider) or return the provider from mount.',
        look_at=("mount",),
    ),
    P3=required(
        "complete takes a ChatRequest and ignores unknown keywords.",
        hint="Declare complete(self, request, **kwargs) and ignore unknown keywords.",
    ),
    P4=required(
        "complete returns a ChatResponse.",
        hint="Answer every valid request with a ChatResponse that has a list of blocks as its "
        "content. Raise only when the call fails.",
    ),
    P5=required(
        "Every response reports Usage, and total_tokens is input_tokens plus output_tokens.",
        hint="Fill usage in every response, with total_tokens = input_tokens + output_tokens.",
    ),
    P6=required(
        "Block types, their order and their signatures survive, from the wire to the response and "
        "back.",
        law="L6",
        hint="Translate every block by its type in both directions, in order, and carry "
        "signatures along unchanged.",
    ),
    P7=clarified(
        "Every role and every block type is accepted in a request.",
        hint="Translate every role and block type. Send a block that the service does not support "
        "as text or leave it out, but never refuse it.",
    ),
    P8=clarified(
        "complete does not change the request.",
        hint="Build a new request for the wire instead of changing the caller's.",
    ),
    P9=clarified(
        "Tool-call ids are non-empty and unique over the whole conversation.",
        law="L5",
        hint="Take the ids from the service, or create them with uuid4 if it gives none.",
    ),
    P10=clarified(
        "parse_tool_calls returns exactly the calls of the response: same ids, names, arguments "
        "and order.",
        law="L5",
        hint="Return response.tool_calls, or build the list from the tool_call blocks, in order.",
        look_at=("parse_tool_calls",),
    ),
    P11=recommended(
        "Each call emits llm:response.",
        source="contract clarifications: providers",
        hint='Emit "llm:response" once for each call, with usage={"input_tokens": ..., '
        '"output_tokens": ...}, through coordinator.hooks.',
    ),
    P12=clarified(
        "list_models returns a list of ModelInfo, also without credentials.",
        law="L4",
        hint="Return a list also when there is no key or no connection.",
        look_at=("list_models",),
    ),
    P13=required(
        "get_info returns a ProviderInfo.",
        hint="Return a ProviderInfo from get_info, which is a plain function.",
        look_at=("get_info",),
    ),
    P14=clarified(
        "Concurrent calls do not mix: each gets the answer to its own request.",
        law="L8",
        hint="Keep the state of one call in local variables, not on the provider.",
    ),
    P15=recommended(
        "Without the configuration it needs, mount logs a warning and declines by returning None.",
        law="L4",
        hint="Without a key log a warning and return None from mount.",
        look_at=("mount",),
    ),
    P16=recommended(
        "A tool call without its result in a request is repaired and announced, or refused, never "
        "sent unchanged.",
        hint="Before sending the request, add a result that reports the missing one, or raise "
        "InvalidRequestError.",
    ),
    P17=recommended(
        "A flag in the configuration adds the raw request and response to llm:request and "
        "llm:response.",
        hint="Read a setting such as raw, and add the request and response to the events if it is "
        "on.",
        look_at=("mount",),
    ),
    P18=recommended(
        "mount returns a cleanup that closes the client.",
        law="L1",
        hint="Return an async function from mount that closes the client.",
        look_at=("mount",),
    ),
    P19=advised(
        "A failed call raises an LLMError with fields that state whether a retry may help.",
        law="L9",
        hint="Translate the service's errors into the LLMError family, with retryable and "
        "retry_after. Return no response for a failed call.",
    ),
    P20=advised(
        "The defaults of get_info hold context_window and max_output_tokens.",
        hint="Put context_window and max_output_tokens into the defaults of get_info.",
        look_at=("get_info",),
    ),
    # Otherwise the stored response would differ from the one that a user saw.
    P21=clarified(
        "stream, if the provider has it, ends with the response that complete gives, and its "
        "pieces add up to that response.",
        hint="Let complete collect the stream, so that there is only one path.",
        look_at=("stream",),
    ),
    P22=advised(
        "A stream can be read with async for alone, and closes itself at its end and when its "
        "reader is cancelled.",
        law="L1",
        hint="Return an object with __aenter__, __aexit__, __aiter__, __anext__ and aclose. Close "
        "the connection in __anext__ on every exception.",
        look_at=("stream",),
    ),
    P23=clarified(
        "An llm:response holds the usage of its response under input_tokens, output_tokens and "
        "the documented cache keys.",
        hint="Copy input_tokens, output_tokens and the cache counts of the response's usage into "
        "the usage of llm:response.",
    ),
    P24=advised(
        "get_info sends no request to a service.",
        hint="Answer get_info from constants and the configuration.",
        look_at=("get_info",),
    ),
)
# fmt: on
