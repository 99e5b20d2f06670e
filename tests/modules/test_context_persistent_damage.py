"""A conversation's file after a crash or a bad disk: a torn tail is cut, damage is reported, nothing is invented or skipped."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from amplifier.modules.context_persistent import LogDamagedError
from amplifier.modules.context_persistent._log_records import Chain, encode_message, new_file, scan
from amplifier.modules.context_persistent._message_log import MessageLog

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "first {\n}"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "name": "look"}]},
    {"role": "tool", "tool_call_id": "1", "content": "ü"},
]
NEXT = {"role": "user", "content": "next"}
TEXTS = [encode_message(message)[0] for message in MESSAGES]
LINES = new_file("s", 1, TEXTS)[0].splitlines(keepends=True)
WHOLE = b"".join(LINES)


def unlinked(*records: dict[str, Any]) -> bytes:
    """Lines without numbers and links, as earlier releases wrote them."""
    return Chain(is_linked=False).add(encode_message(record)[0] for record in records)[0]


OLD_HEADER = {"format": "amplifier-context", "version": 1, "session_id": "s", "generation": 1}
FORMATS = {"linked": LINES, "unlinked": unlinked(OLD_HEADER, *MESSAGES).splitlines(keepends=True)}

RUBBISH = random.Random(7).randbytes(1000)
TAILS = {
    "cut": lambda whole, at: whole[:at],
    "zeros": lambda whole, at: whole[:at] + bytes(len(whole) - at),
    "rubbish": lambda whole, at: whole[:at] + RUBBISH[: len(whole) - at],
    "rubbish that ends a line": lambda whole, at: whole[:at] + RUBBISH[: len(whole) - at - 1] + b"\n",
    "hole": lambda whole, at: whole[:at] + bytes(min(8, len(whole) - at)) + whole[at + 8 :],
}


def put(folder: Path, data: bytes) -> MessageLog:
    folder.mkdir(exist_ok=True)
    (folder / "messages.log").write_bytes(data)
    return MessageLog(folder, "s")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("tail", TAILS)
def test_a_tail_torn_at_any_byte_is_cut_and_the_next_message_is_kept(tail, form, tmp_path, monkeypatch):
    whole = b"".join(FORMATS[form])
    last = len(FORMATS[form][-1])
    # What is tested is which bytes are kept, not when the disk has them.
    monkeypatch.setattr("os.fsync", lambda fd: None)
    images = 0
    for at in range(len(whole) - last, len(whole) - tail.endswith("a line")):
        log = put(tmp_path, TAILS[tail](whole, at))
        assert log.open() == MESSAGES[:-1], f"torn at byte {at}"
        log.append([encode_message(NEXT)[0]])
        log.close()
        assert log.open() == [*MESSAGES[:-1], NEXT], f"torn at byte {at}"
        log.close()
        images += 1
    assert images >= last - 1


def test_a_cut_is_reported(tmp_path, caplog):
    log = put(tmp_path, WHOLE[:-5])
    with caplog.at_level("WARNING"):
        log.open()
    log.close()
    lost = len(LINES[-1]) - 5
    assert f"the last {lost} bytes are of a message that was never stored completely; cut off" in caplog.text


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("line", [1, 2, 3])
def test_any_changed_byte_before_the_last_record_is_reported_with_its_line(line, form, tmp_path):
    lines = FORMATS[form]
    whole = b"".join(lines)
    start = sum(map(len, lines[: line - 1]))
    for at in range(start, start + len(lines[line - 1])):
        for flip in (1, 0x20, 0x80):
            data = whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :]
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
        (new_file("other", 1, [])[0], "it is the conversation of session 'other', not of 's'"),
        (unlinked({**OLD_HEADER, "version": 3}), "version 3 of the format, expected 2"),
        (unlinked({**OLD_HEADER, "version": 0}), "version 0 of the format, expected 2"),
        (unlinked({**OLD_HEADER, "version": "2"}), "version '2' of the format, expected 2"),
        (new_file("s", 1, [b'{"content":"without a role"}'])[0], "line 2: the record is no message"),
        (unlinked(OLD_HEADER, {"content": "without a role"}), "line 2: the record is no message"),
    ],
)
def test_a_file_that_is_not_this_conversation_is_refused_and_left_alone(data, reason, tmp_path):
    with pytest.raises(LogDamagedError, match=reason):
        put(tmp_path, data).open()
    assert (tmp_path / "messages.log").read_bytes() == data


LONG = new_file("s", 1, [encode_message({"role": "user", "content": str(number)})[0] for number in range(6)])
LONG_LINES = LONG[0].splitlines(keepends=True)
OTHER = new_file("s", 1, [encode_message({"role": "user", "content": f"other {number}"})[0] for number in range(6)])
OTHER_LINES = OTHER[0].splitlines(keepends=True)


@pytest.mark.parametrize(
    ("lines", "line", "reason"),
    [
        ([*LONG_LINES[:2], *LONG_LINES[3:]], 3, "1 record is missing before record 4"),
        ([*LONG_LINES[:2], *LONG_LINES[5:]], 3, "3 records are missing before record 6"),
        ([*LONG_LINES[:3], *LONG_LINES[2:]], 4, "record 3 is here again, or was moved; expected record 4"),
        ([*LONG_LINES, LONG_LINES[-1]], 8, "record 7 is here again, or was moved; expected record 8"),
        ([*LONG_LINES[:2], LONG_LINES[3], LONG_LINES[2], *LONG_LINES[4:]], 3, "1 record is missing before record 4"),
        ([*LONG_LINES[:3], *OTHER_LINES[3:]], 4, "record 4 does not belong behind the one before it"),
        ([*LONG_LINES[:3], unlinked({"role": "user"}), *LONG_LINES[3:]], 4, "the record has no number"),
        (LONG_LINES[1:], 1, "this is not the beginning of a conversation file"),
    ],
)
def test_records_that_were_dropped_doubled_swapped_or_mixed_are_reported(lines, line, reason, tmp_path):
    data = b"".join(lines)
    with pytest.raises(LogDamagedError, match=reason) as caught:
        put(tmp_path, data).open()
    assert caught.value.line == line
    assert (tmp_path / "messages.log").read_bytes() == data


@given(st.lists(st.sampled_from(LONG_LINES[1:]), max_size=8))
def test_only_records_in_their_order_without_a_gap_are_read(lines):
    try:
        found = scan(b"".join([LONG_LINES[0], *lines]), Path("messages.log"), "s").records
    except LogDamagedError:
        assert lines != LONG_LINES[1 : len(lines) + 1]
        return
    assert lines == LONG_LINES[1 : len(found) + 1]


def test_a_file_of_an_earlier_release_goes_on_as_it_is_until_it_is_replaced(tmp_path):
    old = b"".join(FORMATS["unlinked"])
    log = put(tmp_path, old)
    assert log.open() == MESSAGES
    log.append([encode_message(NEXT)[0]])
    log.close()
    assert (tmp_path / "messages.log").read_bytes() == old + unlinked(NEXT)
    assert log.open() == [*MESSAGES, NEXT]
    log.replace([*TEXTS, encode_message(NEXT)[0]])
    log.append([encode_message(NEXT)[0]])
    log.close()
    lines = (tmp_path / "messages.log").read_bytes().splitlines()
    assert [int(line.split(b" ")[1]) for line in lines] == [1, 2, 3, 4, 5, 6]
    assert log.open() == [*MESSAGES, NEXT, NEXT]
    log.close()


def test_a_failed_append_leaves_no_gap_in_the_numbers(tmp_path, monkeypatch):
    log = put(tmp_path, WHOLE)
    log.open()

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="No space"):
            log.append([encode_message(NEXT)[0]])
    log.append([encode_message(NEXT)[0]])
    log.close()
    assert log.open() == [*MESSAGES, NEXT]
    log.close()


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
    assert found == MESSAGES[: len(found)]
