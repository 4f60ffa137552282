"""A LoRA adapter on the LLM that acts on what follows the first picture of a prompt, and on nothing else.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021. It is off for the first picture and what comes
before, so the second one is told from it, and for every token that is generated, which OpenVINO GenAI embeds itself. So
an answer without pictures is the frozen LLM's. The files are PEFT's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from build_engines.adapter_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, weight_name

RANK = 16
ALPHA = 32
# Every matrix costs time in every step of the LLM, where the adapter is off too. These few learn as well as all.
ADAPTED = ("q_proj", "k_proj", "v_proj")
LAYERS = range(10, 22, 2)  # of 30


class Switch:
    """Where the adapter acts in the next call: `gate` is float32 [N, L, 1], 1 on and 0 off; None is off everywhere."""

    def __init__(self) -> None:
        self.gate: Tensor | None = None


class LoraLinear(nn.Module):
    """A frozen linear layer plus gate * scale * B(A(x))."""

    def __init__(self, base: nn.Linear, rank: int, scale: float, switch: Switch) -> None:
        super().__init__()
        self.base, self.scale, self.switch = base, scale, switch
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        """As the layer that it stands for: float32 [N, L, in] to [N, L, out]."""
        result: Tensor = self.base(x)
        if self.switch.gate is not None:
            result = result + self.lora_B(self.lora_A(x) * (self.switch.gate * self.scale))
        return result


class Adapter:
    """The adapter's matrices inside some layers of a Llama, which it changes in place."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self.switch = Switch()
        self._loras: dict[tuple[int, str], LoraLinear] = {}
        for index in LAYERS:
            attention = layers[index].self_attn
            for module in ADAPTED:
                lora = LoraLinear(getattr(attention, module), RANK, ALPHA / RANK, self.switch)
                setattr(attention, module, lora)
                self._loras[index, module] = lora

    def parameters(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """What is trained: every A [rank, in], and every B [out, rank]."""
        loras = self._loras.values()
        return [lora.lora_A.weight for lora in loras], [lora.lora_B.weight for lora in loras]

    def state(self) -> dict[str, Tensor]:
        """The matrices under PEFT's names."""
        return {
            weight_name(*place, part): getattr(lora, part).weight.detach()
            for place, lora in self._loras.items()
            for part in ("lora_A", "lora_B")
        }

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` gave (KeyError when a matrix is missing)."""
        for name, own in self.state().items():
            own.copy_(state[name])

    def save(self, folder: Path) -> None:
        """Write the adapter's two files; weights are rounded to float16."""
        save_file({k: v.half().contiguous() for k, v in self.state().items()}, str(folder / ADAPTER_WEIGHTS))
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct",
            "inference_mode": True,
            "r": RANK,
            "lora_alpha": ALPHA,
            "target_modules": list(ADAPTED),
            "layers_to_transform": list(LAYERS),
            "bias": "none",
        }
        (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")

    @classmethod
    def load(cls, layers: Sequence[Any], folder: Path) -> Adapter:
        """The adapter of a checkpoint folder, put into `layers`."""
        adapter = cls(layers)
        adapter.load_state(load_file(str(folder / ADAPTER_WEIGHTS)))
        return adapter

    def follow(self, model: Any, image_token_id: int) -> None:
        """Switch on in the prompts, and off in the single tokens, that a model in transformers is called with."""

        def switch(_: nn.Module, __: Any, inputs: dict[str, Any]) -> None:
            ids = inputs["input_ids"]
            self.switch.gate = gate_after_first_picture(ids == image_token_id) if ids.shape[1] > 1 else None

        model.register_forward_pre_hook(switch, with_kwargs=True)


def gate_after_first_picture(visual: Tensor) -> Tensor:
    """For prompts whose visual tokens are marked, bool [N, L]: where an adapter acts, float32 [N, L, 1]."""
    behind = ~visual & (visual.cumsum(1) > 0)
    return (behind.cumsum(1) > 0).float()[..., None]
