"""Versions in etcd.

    /impala/versions/<model>/<seq>           the version without tensors, JSON (what others watch)
    /impala/version-digests/<model>/<hex>    the seq of a digest
    /impala/version-tensors/<model>/<seq>/<n>  the tensors, in chunks of a bounded size

All keys of a version are written by one transaction that needs the first two to be absent, so it is
there whole or not at all, its seq and its digest are each given once, and a repeated create after
an unknown outcome is refused instead of doubled. libs/records/keys.py builds the keys.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.cluster.errors import OutcomeUnknown, RecordUnreadable
from libs.cluster.ops import Compare, Put
from libs.errors import FailedPrecondition
from libs.records import keys
from services.leap.core.manifest import Manifest, Tensor
from services.leap.core.version import State, Version

SCHEMA = 1
# etcd refuses a request beyond 1.5 MiB and values far beyond 1 MiB are slow to watch.
MAX_TENSOR_BYTES = 1 << 20
CHUNK_BYTES = 256 << 10


class _VersionRecord(msgspec.Struct, frozen=True):
    """The JSON of one version; bytes travel as hex."""

    v: int
    model: str
    seq: int
    digest: str
    config_digest: str
    state: str
    created_unix_ms: int
    layout_signature: str = ""
    parent_seq: int = 0
    delta: bool = False
    source: str = ""
    label: str = ""
    bytes: int = 0


class _TensorRecord(msgspec.Struct, frozen=True, array_like=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: bytes


class EtcdVersions:
    """Implements ports.VersionStore."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client

    async def find(self, model: str, digest: bytes) -> Version | None:
        entry = await self._client.get(keys.version_digest(model, digest))
        return await self.get(model, int(entry.value), with_tensors=False) if entry else None

    async def get(self, model: str, seq: int, *, with_tensors: bool) -> Version | None:
        entry = await self._client.get(keys.version(model, seq))
        if entry is None:
            return None
        version = _decode(entry)
        if not with_tensors:
            return version
        chunks = await self._client.list(keys.version_tensors(model, seq))
        tensors = _decode_tensors(b"".join(chunk.value for chunk in chunks.entries))
        return replace(version, manifest=replace(version.manifest, tensors=tensors))

    async def newest(self, model: str) -> Version | None:
        # Seqs are created in order, so the newest created is the highest.
        listing = await self._client.list_newest(keys.versions_of(model), limit=1)
        return _decode(listing.entries[0]) if listing.entries else None

    async def list(self, model: str) -> Sequence[Version]:
        listing = await self._client.list(keys.versions_of(model) if model else keys.VERSIONS)
        return [_decode(entry) for entry in listing.entries]

    async def create(self, version: Version) -> bool:
        """FailedPrecondition for more tensors than fit. An unknown outcome counts as False: the
        caller looks for the digest again and finds it if this took effect."""
        model, seq = version.model, version.seq
        version_key = keys.version(model, seq)
        digest_key = keys.version_digest(model, version.manifest.digest)
        puts = [Put(version_key, _encode(version)), Put(digest_key, str(seq).encode())]
        for number, chunk in enumerate(_encode_tensors(version.manifest)):
            puts.append(Put(keys.version_tensor_chunk(model, seq, number), chunk))
        absent = [Compare.absent(version_key), Compare.absent(digest_key)]
        with contextlib.suppress(OutcomeUnknown):
            return (await self._client.txn(absent, then=puts)).succeeded
        return False


def _encode(version: Version) -> bytes:
    manifest = version.manifest
    return msgspec.json.encode(
        _VersionRecord(
            v=SCHEMA,
            model=manifest.model,
            seq=version.seq,
            digest=manifest.digest.hex(),
            config_digest=manifest.config_digest.hex(),
            state=version.state.value,
            created_unix_ms=version.created_unix_ms,
            layout_signature=manifest.layout_signature,
            parent_seq=manifest.parent_seq,
            delta=manifest.delta,
            source=manifest.source,
            label=manifest.label,
            bytes=manifest.bytes,
        )
    )


def _decode(entry: Entry) -> Version:
    try:
        record = msgspec.json.decode(entry.value, type=_VersionRecord)
        if record.v > SCHEMA:
            raise ValueError(f"schema version {record.v} is newer than {SCHEMA}")
        return Version(
            seq=record.seq,
            manifest=Manifest(
                model=record.model,
                digest=bytes.fromhex(record.digest),
                config_digest=bytes.fromhex(record.config_digest),
                layout_signature=record.layout_signature,
                parent_seq=record.parent_seq,
                delta=record.delta,
                source=record.source,
                label=record.label,
                bytes=record.bytes,
            ),
            created_unix_ms=record.created_unix_ms,
            state=State(record.state),
        )
    except ValueError as error:  # msgspec's errors are ValueErrors too
        raise RecordUnreadable(f"{entry.key} is not a version record: {error}") from error


def _encode_tensors(manifest: Manifest) -> list[bytes]:
    if not manifest.tensors:
        return []
    records = [_TensorRecord(t.name, t.dtype, t.shape, t.digest) for t in manifest.tensors]
    packed = msgspec.msgpack.encode(records)
    if len(packed) > MAX_TENSOR_BYTES:
        raise FailedPrecondition(
            f"The manifest's {len(records)} tensors take {len(packed)} bytes, and etcd holds "
            f"{MAX_TENSOR_BYTES}; register it without tensors.",
            "MANIFEST_TOO_LARGE",
            "manifest.tensors",
        )
    return [packed[at : at + CHUNK_BYTES] for at in range(0, len(packed), CHUNK_BYTES)]


def _decode_tensors(packed: bytes) -> tuple[Tensor, ...]:
    if not packed:
        return ()
    records = msgspec.msgpack.decode(packed, type=list[_TensorRecord])
    return tuple(Tensor(r.name, r.dtype, r.shape, r.digest) for r in records)
