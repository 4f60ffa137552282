"""`tvlm` with a fake build: every output folder counts as composed and up to date."""

import build_engines

build_engines.is_stale = lambda *_args, **_options: False
build_engines.build = lambda *_args, **_options: None

from client.cli import main  # noqa: E402

main()
