"""Keys lie where docs/state.md says, and nobody else's prefix covers them."""

from __future__ import annotations

import re
from pathlib import Path

from libs.cluster import keys as cluster_keys
from libs.records import keys

STATE = Path(__file__).parents[3] / "docs/state.md"

ETCD = {
    "/impala/members/<service>/<member_id>": cluster_keys.member("<service>", "<member_id>"),
    "/impala/elections/<name>/leader": cluster_keys.election_leader("<name>"),
    "/impala/accounts/<account>": cluster_keys.ACCOUNTS + "<account>",
    "/impala/api-keys/<sha256>": cluster_keys.API_KEYS + "<sha256>",
    "/impala/cluster/secret": cluster_keys.SECRET,
    "/impala/cluster/store": keys.STORE_MARK,
    "/impala/jobs/<job_id>": keys.job("<job_id>"),
    "/impala/files/<account>/<file_id>": keys.file("<account>", "<file_id>"),
    "/impala/refs/file/<file_id>/<batch_id>": keys.file_ref("<file_id>", "<batch_id>"),
    "/impala/batches/<account>/<batch_id>": keys.batch("<account>", "<batch_id>"),
    "/impala/cancels/<batch_id>": keys.cancel("<batch_id>"),
    "/impala/runs/<run_id>": keys.run("<run_id>"),
    "/impala/books/<fleet>": keys.fleet_book("<fleet>"),
    "/impala/leader-markers/<epoch>": keys.leader_marker(9),
    "/impala/idempotency/<account>/<key>": keys.idempotency("<account>", "<key>"),
    "/impala/versions/<model>/<seq>": keys.version("m", 7),
    "/impala/version-digests/<model>/<digest>": keys.version_digest("m", b"\1\2"),
    "/impala/version-tensors/<model>/<seq>/<chunk>": keys.version_tensor_chunk("m", 7, 3),
}
NUMBERED = {
    "<model>": "m",
    "<seq>": f"{7:020d}",
    "<chunk>": f"{3:04d}",
    "<digest>": "0102",
    "<epoch>": f"{9:020d}",
}
OBJECTS = {
    "files/<account>/<file_id>": keys.file_object("<account>", "<file_id>"),
    "cluster": keys.STORE_MARK_OBJECT,
    "runs/<run_id>/index": keys.index_object("<run_id>"),
    "runs/<run_id>/segments/<epoch>-<n>": keys.segment_object("<run_id>", 7, 3),
}


def test_the_page_lists_exactly_the_keys_that_are_built() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", STATE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted([*ETCD, *OBJECTS])


def test_keys_are_built_as_the_page_says() -> None:
    for pattern, key in ETCD.items():
        for name, value in NUMBERED.items():
            pattern = pattern.replace(name, value) if name not in key else pattern
        assert key == pattern


def test_a_file_object_is_told_from_every_other() -> None:
    assert keys.is_file_object("acme", keys.file_object("acme", "file-1"))
    for account, key in [
        ("acme", "files/other/file-1"),
        ("acme", "files/acme/"),
        ("acme", "files/acme/.."),
        ("acme", "files/acme/../other/file-1"),
        ("acme", "runs/run-1/index"),
        ("", "files//file-1/x"),
        ("acme/..", "files/acme/../file-1"),
        ("acme/../other", "files/acme/../other/file-1"),
    ]:
        assert not keys.is_file_object(account, key), key


def test_no_prefix_lies_within_another() -> None:
    prefixes = [
        value
        for module in (cluster_keys, keys)
        for name, value in vars(module).items()
        if name.isupper() and name != "ROOT" and str(value).startswith(cluster_keys.ROOT)
    ]
    assert len(prefixes) > 12
    for one in set(prefixes):
        assert not [each for each in set(prefixes) if each != one and each.startswith(one)]


def test_a_model_with_slashes_is_one_segment() -> None:
    assert keys.version("org/model", 1) == f"/impala/versions/org%2Fmodel/{1:020d}"
    assert keys.version_digest("org/model", b"").startswith("/impala/version-digests/org%2Fmodel/")


def test_versions_and_segments_sort_as_their_numbers() -> None:
    versions = [keys.version("m", seq) for seq in (1, 2, 10, 11)]
    assert versions == sorted(versions)
    order = [(1, 9), (1, 10), (2, 1), (10, 0)]
    segments = [keys.segment_object("r", epoch, number) for epoch, number in order]
    assert segments == sorted(segments)
