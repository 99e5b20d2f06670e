"""Speaks the chat completions protocol over HTTP, with retries for what may pass.

The error for a refused key tells the key.
"""

import http.client
import json
import logging
import os
import urllib.parse

import anyio
import anyio.to_thread

from amplifier import (
    ChatResponse,
    LLMError,
    ModelInfo,
    ProviderInfo,
    RateLimitError,
    TextBlock,
    ToolCall,
    ToolCallBlock,
    Usage,
)
from amplifier.errors import AuthenticationError, InvalidRequestError, NetworkError, ProviderUnavailableError

__amplifier_module_type__ = "provider"
log = logging.getLogger("completions")


class Completions:
    name = "completions"

    def __init__(self, hooks, key, url, config):
        self.hooks, self.key, self.url, self.config = hooks, key, urllib.parse.urlsplit(url), config
        self.tries = config.get("max_retries", 2)

    def get_info(self):
        return ProviderInfo(
            id=self.name,
            display_name="Completions",
            credential_env_vars=["COMPLETIONS_KEY"],
            defaults={"context_window": 128_000, "max_output_tokens": 8_000},
        )

    async def list_models(self):
        return [ModelInfo(id="small", display_name="Small", context_window=128_000, max_output_tokens=8_000)]

    async def complete(self, request, **kwargs):
        body = {"model": request.model or self.config.get("model", "small"), "messages": self.messages(request)}
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": t.name, "description": t.description, "parameters": t.parameters},
                }
                for t in request.tools
            ]
        debug = self.config.get("debug")
        await self.hooks.emit("llm:request", {"provider": self.name, **({"raw": body} if debug else {})})
        for attempt in range(self.tries + 1):
            try:
                answer = await anyio.to_thread.run_sync(self.post, body, abandon_on_cancel=True)
                break
            except LLMError as error:
                if not error.retryable or attempt == self.tries:
                    await self.hooks.emit(
                        "llm:response", {"provider": self.name, "status": "error", "error": type(error).__name__}
                    )
                    raise
                await anyio.sleep(min(0.01 * 2**attempt, 1))
        response = self.read(answer)
        usage = {"input_tokens": response.usage.input_tokens, "output_tokens": response.usage.output_tokens}
        await self.hooks.emit(
            "llm:response",
            {"provider": self.name, "status": "ok", "usage": usage, **({"raw": answer} if debug else {})},
        )
        return response

    def post(self, body):
        kind = http.client.HTTPSConnection if self.url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self.url.netloc, timeout=20)
        try:
            headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
            connection.request("POST", f"{self.url.path.rstrip('/')}/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            text, status = answer.read(), answer.status
        except (OSError, http.client.HTTPException) as error:
            raise NetworkError(f"no answer: {type(error).__name__}", provider=self.name, retryable=True) from error
        finally:
            connection.close()
        if status in (401, 403):
            raise AuthenticationError(f"the key {self.key} was refused", provider=self.name, status_code=status)
        if status == 429:
            raise RateLimitError("too many requests", provider=self.name, status_code=status, retryable=True)
        if status >= 500:
            raise ProviderUnavailableError(f"status {status}", provider=self.name, status_code=status, retryable=True)
        if status >= 400:
            raise InvalidRequestError(f"status {status}", provider=self.name, status_code=status)
        try:
            return json.loads(text)
        except ValueError as error:
            raise ProviderUnavailableError("the answer is no JSON", provider=self.name, retryable=True) from error

    def messages(self, request):
        answered = {m.tool_call_id for m in request.messages if m.role == "tool"}
        sent = []
        for m in request.messages:
            if isinstance(m.content, str):
                one = {"role": m.role, "content": m.content}
                if m.role == "tool":
                    one["tool_call_id"] = m.tool_call_id
                sent.append(one)
                continue
            texts = [b.text for b in m.content if b.type == "text"]
            one = {"role": m.role, "content": "\n".join(texts)}
            if m.role == "tool":
                one["tool_call_id"] = m.tool_call_id
            calls = [b for b in m.content if b.type == "tool_call"]
            if calls:
                one["tool_calls"] = [
                    {"id": b.id, "type": "function", "function": {"name": b.name, "arguments": json.dumps(b.input)}}
                    for b in calls
                ]
            results = [b for b in m.content if b.type == "tool_result"]
            if texts or calls or not results:
                sent.append(one)
            for b in results:
                answered.add(b.tool_call_id)
                sent.append({"role": "tool", "tool_call_id": b.tool_call_id, "content": json.dumps(b.output)})
        return self.repaired(sent, answered)

    @staticmethod
    def repaired(sent, answered):
        whole = []
        for one in sent:
            whole.append(one)
            for call in one.get("tool_calls", []):
                if call["id"] not in answered:
                    log.warning("call %s has no result; one was made up", call["id"])
                    whole.append({"role": "tool", "tool_call_id": call["id"], "content": "no result"})
        return whole

    def read(self, answer):
        try:
            choice = answer["choices"][0]
            message = choice["message"]
            blocks = [TextBlock(text=message["content"])] if message.get("content") else []
            calls = []
            for call in message.get("tool_calls") or []:
                arguments = json.loads(call["function"]["arguments"] or "{}")
                calls.append(ToolCall(id=call["id"], name=call["function"]["name"], arguments=arguments))
                blocks.append(ToolCallBlock(id=call["id"], name=call["function"]["name"], input=arguments))
            spent = answer.get("usage") or {}
            asked, given = spent.get("prompt_tokens", 0), spent.get("completion_tokens", 0)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ProviderUnavailableError("the answer cannot be read", provider=self.name, retryable=True) from error
        return ChatResponse(
            content=blocks,
            tool_calls=calls or None,
            usage=Usage(input_tokens=asked, output_tokens=given, total_tokens=asked + given),
            finish_reason=choice.get("finish_reason"),
        )

    def parse_tool_calls(self, response):
        return response.tool_calls or []


async def mount(coordinator, config):
    config = config or {}
    key = config.get("api_key") or os.environ.get("COMPLETIONS_KEY")
    if not key:
        log.warning("completions: no key in the plan or in COMPLETIONS_KEY; not mounted")
        return None
    provider = Completions(coordinator.hooks, key, config.get("base_url", "https://completions.invalid/v1"), config)
    await coordinator.mount("providers", provider, name=provider.name)

    async def cleanup():
        log.debug("nothing to close")

    return cleanup
