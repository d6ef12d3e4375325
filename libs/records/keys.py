"""Every etcd key and object key of what services share, in one place (docs/state.md lists them).

Members, elections, accounts and API keys are libs.cluster's own: libs/cluster/keys.py.
"""

from urllib.parse import quote

from libs.cluster.keys import ELECTIONS as ELECTIONS
from libs.cluster.keys import ROOT as ROOT

JOBS = ROOT + "jobs/"
FILES = ROOT + "files/"
FILE_REFS = ROOT + "refs/file/"
BATCHES = ROOT + "batches/"
CANCELS = ROOT + "cancels/"
RUNS = ROOT + "runs/"
BOOKS = ROOT + "books/"
LEADER_MARKERS = ROOT + "leader-markers/"
IDEMPOTENCY = ROOT + "idempotency/"
VERSIONS = ROOT + "versions/"
VERSION_DIGESTS = ROOT + "version-digests/"
VERSION_TENSORS = ROOT + "version-tensors/"
STORE_MARK = ROOT + "cluster/store"
STORE_MARK_OBJECT = "cluster"
"""The same random bytes in etcd and in the object store: what of them belong together."""

ELECTION_INTAKE = "intake"


def fleet_election(fleet: str) -> str:
    """Election name (without the prefix) of a fleet's leader: one path segment."""
    return f"fleet.{fleet}"


def job(job_id: str) -> str:
    return f"{JOBS}{job_id}"


def files_of(account: str) -> str:
    return f"{FILES}{account}/"


def file(account: str, file_id: str) -> str:
    return f"{FILES}{account}/{file_id}"


def refs_of_file(file_id: str) -> str:
    return f"{FILE_REFS}{file_id}/"


def file_ref(file_id: str, batch_id: str) -> str:
    return f"{FILE_REFS}{file_id}/{batch_id}"


def batches_of(account: str) -> str:
    return f"{BATCHES}{account}/"


def batch(account: str, batch_id: str) -> str:
    return f"{BATCHES}{account}/{batch_id}"


def cancel(batch_id: str) -> str:
    return f"{CANCELS}{batch_id}"


def run(run_id: str) -> str:
    return f"{RUNS}{run_id}"


def fleet_book(fleet: str) -> str:
    return f"{BOOKS}{fleet}"


def leader_marker(epoch: int) -> str:
    return f"{LEADER_MARKERS}{epoch:020d}"


def idempotency(account: str, key: str) -> str:
    return f"{IDEMPOTENCY}{account}/{key}"


def versions_of(model: str) -> str:
    """A model's name may hold slashes, so it is percent-encoded into one segment."""
    return f"{VERSIONS}{quote(model, safe='')}/"


def version(model: str, seq: int) -> str:
    """Zero-padded, so that keys sort as seqs do."""
    return f"{versions_of(model)}{seq:020d}"


def version_digest(model: str, digest: bytes) -> str:
    return f"{VERSION_DIGESTS}{quote(model, safe='')}/{digest.hex()}"


def version_tensors(model: str, seq: int) -> str:
    """Prefix of the chunks of a version's tensor list."""
    return f"{VERSION_TENSORS}{quote(model, safe='')}/{seq:020d}/"


def version_tensor_chunk(model: str, seq: int, number: int) -> str:
    return f"{version_tensors(model, seq)}{number:04d}"


def file_object(account: str, file_id: str) -> str:
    return f"files/{account}/{file_id}"


def is_file_object(account: str, object_key: str) -> bool:
    """Whether the object is the content of a file of the account's."""
    folder, _, file_id = object_key.rpartition("/")
    return folder == f"files/{account}" and file_id not in ("", ".", "..") and "/" not in account


def index_object(run_id: str) -> str:
    return f"runs/{run_id}/index"


def segment_object(run_id: str, epoch: int, number: int) -> str:
    """Unique per leader and number; zero-padded so that a listing is in writing order."""
    return f"runs/{run_id}/segments/{epoch:020d}-{number:08d}"
