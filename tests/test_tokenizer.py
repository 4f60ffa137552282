"""tokenizer.json against GenAI's own reading of the same GGUF file."""

import openvino_genai as genai
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.composed import composed_demo

TEXTS = [
    "",
    "Hello world",
    "  leading and trailing   ",
    "a\n\n\nb\t\tc\r\n",
    "12345 3.14 2026-11-29 1  2",
    "日本語のテキスト、漢字 한국어 ไทย",
    "emoji 😀👩‍👩‍👧‍👦🏳️‍🌈",
    "def f(x):\n    return x**2  # comment\n",
    "I'm, you're, they'll: it's",
    "naïve café e\u0301 مرحبا Здравствуй",
    "\u00a0nbsp\u3000wide ½ ² ٣ Ⅷ \ufeff \x01",
    "x" * 50,
    "<|im_start|>user\nhi<|im_end|>\na<|im_end|>b",
]
# what users paste: words, digits, runs of white space, other scripts
ANYTHING = st.text(
    st.one_of(st.sampled_from(" \n\t0123456789.,'aZ"), st.characters(exclude_categories=["Cc", "Cn", "Co", "Cs"]))
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(composed_demo() / "artifacts" / "tokenizer.json"))


@pytest.fixture(scope="module")
def original() -> genai.Tokenizer:
    return genai.Tokenizer(composed_demo() / "artifacts" / "llm")


def ids_by_genai(original: genai.Tokenizer, text: str) -> list[int]:
    return [int(i) for i in original.encode(text, add_special_tokens=False).input_ids.data.reshape(-1)]


@pytest.mark.parametrize("text", TEXTS)
def test_same_ids_as_the_original(tokenizer: Tokenizer, original: genai.Tokenizer, text: str) -> None:
    assert tokenizer.encode(text, add_special_tokens=False).ids == ids_by_genai(original, text)


@settings(max_examples=300, deadline=None)
@given(text=ANYTHING)
def test_same_ids_for_any_text_and_back(tokenizer: Tokenizer, original: genai.Tokenizer, text: str) -> None:
    assume("<" not in text or ">" not in text)  # special tokens, which the tests around this one are for
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == ids_by_genai(original, text)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("text", ["\x06", "a\x14b"])
def test_bytes_that_the_vocabulary_lacks_are_dropped(tokenizer: Tokenizer, text: str) -> None:
    """As Hugging Face does. GenAI puts <|endoftext|> there, which no user's text should be able to."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert 0 not in ids
    assert tokenizer.decode(ids) == text.replace("\x06", "").replace("\x14", "")


def test_image_token_follows_the_vocabulary(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("see <image>\n").ids[1:] == [216, 49152, 198]
    assert tokenizer.decode([49152]) == "", "special tokens never reach a client"
