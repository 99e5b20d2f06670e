"""A conversation's file after a crash or a bad disk: a torn tail is cut, damage is reported, nothing is invented or skipped."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from amplifier.modules.context_persistent import LogDamagedError
from amplifier.modules.context_persistent._log_records import encode_header, encode_message, scan
from amplifier.modules.context_persistent._message_log import MessageLog

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "first {\n}"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "name": "look"}]},
    {"role": "tool", "tool_call_id": "1", "content": "ü"},
]
NEXT = {"role": "user", "content": "next"}
LINES = [encode_header("s", 1), *(encode_message(message)[0] for message in MESSAGES)]
WHOLE = b"".join(LINES)
START_OF_LAST = len(WHOLE) - len(LINES[-1])
RUBBISH = random.Random(7).randbytes(len(LINES[-1]))

TAILS = {
    "cut": lambda at: WHOLE[:at],
    "zeros": lambda at: WHOLE[:at] + bytes(len(WHOLE) - at),
    "rubbish": lambda at: WHOLE[:at] + RUBBISH[: len(WHOLE) - at],
    "rubbish that ends a line": lambda at: WHOLE[:at] + RUBBISH[: len(WHOLE) - at - 1] + b"\n",
    "hole": lambda at: WHOLE[:at] + bytes(min(8, len(WHOLE) - at)) + WHOLE[at + 8 :],
}


def put(folder: Path, data: bytes) -> MessageLog:
    folder.mkdir(exist_ok=True)
    (folder / "messages.log").write_bytes(data)
    return MessageLog(folder, "s")


@pytest.mark.parametrize("tail", TAILS)
def test_a_tail_torn_at_any_byte_is_cut_and_the_next_message_is_kept(tail, tmp_path, monkeypatch):
    # What is tested is which bytes are kept, not when the disk has them.
    monkeypatch.setattr("os.fsync", lambda fd: None)
    images = 0
    for at in range(START_OF_LAST, len(WHOLE) - tail.endswith("a line")):
        log = put(tmp_path, TAILS[tail](at))
        assert log.open() == MESSAGES[:-1], f"torn at byte {at}"
        log.append([encode_message(NEXT)[0]])
        log.close()
        assert log.open() == [*MESSAGES[:-1], NEXT], f"torn at byte {at}"
        log.close()
        images += 1
    assert images >= len(LINES[-1]) - 1


def test_a_cut_is_reported(tmp_path, caplog):
    log = put(tmp_path, WHOLE[:-5])
    with caplog.at_level("WARNING"):
        log.open()
    log.close()
    lost = len(LINES[-1]) - 5
    assert f"the last {lost} bytes are of a message that was never stored completely; cut off" in caplog.text


@pytest.mark.parametrize("line", [1, 2, 3])
def test_any_changed_byte_before_the_last_record_is_reported_with_its_line(line, tmp_path):
    start = sum(map(len, LINES[: line - 1]))
    for at in range(start, start + len(LINES[line - 1])):
        for flip in (1, 0x20, 0x80):
            data = WHOLE[:at] + bytes([WHOLE[at] ^ flip]) + WHOLE[at + 1 :]
            with pytest.raises(LogDamagedError) as caught:
                scan(data, tmp_path, "s")
            assert caught.value.line == line, f"byte {at} of the file was changed by {flip:#x}"
            assert str(caught.value).startswith(f"{tmp_path}, line {line}: ")


@pytest.mark.parametrize("missing", [1, 2])
def test_a_record_torn_in_the_middle_is_reported_and_the_file_left_alone(missing, tmp_path):
    data = b"".join([*LINES[:missing], LINES[missing][:-9], b"\n", *LINES[missing + 1 :]])
    log = put(tmp_path, data)
    with pytest.raises(LogDamagedError, match="the record is damaged, and whole ones follow it"):
        log.open()
    assert (tmp_path / "messages.log").read_bytes() == data
    assert not log.is_open


def test_a_last_record_that_somebody_edited_is_reported_and_not_cut(tmp_path):
    with pytest.raises(LogDamagedError, match="line 2: the record was changed: its checksum is wrong"):
        put(tmp_path, b"".join(LINES[:2]).replace(b"first", b"fixed")).open()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"hello\n", "not the beginning of a conversation file"),
        (b"\0" * 50, "not the beginning of a conversation file"),
        (LINES[0][:-1], "not the beginning of a conversation file"),
        (LINES[1], "not the beginning of a conversation file"),
        (encode_header("other", 1), "it is the conversation of session 'other', not of 's'"),
        (encode_message({"format": "amplifier-context", "version": 2, "generation": 1})[0], "version 2 of the format"),
        (LINES[0] + encode_message({"content": "without a role"})[0], "line 2: the record is no message"),
    ],
)
def test_a_file_that_is_not_this_conversation_is_refused_and_left_alone(data, reason, tmp_path):
    with pytest.raises(LogDamagedError, match=reason):
        put(tmp_path, data).open()
    assert (tmp_path / "messages.log").read_bytes() == data


def test_an_empty_file_is_a_new_conversation(tmp_path):
    log = put(tmp_path, b"")
    assert log.open() == []
    log.append([encode_message(NEXT)[0]])
    log.close()
    assert log.open() == [NEXT]
    log.close()


@given(st.data())
def test_whatever_happened_to_a_file_what_is_read_from_it_was_written_in_this_order(data):
    image = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(image)))
        match data.draw(st.sampled_from(["cut", "put", "insert", "remove", "repeat"])):
            case "cut":
                del image[at:]
            case "put":
                new = data.draw(st.binary(max_size=9))
                image[at : at + len(new)] = new
            case "insert":
                image[at:at] = data.draw(st.binary(max_size=9))
            case "remove":
                del image[at : at + data.draw(st.integers(1, 60))]
            case "repeat":
                image += image[at:]
    try:
        found = scan(bytes(image), Path("messages.log"), "s").records
    except LogDamagedError:
        event("refused")
        return
    event(f"{len(found)} messages")
    # A whole record repeated is a message stored twice, as far as any checksum shows.
    assert found[: len(MESSAGES)] == MESSAGES[: len(found)]
    assert all(message in MESSAGES for message in found)
