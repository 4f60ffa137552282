"""Incremental text: whole characters only, stop strings wherever the token borders lie."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from python_backends.router.text import TextAssembler
from tests.fakes.tokenizer import byte_tokenizer

TOKENIZER = byte_tokenizer()
# no lone surrogates; U+FFFD is what an unfinished character looks like to a decoder
texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\ufffd"), max_size=40)


@given(texts)
def test_pieces_join_to_the_text_and_never_split_a_character(text: str) -> None:
    assembler = TextAssembler(TOKENIZER, ())
    pieces = [assembler.feed([byte]) for byte in text.encode()]
    assert "".join(pieces) + assembler.finish() == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_emoji_and_combining_marks_come_whole() -> None:
    assembler = TextAssembler(TOKENIZER, ())
    text = "👩‍👩‍👧 é 日本"
    pieces = [assembler.feed([byte]) for byte in text.encode()]
    assert "".join(pieces) == text
    assert "👩" in pieces


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_stop_strings_cut_at_the_earliest_and_nothing_of_them_leaks(text: str, stops: list[str]) -> None:
    assembler = TextAssembler(TOKENIZER, stops)
    sent = ""
    for byte in text.encode():
        sent += assembler.feed([byte])
        if assembler.stopped:
            break
    sent += assembler.finish()
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert sent == text
        assert not assembler.stopped
        return
    # token by token, the stop string that is complete first wins; among those, the one that began first
    first_end = min(ends)
    begin = min(first_end - len(s) for s in stops if text[:first_end].endswith(s))
    assert sent == text[:begin]
    assert assembler.stopped


def test_text_that_only_looks_like_a_stop_string_is_held_back_and_then_sent() -> None:
    assembler = TextAssembler(TOKENIZER, ["STOP"])
    assert assembler.feed(b"go ST") == "go "
    assert assembler.feed(b"AY") == "STAY"
    assert assembler.feed(b" ST") == " "
    assert assembler.finish() == "ST"
