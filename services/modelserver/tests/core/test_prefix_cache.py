"""A key finds a block; the tokens decide whether it is the one."""

from collections.abc import Sequence as Seq

import pytest

from libs.hashing import KvNamespace, account_salt
from services.modelserver.herd.core.errors import IntegrityError
from services.modelserver.herd.core.prefix_cache import PrefixCache
from services.modelserver.herd.core.sequence import Limits, Sequence
from services.modelserver.tests.core.factories import (
    NAMESPACE,
    SALT,
    make_batcher,
    make_sequence,
    prompt_of,
)
from services.modelserver.tests.core.sim_engine import SimEngine, expected_output


class Forged(Sequence):
    """Other tokens under a victim's keys: what a hash collision would look like."""

    def __init__(self, seq_id: str, prompt: str, victim: Sequence) -> None:
        super().__init__(
            seq_id, seq_id, prompt_of(prompt), Limits(4), salt=SALT, namespace=NAMESPACE
        )
        self._stolen = list(victim.keys)

    @property
    def keys(self) -> Seq[bytes]:
        return self._stolen


def cache_of(seq: Sequence, blocks: Seq[int]) -> PrefixCache:
    cache = PrefixCache()
    for index, block in enumerate(blocks):
        assert cache.register(seq, index, block) == block
    return cache


def test_a_hit_is_the_longest_common_run_of_full_blocks() -> None:
    cache = cache_of(make_sequence("a", "x:96"), [7, 8, 9])
    assert cache.match(make_sequence("b", "x:100")) == [7, 8, 9]
    assert cache.match(make_sequence("c", "x:64+c:40")) == [7, 8]
    assert cache.match(make_sequence("d", "d:1+x:99")) == []


@pytest.mark.parametrize(
    ("length", "hit"), [(31, 0), (32, 0), (33, 1), (63, 1), (64, 1), (65, 2), (96, 2), (97, 3)]
)
def test_the_last_token_is_never_hit(length: int, hit: int) -> None:
    cache = cache_of(make_sequence("a", "x:128"), [1, 2, 3, 4])
    assert len(cache.match(make_sequence("b", f"x:{length}"))) == hit


def test_other_accounts_and_other_weights_never_hit() -> None:
    cache = cache_of(make_sequence("a", "x:96"), [7, 8, 9])
    other_version = KvNamespace(b"model", b"version 2", "", "float32", "reference").digest
    assert cache.match(make_sequence("b", "x:96", salt=account_salt("other"))) == []
    assert cache.match(make_sequence("c", "x:96", namespace=other_version)) == []


def test_the_same_content_again_names_the_block_that_was_there() -> None:
    seq = make_sequence("a", "x:64")
    cache = cache_of(seq, [7, 8])
    assert cache.register(make_sequence("b", "x:64"), 1, 5) == 8
    assert 5 not in cache


def test_a_key_with_other_tokens_is_a_miss_and_counted() -> None:
    victim = make_sequence("a", "x:96")
    cache = cache_of(victim, [7, 8, 9])
    forged = Forged("f", "y:96", victim)
    assert cache.match(forged) == []
    assert cache.register(forged, 0, 3) is None
    assert cache.mismatches == 2


def test_a_key_whose_parent_differs_is_a_miss() -> None:
    victim = make_sequence("a", "x:96")
    cache = cache_of(victim, [7, 8, 9])
    forged = Forged("f", "y:32+x:64", victim)
    assert cache.match(forged) == []


def test_a_collision_costs_time_and_never_a_token() -> None:
    engine = SimEngine(make_batcher())
    victim = make_sequence("a", "x:70")
    forged = Forged("f", "y:70", victim)
    for seq in (victim, forged):
        engine.add(seq)
        while engine.step() is not None:
            engine.batcher.check_integrity()
    for seq, prompt in ((victim, "x:70"), (forged, "y:70")):
        assert seq.output == expected_output(prompt_of(prompt), seq.limits)
    assert engine.batcher.stats().mismatches > 0


def test_forgetting_tells_all_that_a_lower_tier_needs() -> None:
    seq = make_sequence("a", "x:64")
    lost = cache_of(seq, [7, 8]).forget(8)
    assert (lost.block, lost.key, lost.parent) == (8, seq.keys[1], seq.keys[0])
    assert lost.content_hash == seq.content_hashes[1]
    assert list(lost.tokens) == prompt_of("x:64")[32:]


def test_integrity_sees_an_orphan() -> None:
    cache = cache_of(make_sequence("a", "x:64"), [7, 8])
    cache.check_integrity([8, 7])
    cache.forget(7)
    with pytest.raises(IntegrityError, match="lost the block before it"):
        cache.check_integrity([8])


def test_integrity_sees_a_prefix_that_would_go_before_its_suffix() -> None:
    cache = cache_of(make_sequence("a", "x:64"), [7, 8])
    with pytest.raises(IntegrityError, match="would go before"):
        cache.check_integrity([7, 8])
    with pytest.raises(IntegrityError, match="would go before"):
        cache.check_integrity([7])


def test_integrity_sees_unnamed_content() -> None:
    with pytest.raises(IntegrityError, match="nothing names"):
        PrefixCache().check_integrity([3])
