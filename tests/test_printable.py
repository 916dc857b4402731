from __future__ import annotations

import sys
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from sinuflow.printable import printable


@given(st.text())
def test_no_terminal_control_character_is_left(text):
    shown = printable(text)
    assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in shown)
    shown.encode()
    assert len(shown.splitlines()) <= 1


def test_attacks_are_shown_as_escapes():
    assert printable("\x1b]0;title\x07") == r"\x1b]0;title\x07"
    assert printable("\x9b2J") == r"\x9b2J"
    assert printable("user\u202egnp.exe") == r"user\u202egnp.exe"
    assert printable("two\nlines\r\u2028") == r"two\nlines\r\u2028"
    assert printable(b"caf\xe9".decode("utf-8", "surrogateescape")) == r"caf\udce9"


def test_ordinary_text_of_all_scripts_is_left_alone():
    for text in ("höhe", "身長", "גובה", "ارتفاع", "👩‍🔬", "می‌خواهم", "a b", ""):
        assert printable(text) == text
    letters = [chr(i) for i in range(sys.maxunicode + 1) if chr(i).isalnum()]
    assert printable("".join(letters)) == "".join(letters)
