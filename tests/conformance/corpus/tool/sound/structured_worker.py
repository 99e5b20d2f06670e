"""A structured mount: a worker task answers the calls, in order."""

from contextlib import asynccontextmanager

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Queue:
    name = "queue_up"
    description = "Hands a job to the worker and waits for its answer."

    def __init__(self, jobs):
        self._jobs = jobs

    def get_schema(self):
        return {"type": "object", "properties": {"job": {"type": "string"}}, "required": ["job"]}

    async def execute(self, input):
        job = input.get("job")
        if not isinstance(job, str):
            return ToolResult(success=False, error={"message": "job must be a string"})
        done, answer = anyio.Event(), []
        await self._jobs.send((job, done, answer))
        await done.wait()
        return ToolResult(output=answer[0])


async def work(jobs):
    async for job, done, answer in jobs:
        answer.append(f"done: {job}")
        done.set()


@asynccontextmanager
async def mount(coordinator, config):
    send, receive = anyio.create_memory_object_stream(100)
    async with anyio.create_task_group() as group, send, receive:
        group.start_soon(work, receive)
        await coordinator.mount("tools", Queue(send))
        yield
        group.cancel_scope.cancel()
