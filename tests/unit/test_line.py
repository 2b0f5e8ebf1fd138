"""Lines that people write for others: all that they hold is to be seen."""

from __future__ import annotations

import pytest

from hostler.errors import Invalid
from hostler.model.name import check_line


@pytest.mark.parametrize(
    "text",
    [
        *("hello", "größe €", "日本", "-", "e\u0301", "*", "😀", "\U0001fae8", "نام\u200cها", "क्\u200dष", "a\u2800b"),
        *("👩\u200d💻", "👩🏽\u200d💻", "❤\ufe0f\u200d🔥", "\ue000"),
    ],
)
def test_what_can_be_read_is_taken_as_it_is(text: str) -> None:
    assert check_line(text, "message") == text


@pytest.mark.parametrize(
    "text", ["", " ", "\u00a0", "\u2800", "\u3164", "\u115f\u1160", "\uffa0", "\u0301" * 5, "\ufe0f"]
)
def test_what_nobody_sees_says_nothing(text: str) -> None:
    with pytest.raises(Invalid, match=r"^message: has no visible character"):
        check_line(text, "message")


@pytest.mark.parametrize(
    "char", "\u200b\ufeff\U000e0041\u200f\u061c\u00ad\u202e\u2066\u200d\u200c\u2060\u2065\U000e0000"
)
def test_format_characters_are_refused_wherever_they_stand(char: str) -> None:
    for text in (char, f"a{char}", f"{char}a", f"a {char} b", f"a{char}{char}b"):
        with pytest.raises(Invalid, match="which is invisible"):
            check_line(text, "message")


@pytest.mark.parametrize("char", "\n\r\t\x1b\x9b\u2028\u2029\ud800")
def test_it_is_one_line_without_control_characters(char: str) -> None:
    with pytest.raises(Invalid, match="on one line"):
        check_line(f"a{char}b", "message")
