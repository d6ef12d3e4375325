"""From logits to tokens, for all rows of a step at once.

A row's token depends on its own logits, parameters, seed and count of sampled tokens, and on
nothing else in the batch: the noise is one number, a hash of (seed, count), and the token is where
that number falls in the row's cumulative distribution (in order of token id). So a request gives
the same tokens in any batch, after a preemption, or on another server.

Order of operations: repetition, frequency and presence penalties, logit bias, min_tokens mask;
then argmax, or temperature, top_k, top_p, min_p and the draw. Logprobs are of the raw logits.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import torch

from services.modelserver.herd.engine.sampled import RowSampling, Sampled, TokenLogprobs
from services.modelserver.herd.engine.sampling_params import SamplingParams as SamplingParams

# top_p seldom needs more than this many of the most likely tokens; when it does, we sort them all.
_CANDIDATES = 1024


@torch.inference_mode()
def sample(
    logits: torch.Tensor,
    rows: Sequence[RowSampling],
    eos_ids: Sequence[int] = (),
    best: torch.Tensor | None = None,
) -> Sampled:
    """One token for each of the S rows of logits [S, vocab] float32, which stay unchanged.

    ``eos_ids`` are the model's own end tokens, ``best`` the first of each row's largest logits
    where that is known. ValueError when a row that draws has no seed.
    """
    if len(rows) != logits.shape[0]:
        raise ValueError(f"{logits.shape[0]} rows of logits, {len(rows)} rows of parameters")
    if not rows:
        return Sampled([], [])
    tokens = logits.argmax(dim=-1) if best is None else best.clone()
    banned = [_banned(row, eos_ids) for row in rows]
    # Plain greedy rows are done. The others are worked on in a copy.
    others = [
        i
        for i, row in enumerate(rows)
        if not row.params.greedy or row.params.penalizes or row.params.logit_bias or banned[i]
    ]
    if others:
        own = [rows[i] for i in others]
        adjusted = _adjusted(logits[others], own, [banned[i] for i in others])
        chosen = adjusted.argmax(dim=-1)
        drawn = [at for at, row in enumerate(own) if not row.params.greedy]
        if drawn:
            chosen[drawn] = _draw(adjusted[drawn], [own[at] for at in drawn])
        tokens[others] = chosen
    return Sampled(tokens.tolist(), _logprobs(logits, tokens, rows))


def uniform(seed: int, count: int) -> float:
    """A number in [0, 1) with 53 random bits that depends on (seed modulo 2**64, count) alone."""
    packed = struct.pack("<QQ", seed % 2**64, count)
    digest = hashlib.blake2b(packed, digest_size=8).digest()
    return float(int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _adjusted(
    logits: torch.Tensor, rows: Sequence[RowSampling], banned: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Penalties, bias and the min_tokens mask, in place, each for all rows at once."""
    repeated = [at for at, row in enumerate(rows) if row.params.repetition_penalty != 1.0]
    if repeated:
        _discourage_repetition(logits, rows, repeated)
    penalized = [
        at
        for at, row in enumerate(rows)
        if row.params.presence_penalty != 0.0 or row.params.frequency_penalty != 0.0
    ]
    if penalized:
        _penalize_output(logits, rows, penalized)
    biases = [
        (at, token, bias) for at, row in enumerate(rows) for token, bias in row.params.logit_bias
    ]
    if biases:
        at, token, bias = zip(*biases, strict=True)
        places = torch.tensor(at), torch.tensor(token)
        logits.index_put_(places, torch.tensor(bias), accumulate=True)
    masked = [(at, token) for at, tokens in enumerate(banned) for token in tokens]
    if masked:
        at, token = zip(*masked, strict=True)
        logits[torch.tensor(at), torch.tensor(token)] = float("-inf")
    return logits


def _banned(row: RowSampling, eos_ids: Sequence[int]) -> list[int]:
    if row.sampled >= row.params.min_tokens:
        return []
    return [*eos_ids, *row.params.stop_token_ids]


def _discourage_repetition(
    logits: torch.Tensor, rows: Sequence[RowSampling], which: Sequence[int]
) -> None:
    """Of tokens of prompt and output, on either side of zero; in place on logits [n, vocab]."""
    seen, _ = _occurrences(logits, which, [rows[at].tokens for at in which])
    penalties = torch.tensor([row.params.repetition_penalty for row in rows])
    factor, found = penalties[seen // logits.shape[-1]], logits.view(-1)[seen]
    logits.view(-1)[seen] = torch.where(found > 0, found / factor, found * factor)


def _penalize_output(
    logits: torch.Tensor, rows: Sequence[RowSampling], which: Sequence[int]
) -> None:
    """Tokens of the output, once and by how often they occur; in place on logits [n, vocab]."""
    outputs = [rows[at].tokens[rows[at].num_prompt :] for at in which]
    said, times = _occurrences(logits, which, outputs)
    presence = torch.tensor([row.params.presence_penalty for row in rows])
    frequency = torch.tensor([row.params.frequency_penalty for row in rows])
    row = said // logits.shape[-1]
    logits.view(-1)[said] -= presence[row] + frequency[row] * times


def _occurrences(
    logits: torch.Tensor, which: Sequence[int], tokens: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token that occurs, by its place in the flattened logits, and how often: `tokens` are of
    the rows `which`."""
    ids = torch.tensor([token for each in tokens for token in each], dtype=torch.int64)
    counts = torch.tensor([len(each) for each in tokens])
    row = torch.tensor(which).repeat_interleave(counts)
    return torch.unique(row * logits.shape[-1] + ids, return_counts=True)


def _draw(logits: torch.Tensor, rows: Sequence[RowSampling]) -> torch.Tensor:
    """One token a row, LongTensor[n], by inversion of the cumulative distribution."""
    temperature = torch.tensor([row.params.temperature for row in rows])
    scaled = logits / temperature[:, None]
    if any(row.params.truncates for row in rows):
        least = _least_kept([row.params for row in rows], scaled, _CANDIDATES)
        scaled = scaled.masked_fill(scaled < least[:, None], float("-inf"))
    cumulative = scaled.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1]
    noise = torch.tensor([_noise(row) for row in rows], dtype=torch.float64)
    # Strictly below the total, so that the first sum above it belongs to a token with mass.
    target = torch.minimum(noise * total, torch.nextafter(total, torch.zeros_like(total)))
    found = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    # Logits that are no numbers (broken weights) have no distribution: even then the token exists,
    # or feeding it would end every other step with this one.
    return found.clamp_max(logits.shape[-1] - 1)


def _noise(row: RowSampling) -> float:
    if row.params.seed is None:
        raise ValueError("a row that draws needs a seed: see SamplingParams.with_seed")
    return uniform(row.params.seed, row.sampled)


def _least_kept(
    params: Sequence[SamplingParams], scaled: torch.Tensor, candidates: int
) -> torch.Tensor:
    """Per row the smallest logit that top_k, top_p and min_p all keep; -inf where none cuts."""
    vocab = scaled.shape[-1]
    width = min(vocab, max(candidates, *(p.top_k for p in params)))
    best = scaled.topk(width).values
    top_k = torch.tensor([min(p.top_k, vocab) for p in params])
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64)
    log_min_p = torch.tensor([p.min_p for p in params]).log()
    unlimited = top_k == 0
    by_k = best.gather(1, (top_k - 1).clamp_min(0)[:, None])[:, 0]
    by_k = by_k.masked_fill(unlimited, float("-inf"))

    # Mass relative to what top_k left, as if that had been renormalized.
    kept = best.masked_fill(best < by_k[:, None], float("-inf"))
    log_total = torch.where(unlimited, scaled.logsumexp(-1), kept.logsumexp(-1))
    mass = (kept - log_total[:, None]).double().exp().cumsum(-1)
    needed = (mass < top_p[:, None]).sum(-1)
    by_p = best.gather(1, needed.clamp_max(width - 1)[:, None])[:, 0]
    by_p = by_p.masked_fill(top_p >= 1.0, float("-inf"))
    least = torch.maximum(torch.maximum(by_k, by_p), best[:, 0] + log_min_p)

    short = ((needed == width) & (top_p < 1.0) & unlimited).nonzero()[:, 0].tolist()
    if short and width < vocab:  # these rows are flat: look at every token of theirs
        least[short] = _least_kept([params[i] for i in short], scaled[short], vocab)
    return least


def _logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, rows: Sequence[RowSampling]
) -> list[TokenLogprobs | None]:
    wanted = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
    result: list[TokenLogprobs | None] = [None] * len(rows)
    if not wanted:
        return result
    logs = logits[wanted].log_softmax(dim=-1)
    chosen = logs.gather(1, tokens[wanted][:, None])[:, 0].tolist()
    widest = min(max(rows[i].params.logprobs or 0 for i in wanted), logits.shape[-1])
    best = logs.topk(widest)
    for at, i in enumerate(wanted):
        count = rows[i].params.logprobs or 0
        ids, values = best.indices[at, :count].tolist(), best.values[at, :count].tolist()
        result[i] = TokenLogprobs(chosen[at], tuple(zip(ids, values, strict=True)))
    return result
