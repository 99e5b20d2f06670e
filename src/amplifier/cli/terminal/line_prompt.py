"""The chat's line prompt, with prompt_toolkit: editing keys, history, completion, pasted lines.

Import this module only for a chat at a terminal, because importing prompt_toolkit takes time.
"""

from __future__ import annotations

import json
import os
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import (
    CompleteEvent,
    Completer,
    Completion,
    PathCompleter,
    WordCompleter,
)
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.input import create_input
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.layout.utils import explode_text_fragments
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output

from amplifier._internal.json import sanitize_text, visible_text
from amplifier._internal.regular_files import make_folders, replace_file
from amplifier.cli.terminal.keyboard import Keyboard
from amplifier.cli.terminal.output import Output

_MAX_MENU_ROWS = 8
_MENTION = re.compile(r'(?<!\S)@("[^"]*|[^\s"]*)$')
MAX_ENTRIES = 1000
"""Maximum number of history entries. A file with twice as many is cut back to this number."""

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


# prompt_toolkit runs its own asyncio event loop in a worker thread, on both backends alike. The
# terminal is in raw mode only while it runs. A cancelled call makes it exit and waits until it has
# restored the terminal.
class LinePrompt:
    """Reads messages at a terminal that can move its cursor.

    Args:
        keyboard: Stores the keys that were typed ahead.
        terminal: Shows the line on standard error.
        history: The messages of earlier chats.
        completions: Texts that Tab completes, each with a short explanation.
        next_mode: Called for Shift-Tab in the thread of the prompt. It returns the new prompt.

    Attributes:
        dropped: The text of the latest line if it was interrupted or cancelled. Otherwise empty.
    """

    def __init__(
        self,
        keyboard: Keyboard,
        terminal: Output,
        history: PromptHistory,
        *,
        completions: Mapping[str, str],
        next_mode: Callable[[], str] | None = None,
    ) -> None:
        self._keyboard = keyboard
        self._terminal = terminal
        self._next_mode = next_mode
        self._input = create_input(sys.stdin)
        self._menu_rows = min(len(completions), _MAX_MENU_ROWS)
        self._session: PromptSession[str] = PromptSession(
            history=history,
            completer=_Completer(completions),
            enable_open_in_editor=True,
            complete_while_typing=False,
            enable_suspend=True,
            key_bindings=self._key_bindings(),
            input_processors=[_ShowInvisible()],
            color_depth=None if terminal.has_colour else ColorDepth.DEPTH_1_BIT,
            prompt_continuation=self._continuation,
            input=self._input,
            # Terminals report the cursor's position on standard input, where a late report would
            # look like keys.
            output=Vt100_Output(
                sys.stderr, self._size, term=os.environ.get("TERM"), enable_cpr=False
            ),
        )
        # Tools that block all threads of the default limiter must not block the prompt.
        self._limiter = anyio.CapacityLimiter(1)
        self._is_cancelled = False
        self.dropped: str = ""

    async def read(self, prompt: str) -> str | None:
        """Return a message, which begins with the keyboard's draft, or None at the end of input.

        A cancelled call drops the entered text.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed.
        """
        self._is_cancelled = False
        store_typeahead(self._input, self._keyboard.typed_ahead)
        outcome: str | _Interrupted | None = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._exit_when_cancelled)
                with anyio.CancelScope(shield=True):
                    outcome = await anyio.to_thread.run_sync(
                        self._ask, prompt, limiter=self._limiter
                    )
                group.cancel_scope.cancel()
        finally:
            self._keyboard.typed_ahead = get_typeahead(self._input)
            self._terminal.at_line_start = True
            self.dropped = self._session.default_buffer.text
        await anyio.lowlevel.checkpoint_if_cancelled()
        if isinstance(outcome, _Interrupted):
            raise KeyboardInterrupt
        self.dropped = ""
        return None if outcome is None else sanitize_text(outcome)

    def remember(self, line: str) -> None:
        """Add a line to the history that was entered during a turn. Call it between two lines."""
        self._session.history.append_string(line)

    def redraw(self) -> None:
        """Draw the prompt again below other output. Any thread and signal handler may call it."""
        self._call_in_prompt(self._draw_anew)

    # ── in the worker thread ──

    def _ask(self, prompt: str) -> str | _Interrupted | None:
        self._prompt = prompt
        draft, self._keyboard.draft = self._keyboard.draft, ""
        try:
            return self._session.prompt(
                lambda: [("bold" if self._terminal.has_colour else "", self._prompt)],
                default=draft,
                pre_run=self._exit_if_cancelled,
                reserve_space_for_menu=min(self._menu_rows, max(self._size().rows - 2, 0)),
                # The exception handler of prompt_toolkit would wait for Enter, and SignalHandler
                # handles signals.
                set_exception_handler=False,
                handle_sigint=False,
            )
        except _Interrupted as interrupted:
            return interrupted
        # Ctrl-D, or the terminal is gone.
        except (EOFError, OSError):
            return None

    def _key_bindings(self) -> KeyBindings:
        bindings = KeyBindings()

        @bindings.add("c-c")
        def _interrupt(event: KeyPressEvent) -> None:
            event.app.exit(exception=_Interrupted())

        @bindings.add("c-d", filter=Condition(lambda: not get_app().current_buffer.text))
        def _leave(event: KeyPressEvent) -> None:
            event.app.exit(exception=EOFError())

        @bindings.add("escape", "enter")
        @bindings.add("escape", "c-j")
        def _insert_newline(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @bindings.add(Keys.BracketedPaste)
        def _paste(event: KeyPressEvent) -> None:
            text = event.data.replace("\r\n", "\n").replace("\r", "\n").replace("\t", "    ")
            event.current_buffer.insert_text(sanitize_text(text))

        @bindings.add("s-tab", filter=Condition(lambda: self._next_mode is not None))
        def _switch(event: KeyPressEvent) -> None:
            self._prompt = self._prompt if self._next_mode is None else self._next_mode()

        return bindings

    def _size(self) -> Size:
        columns, rows = self._terminal.size()
        return Size(rows=rows, columns=columns)

    def _continuation(self, _width: int, _line: int, wraps: int) -> str:
        return "" if wraps else self._terminal.glyph("… ", "> ")

    def _exit_if_cancelled(self) -> None:
        app = self._session.app
        if self._is_cancelled and app.future is not None and not app.future.done():
            app.exit(result="")

    def _draw_anew(self) -> None:
        self._session.app.renderer.reset()
        self._session.app.invalidate()

    # ── in the chat's own thread ──

    async def _exit_when_cancelled(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            # Keep this order. The prompt checks the flag after it has set its loop, so it either
            # reads the flag or receives the call.
            self._is_cancelled = True
            self._call_in_prompt(self._exit_if_cancelled)

    def _call_in_prompt(self, function: Callable[[], None]) -> None:
        loop = self._session.app.loop
        if loop is not None:
            # The loop may have been closed in the meantime.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(function)


class _Completer(Completer):
    """Completes commands at the beginning of a message, and the names of files after an @."""

    def __init__(self, commands: Mapping[str, str]) -> None:
        self._commands = WordCompleter(list(commands), meta_dict=dict(commands), sentence=True)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Yield the completions of the text before the cursor."""
        for item in self._completions(document, complete_event):
            label = visible_text(item.display_text, multiline=False)
            about = visible_text(item.display_meta_text, multiline=False)
            yield Completion(item.text, item.start_position, display=label, display_meta=about)

    def _completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        mention = _MENTION.search(document.text_before_cursor)
        if mention is None:
            yield from self._commands.get_completions(document, complete_event)
            return
        begun = mention[1].removeprefix('"')
        for item in PathCompleter().get_completions(Document(begun), complete_event):
            is_folder = item.display_text.endswith("/")
            name = f"{begun}{item.text}{'/' * is_folder}"
            if " " in name or mention[1] != begun:
                name = f'"{name}' if is_folder else f'"{name}"'
            yield Completion(name, start_position=-len(mention[1]), display=item.display)


class PromptHistory(History):
    """The messages entered in earlier chats, in a file: one JSON string per line, oldest first.

    Only its owner may read the file. If it can't be read or written, the chat works without it.

    Args:
        path: The file. The first entry creates it and its folder.
        recent: Messages to append to the file's entries, oldest first, such as those of a resumed
            session.
    """

    def __init__(self, path: Path, recent: Sequence[str] = ()) -> None:
        super().__init__()
        self._path = path
        self._recent = recent

    def load_history_strings(self) -> Iterable[str]:
        """Return the latest entries, newest first, without invalid lines."""
        lines: list[bytes] = []
        with suppress(OSError):
            lines = self._path.read_bytes().splitlines()
            if len(lines) >= 2 * MAX_ENTRIES:
                replace_file(self._path, b"\n".join(lines[-MAX_ENTRIES:]) + b"\n")
        entries = [entry for line in lines[-MAX_ENTRIES:] if (entry := _entry(line)) is not None]
        return reversed([*(entry for entry in entries if entry not in self._recent), *self._recent])

    def store_string(self, string: str) -> None:
        """Append an entry in one write, so that entries of several chats don't mix."""
        with suppress(OSError):
            make_folders(self._path.parent)
            descriptor = os.open(self._path, _APPEND, 0o600)
            try:
                os.write(descriptor, json.dumps(string).encode() + b"\n")
            finally:
                os.close(descriptor)


def _entry(line: bytes) -> str | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, str) else None


class _Interrupted(Exception):
    """Ctrl-C was pressed."""


class _ShowInvisible(Processor):
    """Spells out invisible characters, such as a bidirectional control in pasted text."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """Replace the text of one line and map its columns."""
        shown: StyleAndTextTuples = []
        columns = [0]
        for style, character, *_ in explode_text_fragments(transformation_input.fragments):
            spelled = visible_text(character, multiline=False)
            shown.append((style, spelled))
            columns.append(columns[-1] + len(spelled))
        last = len(columns) - 1

        def to_display(index: int) -> int:
            return columns[index] if index <= last else columns[last] + index - last

        def to_source(column: int) -> int:
            return (
                bisect_right(columns, column) - 1
                if column < columns[last]
                else last + column - columns[last]
            )

        return Transformation(shown, source_to_display=to_display, display_to_source=to_source)
