"""API keys: who asks. Only their SHA-256 is kept; keys are long and random, so it needs no salt."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gateway.settings import KEYS_VARIABLE, GatewaySettings, SettingsError

ANONYMOUS = "anonymous"
_MAX_KEY_LENGTH = 512  # a longer one is none of ours, and is not hashed
_LINE = re.compile(r"([0-9a-fA-F]{64})\s+(\S+)")


@dataclass(frozen=True)
class ApiKey:
    """A key's hash and the name that logs and limits know it by."""

    digest: bytes
    name: str


class KeyRing:
    """The keys that are accepted; an empty ring lets everybody in, as `anonymous`."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = tuple(keys)

    def identify(self, key: str | None) -> str | None:
        """The name of the key's holder, None for a key that is not known. Takes the same time wherever they differ."""
        if not self._keys:
            return ANONYMOUS
        if key is None or len(key) > _MAX_KEY_LENGTH:
            return None
        digest = hashlib.sha256(key.encode()).digest()
        name = None
        for known in self._keys:  # all of them: how long it takes must not tell which one it was
            if hmac.compare_digest(known.digest, digest):
                name = known.name
        return name


def load_keys(settings: GatewaySettings, from_environment: Iterable[str]) -> KeyRing:
    """The keys of file and environment.

    Raises:
        SettingsError: the file can't be used, or there are no keys although others than this machine can connect.
    """
    keys = [
        ApiKey(hashlib.sha256(key.encode()).digest(), f"environment-{number}")
        for number, key in enumerate(from_environment)
    ]
    if settings.api_keys_file is not None:
        keys += _read(settings.api_keys_file)
    if not keys and not settings.is_local and not settings.allow_no_keys:
        raise SettingsError(
            f"host {settings.host} can be reached from outside and there are no API keys: name a file in "
            f"api_keys_file, set {KEYS_VARIABLE}, or allow it with allow_no_keys"
        )
    return KeyRing(keys)


def _read(path: Path) -> list[ApiKey]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"api_keys_file {path}: {getattr(error, 'strerror', None) or 'not text'}") from error
    keys = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = _LINE.fullmatch(text)
        if not found:  # the line itself stays out of the message: it may be a key
            raise SettingsError(f"api_keys_file {path}, line {number}: expected SHA256 NAME")
        keys.append(ApiKey(bytes.fromhex(found[1]), found[2]))
    if not keys:
        raise SettingsError(f"api_keys_file {path} holds no key")
    return keys
