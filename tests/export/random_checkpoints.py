"""Small checkpoints of every family with random weights, made by transformers (the extra [export])."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    SiglipVisionConfig,
)

SIDE, PATCH = 56, 14
CHARACTERS = "ĊĠ" + "".join(map(chr, range(33, 127)))  # newline, blank and ASCII, one token each
SPECIAL = ("<s>", "</s>", "<pad>", "<image>", "<|user|>", "<|assistant|>", "<video>")
BOS, EOS, PAD, IMAGE, VIDEO = 0, 1, 2, 3, 6
VOCABULARY = len(SPECIAL) + len(CHARACTERS)
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ part['text'] }}{% endgeneration %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_TOWER = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 3}
_LLM = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
    "tie_word_embeddings": False,
}
_CLIP = CLIPVisionConfig(image_size=SIDE, patch_size=PATCH, **_TOWER)
_COMMON: dict[str, Any] = {"image_token_index": IMAGE, "tie_word_embeddings": False}
_NEXT_CANVASES = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]
_ONE_CANVASES = [[56 * rows, 56 * columns] for rows in range(1, 5) for columns in range(1, 5)]
_CLIP_PICTURES = {
    "do_resize": True, "do_rescale": True, "do_normalize": True, "do_convert_rgb": True, "resample": 3,
    "size": {"shortest_edge": SIDE}, "do_center_crop": True, "crop_size": {"height": SIDE, "width": SIDE},
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
}  # fmt: skip
_SIGLIP_PICTURES = {
    "do_resize": True, "do_rescale": True, "do_normalize": True, "do_convert_rgb": True, "resample": 3,
    "size": {"height": SIDE, "width": SIDE}, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip
FAMILIES = ("llava", "llava_next", "llava_onevision")
QWEN = "qwen2_5_vl"
QWEN_AREA = {"min_pixels": 56 * 56, "max_pixels": 28 * 28 * 300}
QWEN_MARKS = {"vision_start_token_id": 4, "vision_end_token_id": 5}  # <|user|> and <|assistant|> play them
# as the published one: namespaces, and the placeholder between two marks
QWEN_TEMPLATE = (
    "{% set image_count = namespace(value=0) %}{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "{% set image_count.value = image_count.value + 1 %}"
    "{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}<|user|><image><|assistant|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}<pad>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def make(family: str, folder: Path, seed: int = 1) -> Path:
    """Write the checkpoint of a family; gives its folder."""
    torch.manual_seed(seed)
    model, pictures, processor = _made(family)
    _spread(model)
    model.eval().save_pretrained(folder)
    GenerationConfig(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "preprocessor_config.json").write_text(json.dumps(pictures, indent=1))
    (folder / "processor_config.json").write_text(json.dumps(processor, indent=1))
    return folder


def tokenizer() -> PreTrainedTokenizerFast:
    """ASCII, so that an answer's text tells its tokens; every prompt begins with <s>."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *CHARACTERS])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>", padding_side="left",
        extra_special_tokens={"image_token": "<image>", "video_token": "<video>"},
    )  # fmt: skip


def _made(family: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    if family == "llava":
        config = LlavaConfig(vision_config=_CLIP, text_config=LlamaConfig(**_LLM), image_seq_length=16, **_COMMON)
        pictures = {**_CLIP_PICTURES, "image_processor_type": "CLIPImageProcessor"}
        processor = {"processor_class": "LlavaProcessor", "num_additional_image_tokens": 1}
        strategy, model = "default", LlavaForConditionalGeneration(config)
    elif family == "llava_next":
        text = MistralConfig(sliding_window=None, **_LLM)
        config = LlavaNextConfig(
            vision_config=_CLIP, text_config=text, image_grid_pinpoints=_NEXT_CANVASES, image_seq_length=16, **_COMMON
        )  # fmt: skip
        pictures = {
            **_CLIP_PICTURES, "image_processor_type": "LlavaNextImageProcessor", "do_pad": True,
            "image_grid_pinpoints": _NEXT_CANVASES,
        }  # fmt: skip
        processor = {"processor_class": "LlavaNextProcessor", "num_additional_image_tokens": 1}
        strategy, model = "default", LlavaNextForConditionalGeneration(config)
    else:
        tower = SiglipVisionConfig(image_size=SIDE, patch_size=PATCH, vision_use_head=False, **_TOWER)
        config = LlavaOnevisionConfig(
            vision_config=tower, text_config=Qwen2Config(**_LLM), image_grid_pinpoints=_ONE_CANVASES,
            vision_aspect_ratio="anyres_max_4", vision_feature_layer=-1, vision_feature_select_strategy="full",
            video_token_index=VIDEO, **_COMMON,
        )  # fmt: skip
        pictures = {
            **_SIGLIP_PICTURES, "image_processor_type": "LlavaOnevisionImageProcessor", "do_pad": True,
            "image_grid_pinpoints": _ONE_CANVASES,
        }  # fmt: skip
        processor = {
            "processor_class": "LlavaOnevisionProcessor", "num_image_tokens": 16, "vision_aspect_ratio": "anyres_max_4"
        }  # fmt: skip
        strategy, model = "full", LlavaOnevisionForConditionalGeneration(config)
    return model, pictures, {**processor, "patch_size": PATCH, "vision_feature_select_strategy": strategy}


def make_qwen(folder: Path, seed: int = 1) -> Path:
    """Write a Qwen2.5-VL checkpoint."""
    torch.manual_seed(seed)
    text = {**_LLM, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}}
    vision = {
        "depth": 4, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "out_hidden_size": 128,
        "fullatt_block_indexes": [1, 3], "window_size": 112, "patch_size": 14, "spatial_merge_size": 2,
    }  # fmt: skip
    config = Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, image_token_id=IMAGE, video_token_id=VIDEO, **QWEN_MARKS
    )  # fmt: skip
    model = Qwen2_5_VLForConditionalGeneration(config)
    _spread(model)
    model.eval().save_pretrained(folder)
    GenerationConfig(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": QWEN_TEMPLATE}))
    pictures = {**_CLIP_PICTURES, "image_processor_type": "Qwen2VLImageProcessor", **QWEN_AREA}
    for key in ("size", "do_center_crop", "crop_size"):
        del pictures[key]
    (folder / "preprocessor_config.json").write_text(json.dumps(pictures, indent=1))
    return folder


def _spread(model: Any) -> None:
    """Random weights as they come give logits that hardly differ; wider ones make answers that mean something."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in name:
                parameter.normal_(0, parameter[0].numel() ** -0.5 * 1.5)
            elif "embed_tokens" in name:
                parameter.normal_(0, 1)
