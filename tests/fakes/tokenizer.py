"""A byte tokenizer: token ids are the bytes of the text. Small enough to see through, and it splits characters."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def byte_tokenizer() -> Tokenizer:
    """Ids 0 to 255 are bytes; 256 is <|im_start|>, 257 <|im_end|>, 258 <image> (special)."""
    alphabet = _byte_alphabet()
    tokenizer = Tokenizer(models.BPE(vocab={char: byte for byte, char in alphabet.items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ("<|im_start|>", "<|im_end|>", "<image>")
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    return tokenizer


def _byte_alphabet() -> dict[int, str]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in alphabet)
    return alphabet | {byte: chr(256 + i) for i, byte in enumerate(others)}
