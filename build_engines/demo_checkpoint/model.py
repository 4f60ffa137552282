"""The demo model: its fixed sizes, its assembly from the LLM's GGUF file and the trained vision weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    SiglipVisionConfig,
    SiglipVisionModel,
)
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from build_engines.adapter_files import ADAPTER_CONFIG
from build_engines.demo_checkpoint.adapter import Adapter
from build_engines.gguf_wheel import locate_gguf

IMAGE_TOKEN = "<image>"
IMAGE_TOKEN_ID = 49152
IMAGE_PIXELS = 128
PATCH_PIXELS = 16
VISUAL_TOKENS = (IMAGE_PIXELS // PATCH_PIXELS) ** 2
TRAINED_WIDTH = 192
EOS_TOKEN_ID = 2
VISION_FILE = "vision.safetensors"


def llava_config(width: int = TRAINED_WIDTH + VISUAL_TOKENS) -> LlavaConfig:
    """The configuration written into the checkpoint; the vocabulary grows by one row, for `<image>`.

    The tower is trained `TRAINED_WIDTH` wide; `place_channels.widen` then adds one channel for every token's place.
    """
    text = LlamaConfig(
        vocab_size=IMAGE_TOKEN_ID + 1,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=EOS_TOKEN_ID,
        pad_token_id=2,
    )
    vision = SiglipVisionConfig(
        hidden_size=width,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=width // 64,
        image_size=IMAGE_PIXELS,
        patch_size=PATCH_PIXELS,
        vision_use_head=False,
    )
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=IMAGE_TOKEN_ID,
        image_seq_length=VISUAL_TOKENS,
        projector_hidden_act="gelu",
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        tie_word_embeddings=True,
        eos_token_id=EOS_TOKEN_ID,
        architectures=["LlavaForConditionalGeneration"],
    )


class VisionPath(nn.Module):
    """Tower and connector: normalised pixels float32 [N, 3, 128, 128] to visual tokens float32 [N, 64, 576].

    The connector reads the last encoder layer before the post layernorm: what `hidden_states[-1]` is in
    transformers' LLaVA.
    """

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__()
        self.vision_tower = SiglipVisionModel(config.vision_config)
        self.multi_modal_projector = LlavaMultiModalProjector(config)

    def features(self, pixels: Tensor, layers: int | None = None) -> list[Tensor]:
        """The patch embeddings and the output of the first `layers` (or all) layers, float32 [N, 64, width] each."""
        hidden = self.vision_tower.embeddings(pixels)
        outputs = [hidden]
        for layer in self.vision_tower.encoder.layers[:layers]:
            hidden = layer(hidden, None)
            outputs.append(hidden)
        return outputs

    def forward(self, pixels: Tensor) -> Tensor:
        """Visual tokens."""
        tokens: Tensor = self.multi_modal_projector(self.features(pixels)[-1])
        return tokens


class TilesToTokens(nn.Module):
    """The exported graph: tiles UINT8 [N, 128, 128, 3] to visual tokens float32 [N, 64, 576]."""

    def __init__(self, path: VisionPath) -> None:
        super().__init__()
        self.path = path

    def forward(self, tiles: Tensor) -> Tensor:
        """Visual tokens."""
        # Cast first: some runtimes have no UINT8 transpose.
        pixels = tiles.to(torch.float32).permute(0, 3, 1, 2) / 127.5 - 1.0
        tokens: Tensor = self.path(pixels)
        return tokens


def load_language_model() -> Any:
    """SmolLM2-135M-Instruct, its weights dequantised to float32 (a LlamaForCausalLM in eval mode)."""
    gguf = locate_gguf()
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    return model.eval()


def load_tokenizer(cache: Path | None = None) -> Any:
    """The LLM's tokenizer with `<image>` as id 49152; `cache` keeps it, as reading the GGUF takes half a minute."""
    if cache is not None and (cache / "tokenizer.json").is_file():
        return AutoTokenizer.from_pretrained(str(cache))
    gguf = locate_gguf()
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE_TOKEN]})
    if tokenizer.convert_tokens_to_ids(IMAGE_TOKEN) != IMAGE_TOKEN_ID:
        raise ValueError(f"tokenizer: {IMAGE_TOKEN} must have id {IMAGE_TOKEN_ID}")
    if cache is not None:
        tokenizer.save_pretrained(str(cache))
    return tokenizer


def load_vision(checkpoint_dir: Path) -> VisionPath:
    """Tower and connector of a checkpoint, float32, eval mode."""
    path = VisionPath(LlavaConfig.from_pretrained(str(checkpoint_dir)))
    state = load_file(str(checkpoint_dir / VISION_FILE))
    path.load_state_dict({name.removeprefix("model."): value.float() for name, value in state.items()})
    return path.eval()


def load_reference(checkpoint_dir: Path) -> LlavaForConditionalGeneration:
    """The whole model, float32, eval mode: LLM from the GGUF file, tower, connector and adapter from the checkpoint."""
    model = LlavaForConditionalGeneration(LlavaConfig.from_pretrained(str(checkpoint_dir)))
    vision = {name: value.float() for name, value in load_file(str(checkpoint_dir / VISION_FILE)).items()}
    model.load_state_dict(language_state() | vision)
    model.tie_weights()
    if (checkpoint_dir / ADAPTER_CONFIG).is_file():
        Adapter.load(model.model.language_model.layers, checkpoint_dir).follow(model, IMAGE_TOKEN_ID)
    return model.eval()


def language_state() -> dict[str, Tensor]:
    """The LLM's weights under the names that they have in a LLaVA model, with a row for `<image>`."""
    language = load_language_model()
    # A Llama read from GGUF keeps quantisation marks, so its state is copied into the fresh model.
    state = {f"model.language_model.{name}": value for name, value in language.model.state_dict().items()}
    words = state["model.language_model.embed_tokens.weight"]
    words = torch.cat([words, words.new_zeros(IMAGE_TOKEN_ID + 1 - words.shape[0], words.shape[1])])
    state["model.language_model.embed_tokens.weight"] = words
    state["lm_head.weight"] = words
    return state
