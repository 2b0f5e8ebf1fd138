"""What a terminal said last: who reads gets everything once, or is told what is not kept."""

from __future__ import annotations

import random

import msgspec
import pytest

from hostler.entry.terminal import protocol
from hostler.entry.terminal.protocol import ReadPosition, Scroll
from hostler.errors import Invalid


def read_on(scroll: Scroll, place: ReadPosition) -> tuple[list[dict[str, str]], ReadPosition]:
    found = []
    while (item := scroll.after(place)) is not None:
        message, place = item
        found.append(msgspec.json.decode(message))
    return found, place


@pytest.mark.parametrize("seed", range(20))
def test_a_reader_that_keeps_up_gets_everything_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    scroll, place, said, got = Scroll(kept=100), ReadPosition(), [], []
    for number in range(300):
        if rng.random() < 0.2:
            scroll.note(protocol.info(f"<{number}>"), state=rng.random() < 0.5)
            said.append(f"<{number}>")
        else:
            text = f"{number}é" * rng.randint(1, 10)
            scroll.say(text)
            said.append(text)
        if rng.random() < 0.5 or scroll.end - place.position > scroll.ahead:
            found, place = read_on(scroll, place)
            got += [message.get("data", message.get("message", "")) for message in found]
    found, place = read_on(scroll, place)
    got += [message.get("data", message.get("message", "")) for message in found]
    assert "".join(got) == "".join(said)
    assert scroll.after(place) is None


def test_a_reader_that_does_not_keep_up_gets_the_end_and_is_told() -> None:
    scroll = Scroll(kept=10)
    scroll.say("0123456789abcdef")
    found, place = read_on(scroll, ReadPosition())
    assert found[0]["type"] == "info"
    assert found[0]["message"].startswith("6 characters")
    assert [message.get("data") for message in found[1:]] == ["6789abcdef"]
    assert place.position == scroll.end == 16


def test_output_from_before_the_connection_is_marked_as_replayed() -> None:
    scroll = Scroll()
    scroll.say("before")
    live = scroll.end
    scroll.say("after")
    assert scroll.after(ReadPosition(), live) == ('{"type":"output","data":"before","replay":true}', ReadPosition(6))
    assert scroll.after(ReadPosition(6), live) == ('{"type":"output","data":"after"}', ReadPosition(11))


def test_who_comes_is_told_the_last_state_unless_it_follows_anyway() -> None:
    scroll = Scroll()
    assert scroll.greeting(ReadPosition()) is None
    scroll.note(protocol.provisioning("it starts", "provisioning"), state=True)
    assert scroll.greeting(ReadPosition()) is None
    _, place = read_on(scroll, ReadPosition())
    assert "it starts" in (scroll.greeting(place) or "")
    scroll.note(protocol.connected_message("1"), state=True)
    scroll.note(protocol.info("something else"))
    assert scroll.greeting(place) is None
    assert scroll.greeting(scroll.begin) == protocol.connected_message("1")


def test_an_empty_screen_is_shown_the_last_shell_alone() -> None:
    scroll = Scroll()
    scroll.say("the picture of an editor")
    scroll.start_shell()
    scroll.say("$ ")
    assert [message["data"] for message in read_on(scroll, scroll.begin)[0]] == ["$ "]
    assert len(read_on(scroll, ReadPosition())[0]) == 1, (
        "who has missed the end of the first shell is shown that as well"
    )


def test_notes_alone_do_not_grow_without_end() -> None:
    scroll = Scroll()
    for number in range(10_000):
        scroll.note(protocol.info(str(number)))
    assert len(read_on(scroll, ReadPosition())[0]) == 16


def test_what_is_said_to_the_browser_is_as_it_was_agreed() -> None:
    assert protocol.output('"\x1b[0m€') == '{"type":"output","data":"\\"\\u001b[0m€"}'
    assert protocol.connected_message("1f") == '{"type":"connected","shell":"1f"}'
    told = msgspec.json.decode(protocol.provisioning("soon", "waiting", 3))
    assert told == {"type": "provisioning", "message": "soon", "status": "waiting", "position": 3}


def test_what_the_browser_says_is_typed_or_refused() -> None:
    assert protocol.decode_message('{"type":"input","data":"é"}') == protocol.Input("é")
    assert protocol.decode_message('{"type":"resize","cols":1,"rows":2000,"more":1}') == protocol.Resize(1, 2000)
    with pytest.raises(Invalid, match="send input with data"):
        protocol.decode_message('{"type":"resize","cols":1,"rows":2001}')
