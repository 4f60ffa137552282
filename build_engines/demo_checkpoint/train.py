"""Train the demo checkpoint from nothing (extra "train", and the fonts below).

    python -m build_engines.demo_checkpoint.train --out runs/demo [--minutes-language 60] [--minutes-tower 120]
    python -m build_engines.demo_checkpoint.train --out runs/demo --minutes-tower 180     # go on where it stopped

Four stages (`language_stage`, `tower_stage`, `connector_stage`, `adapter_stage`); one that was stopped, or given more
minutes, goes on from its last save, but for the connector's, which is short. The checkpoint is then in OUT/checkpoint.
Debian packages of the fonts: fonts-noto-color-emoji, fonts-dejavu, fonts-liberation, fonts-freefont-ttf.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from build_engines.demo_checkpoint.adapter_stage import train_adapter
from build_engines.demo_checkpoint.codebook import Codebook
from build_engines.demo_checkpoint.connector_stage import train_connector
from build_engines.demo_checkpoint.export import export_checkpoint
from build_engines.demo_checkpoint.language_stage import train_codebook
from build_engines.demo_checkpoint.model import load_language_model, load_tokenizer
from build_engines.demo_checkpoint.packing import Language
from build_engines.demo_checkpoint.pictures import has_emoji_font
from build_engines.demo_checkpoint.tower_stage import train_tower


def main() -> None:
    """Run the stages and export."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run: saves, logs, the checkpoint")
    parser.add_argument("--minutes-language", type=float, default=60)
    parser.add_argument("--minutes-tower", type=float, default=120)
    parser.add_argument("--minutes-connector", type=float, default=5)
    parser.add_argument("--minutes-adapter", type=float, default=10)
    options = parser.parse_args()
    console = Console()
    if not has_emoji_font():
        parser.error("the objects are drawn from Noto Color Emoji: install Debian's fonts-noto-color-emoji")
    options.out.mkdir(parents=True, exist_ok=True)
    console.print(
        f"Codebook through the frozen LLM, {options.minutes_language:g} min (log: {options.out}/language.jsonl)"
    )
    language = Language(load_language_model(), load_tokenizer(options.out))
    train_codebook(options.out, options.minutes_language, language)
    console.print(f"Tower, {options.minutes_tower:g} min (log: {options.out}/tower.jsonl)")
    state = train_tower(options.out, options.minutes_tower)
    console.print(f"Connector, {options.minutes_connector:g} min")
    book = Codebook.load(options.out / "codebook.pt")
    train_connector(state, book, options.out, options.minutes_connector)
    console.print(f"LoRA adapter, {options.minutes_adapter:g} min (log: {options.out}/adapter.jsonl)")
    adapter = train_adapter(options.out, options.minutes_adapter, language, book)
    export_checkpoint(state.path, adapter, options.out / "checkpoint")
    console.print(
        f"Exported {options.out / 'checkpoint'}; next: python -m build_engines.demo_checkpoint.evaluate --help"
    )


if __name__ == "__main__":
    main()
