"""Where the vision encoder puts visual tokens that stay on its GPU: pages that the router allocated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.errors import invalid

PAGE_TOKENS = 16  # of 196 or 729 visual tokens an image, 6 or 1 % is lost in last pages
_MOST_PAGES = (1 << 31) // PAGE_TOKENS  # whose rows int32 counts


@dataclass(frozen=True)
class PageTarget:
    """Pages of one picture, in order, and how many visual tokens the router foresees for it."""

    pool: str  # address; to know it is to be allowed to write there
    pages: tuple[int, ...]
    tokens: int

    def parameters(self) -> dict[str, str]:
        """As request parameters, which an ensemble hands on to its steps."""
        return {"pool": self.pool, "pages": " ".join(map(str, self.pages)), "page_rows": str(self.tokens)}

    @classmethod
    def parse(cls, parameters: Mapping[str, Any]) -> PageTarget | None:
        """The other way round; None where nothing is said of pages (ServingError, INVALID_ARG)."""
        if "pool" not in parameters:
            return None
        try:
            pages = tuple(int(page) for page in str(parameters["pages"]).split())
            target = cls(str(parameters["pool"]), pages, int(parameters["page_rows"]))
        except (KeyError, ValueError):
            raise invalid("pages", "must be numbers between spaces, beside page_rows and pool") from None
        if not 0 < target.tokens <= len(pages) * PAGE_TOKENS:
            raise invalid("page_rows", f"{target.tokens} must be from 1 to {len(pages) * PAGE_TOKENS}")
        if min(pages) < 0 or max(pages) >= _MOST_PAGES:
            raise invalid("pages", f"{min(pages)} to {max(pages)} must be from 0 to {_MOST_PAGES - 1}")
        return target

    def rows(self) -> NDArray[np.int32]:
        """The row of the pool, counted over all its pages, of each visual token."""
        numbers = np.array(self.pages, np.int32)[:, np.newaxis] * PAGE_TOKENS + np.arange(PAGE_TOKENS, dtype=np.int32)
        return np.asarray(numbers.reshape(-1)[: self.tokens], np.int32)
