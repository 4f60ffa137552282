"""The Chromium that the playground is tested in. As a script: exits with 0 where there is one, and names it."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

_NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """The browser on PATH, else the one that `playwright install chromium-headless-shell` brought."""
    for name in _NAMES:
        if found := shutil.which(name):
            return found
    with sync_playwright() as playwright:
        folder = Path(playwright.chromium.executable_path).parents[2]
    return next((str(path) for path in folder.glob("chromium*/*/*headless*shell")), None)


if __name__ == "__main__":
    found = chromium()
    print(found or "no Chromium found")
    sys.exit(found is None)
