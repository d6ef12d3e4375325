"""Golden greedy tokens from the reference: Hugging Face transformers in float32.

    python scripts/make_goldens.py tests/data/prompts_50.jsonl tests/data/goldens_smollm2.json

Each line of the prompts is {"id", "source", "messages": [...]}; messages are rendered with the
model's own chat template. The output holds, per prompt, its token ids, the greedy tokens after it,
and at each of these how far the best logit lay above the second: where two implementations may
differ is then known without running the reference (see the tests' near-tie exemption).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers import __version__ as transformers_version

from libs.demo.model import DEMO, ensure_demo_model


def main() -> int:
    """Compute every prompt, with progress on stderr; the file appears whole at the end."""
    parser = argparse.ArgumentParser(description="Compute golden greedy tokens with transformers.")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", type=Path, help="a .gguf file or a folder; default: the demo")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    tokenizer, model = load_reference(options.model or ensure_demo_model())
    lines = [json.loads(line) for line in options.prompts.read_text("utf-8").splitlines() if line]
    goldens = []
    for at, line in enumerate(lines, start=1):
        prompt = render(tokenizer, line["messages"])
        tokens, gaps = greedy(model, prompt, options.new_tokens)
        goldens.append({"id": line["id"], "prompt": prompt, "tokens": tokens, "gaps": gaps})
        print(f"{at}/{len(lines)} {line['id']}: {len(prompt)} tokens", file=sys.stderr)
    write(options.output, goldens, options.new_tokens)
    return 0


def load_reference(path: Path) -> tuple[Any, Any]:
    """(tokenizer, model), float32, from a GGUF file or a folder."""
    where: dict[str, Any] = {"pretrained_model_name_or_path": str(path)}
    if path.is_file():
        where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model: Any = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    return tokenizer, model.eval()


def render(tokenizer: Any, messages: list[dict[str, Any]]) -> list[int]:
    """Token ids of the conversation, up to where the assistant's next turn begins."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


@torch.inference_mode()
def greedy(model: Any, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """``count`` greedy tokens (end tokens do not stop it) and the gap of the two best logits."""
    tokens: list[int] = []
    gaps: list[float] = []
    cache, fed = DynamicCache(), prompt
    for _ in range(count):
        out = model(torch.tensor([fed]), cache=cache, use_cache=True, logits_to_keep=1)
        best = out.logits[0, -1].float().topk(2)
        fed = [int(best.indices[0])]  # the cache was extended in place
        tokens.append(fed[0])
        gaps.append(round(float(best.values[0] - best.values[1]), 6))
    return tokens, gaps


def write(path: Path, goldens: list[dict[str, Any]], new_tokens: int) -> None:
    """One golden a line, so that a change shows as the lines it touches."""
    head = {
        "model": DEMO.alias,
        "made_with": f"transformers {transformers_version}, torch {torch.__version__}, float32",
        "new_tokens": new_tokens,
    }
    lines = ",\n".join(json.dumps(golden, separators=(",", ":")) for golden in goldens)
    text = json.dumps(head)[:-1] + ', "goldens": [\n' + lines + "\n]}\n"
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
