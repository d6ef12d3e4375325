from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.prefix_index import PrefixIndex


def chain(text: str) -> list[bytes]:
    """Block names of a prompt whose blocks are its letters: each names all letters up to it."""
    return [text[: n + 1].encode() for n in range(len(text))]


def test_the_longest_common_prefix_counts_for_each_holder() -> None:
    index = PrefixIndex(100)
    index.add(chain("abcd"), "one")
    index.add(chain("abx"), "two")
    assert index.matches(chain("abce")) == {"one": 3, "two": 2}
    assert index.matches(chain("zzz")) == {}


def test_a_gap_ends_the_match() -> None:
    index = PrefixIndex(100)
    index.add(chain("abc")[::2], "one")
    assert index.matches(chain("abc")) == {"one": 1}


def test_what_was_not_used_for_longest_is_forgotten_first() -> None:
    index = PrefixIndex(3)
    index.add(chain("a"), "one")
    index.add(chain("b"), "one")
    index.add(chain("c"), "one")
    index.add(chain("a"), "two")
    index.add(chain("d"), "one")
    assert index.matches(chain("b")) == {}
    assert index.matches(chain("a")) == {"one": 1, "two": 1}


@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=6), st.sampled_from("pqrstu"))))
def test_it_is_bounded_and_never_claims_what_was_not_added(adds: list[tuple[str, str]]) -> None:
    index = PrefixIndex(16)
    for text, holder in adds:
        index.add(chain(text), holder)
        assert len(index) <= 16
    for text, _ in adds:
        for holder, blocks in index.matches(chain(text)).items():
            assert any(h == holder and t.startswith(text[:blocks]) for t, h in adds)
