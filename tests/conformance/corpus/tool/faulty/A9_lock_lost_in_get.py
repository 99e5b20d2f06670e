"""Notes, one file each, in a directory the plan names or one of the session's own; replaced in one go.

The lock stays locked when reading a note is cancelled.
"""

import hashlib
import os
import shutil
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


def failed(text):
    return ToolResult(success=False, error={"message": text})


class Notes:
    name = "notes"
    description = "put, get or list notes"

    def __init__(self, place):
        self.place = place
        self.titles = {}
        self.lock = anyio.Lock()

    def get_schema(self):
        title = {"type": "string", "minLength": 1}
        return {
            "type": "object",
            "oneOf": [
                {
                    "properties": {"do": {"const": "put"}, "title": title, "text": {"type": "string"}},
                    "required": ["do", "title", "text"],
                },
                {"properties": {"do": {"const": "get"}, "title": title}, "required": ["do", "title"]},
                {"properties": {"do": {"const": "list"}}, "required": ["do"]},
            ],
        }

    async def execute(self, input):
        match input:
            case {"do": "put", "title": str(title), "text": str(text)} if title:
                return await self.put(title, text)
            case {"do": "get", "title": str(title)} if title:
                return await self.get(title)
            case {"do": "list"}:
                async with self.lock:
                    return ToolResult(output=sorted(self.titles))
            case _:
                return failed("do: put (title, text), get (title) or list")

    def file(self, title):
        return self.place / hashlib.sha256(title.encode("utf-8", "surrogatepass")).hexdigest()[:20]

    async def put(self, title, text):
        def write():
            beside = self.file(title).with_suffix(".part")
            beside.write_text(text, encoding="utf-8", errors="surrogatepass")
            os.replace(beside, self.file(title))

        async with self.lock:
            try:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(write)
                    self.titles[title] = len(text)
            except OSError as error:
                return failed(str(error))
        return ToolResult(output={"stored": title})

    async def get(self, title):
        await self.lock.acquire()
        if title not in self.titles:
            self.lock.release()
            return failed(f"no note {title!r}")
        if True:
            read = lambda: self.file(title).read_text(encoding="utf-8", errors="surrogatepass")
            try:
                text = await anyio.to_thread.run_sync(read)
                self.lock.release()
                return ToolResult(output={"title": title, "text": text})
            except OSError as error:
                return failed(str(error))


@asynccontextmanager
async def mount(coordinator, config):
    chosen = config.get("directory")
    place = Path(chosen) if chosen else Path(tempfile.mkdtemp(prefix="notes-"))
    try:
        place.mkdir(parents=True, exist_ok=True)
        tool = Notes(place)
        await coordinator.mount("tools", tool, name=tool.name)
        yield
    finally:
        if not chosen:
            shutil.rmtree(place, ignore_errors=True)
