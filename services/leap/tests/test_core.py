"""Manifests, pages and what is served: decisions without any input or output."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from libs.errors import InvalidArgument
from services.leap.core.version import Replica, Version, page_of, statuses
from services.leap.tests.factories import digest_of, manifest_of, tensors_of


def version(model: str, seq: int) -> Version:
    return Version(seq, manifest_of(seq, model), created_unix_ms=seq)


def replica(member: str, model: str, seq: int = 1) -> Replica:
    return Replica(member, model, "SERVING", seq, digest_of(seq))


class TestManifest:
    def test_a_complete_manifest_is_accepted(self) -> None:
        manifest_of("a").check()

    def test_tensors_may_be_left_out_and_then_the_digest_is_taken_at_its_word(self) -> None:
        replace(manifest_of("a"), tensors=(), digest=digest_of("anything")).check()

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"model": ""}, "manifest.model"),
            ({"model": "m" * 257}, "manifest.model"),
            ({"model": "a\nb"}, "manifest.model"),
            ({"digest": b"short"}, "manifest.digest"),
            ({"digest": digest_of("another")}, "manifest.digest"),
            ({"config_digest": b""}, "manifest.config_digest"),
            ({"config_digest": digest_of("another")}, "manifest.digest"),
            ({"tensors": tuple(reversed(tensors_of("a")))}, "manifest.tensors[1].name"),
            ({"tensors": tensors_of("a") * 2}, "manifest.tensors[2].name"),
            ({"tensors": (replace(tensors_of("a")[0], name=""),)}, "manifest.tensors[0].name"),
            ({"tensors": (replace(tensors_of("a")[0], name="\0"),)}, "manifest.tensors[0].name"),
            ({"tensors": (replace(tensors_of("a")[0], digest=b""),)}, "manifest.tensors[0].digest"),
        ],
    )
    def test_what_is_wrong_is_named(self, change: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidArgument) as caught:
            replace(manifest_of("a"), **change).check()
        assert caught.value.field == field


class TestPages:
    VERSIONS = tuple(version(m, s) for m, s in [("b", 1), ("a", 1), ("a", 3), ("a", 2), ("b", 2)])

    def ids(self, limit: int = 0, after: str = "") -> tuple[list[str], bool]:
        page = page_of(self.VERSIONS, limit, after)
        return [each.page_id for each in page.versions], page.has_more

    def test_models_by_name_and_versions_newest_first(self) -> None:
        assert self.ids() == (["a/3", "a/2", "a/1", "b/2", "b/1"], False)

    def test_pages_meet_without_gap_or_overlap(self) -> None:
        assert self.ids(2) == (["a/3", "a/2"], True)
        assert self.ids(2, "a/2") == (["a/1", "b/2"], True)
        assert self.ids(2, "b/2") == (["b/1"], False)
        assert self.ids(2, "b/1") == ([], False)

    def test_a_cursor_need_not_exist(self) -> None:
        assert self.ids(1, "a/99") == (["a/3"], True)
        assert self.ids(1, "aa/1") == (["b/2"], True)

    def test_a_model_name_may_hold_slashes(self) -> None:
        versions = [version("org/model", seq) for seq in (1, 2)]
        assert page_of(versions, 1, "org/model/2").versions[0].seq == 1

    @pytest.mark.parametrize(
        ("limit", "after", "field"),
        [(-1, "", "page.limit"), (10_001, "", "page.limit"), (1, "a", "page.after"),
         (1, "a/x", "page.after"), (1, "/1", "page.after")],
    )  # fmt: skip
    def test_a_bad_page_is_named(self, limit: int, after: str, field: str) -> None:
        with pytest.raises(InvalidArgument) as caught:
            page_of(self.VERSIONS, limit, after)
        assert caught.value.field == field


class TestStatus:
    def test_the_newest_version_is_what_a_model_serves(self) -> None:
        [status] = statuses([version("a", 2), version("a", 10), version("a", 1)], [], "")
        assert status.serving is not None
        assert status.serving.seq == 10

    def test_replicas_stand_with_their_model_even_before_it_has_a_version(self) -> None:
        found = statuses([version("a", 1)], [replica("x", "a"), replica("y", "b", 0)], "")
        assert [(s.model, [r.member_id for r in s.replicas]) for s in found] == [
            ("a", ["x"]),
            ("b", ["y"]),
        ]
        assert found[1].serving is None

    def test_one_model_can_be_asked_for(self) -> None:
        versions = [version("a", 1), version("b", 1)]
        assert [status.model for status in statuses(versions, [], "b")] == ["b"]
        assert statuses(versions, [], "c") == ()
