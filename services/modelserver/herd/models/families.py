"""The families that Herd has, by the names that model files give them."""

from __future__ import annotations

from services.modelserver.herd.models.errors import UnsupportedModel
from services.modelserver.herd.models.family import Family
from services.modelserver.herd.models.gemma3 import GEMMA3
from services.modelserver.herd.models.llama import LLAMA, MISTRAL
from services.modelserver.herd.models.qwen2 import QWEN2
from services.modelserver.herd.models.qwen3 import QWEN3

FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA3)


def family_named(name: str) -> Family:
    """By ModelConfig.architecture, which GGUF files have too, or by a name of Hugging Face's."""
    for family in FAMILIES:
        if name == family.name or name in family.hf_names:
            return family
    known = ", ".join(sorted(family.hf_names[0] for family in FAMILIES))
    raise UnsupportedModel(f"architecture {name} is not supported; supported: {known}")
