"""The playground at `/`: one static page that uses the gateway's own API. No build step, nothing from other hosts."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

_FOLDER = Path(__file__).parent
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}  # UTF-8 is added
# Only the page's own files run or style it; pictures are data: URIs, as they are sent; it calls this gateway only.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # after an upgrade the page's files must be of one version
}

router = APIRouter(include_in_schema=False)


def _serve(path: str, name: str) -> None:
    """Answer GET `path` with a file of this folder; known names only, so that no path of a request is ever opened."""

    async def answer() -> FileResponse:
        return FileResponse(_FOLDER / name, media_type=_TYPES[Path(name).suffix], headers=_HEADERS)

    router.add_api_route(path, answer, methods=["GET"])


_serve("/", "index.html")
for _name in ("style.css", "page.js", "pictures.js", "stream.js", "view.js"):
    _serve(f"/playground/{_name}", _name)
