"""Every etcd key and object key of the cluster, in one place (see docs/state.md)."""

MEMBERS = "/impala/members/"
JOBS = "/impala/jobs/"
FILES = "/impala/files/"
BATCHES = "/impala/batches/"
RUNS = "/impala/runs/"
CANCELS = "/impala/cancels/"
VERSIONS = "/impala/versions/"
BOOKS = "/impala/books/"
ELECTIONS = "/impala/elections/"

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
    return f"/impala/refs/file/{file_id}/"


def file_ref(file_id: str, batch_id: str) -> str:
    return f"/impala/refs/file/{file_id}/{batch_id}"


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


def idempotency(account: str, key: str) -> str:
    return f"/impala/idempotency/{account}/{key}"


def file_object(account: str, file_id: str) -> str:
    return f"files/{account}/{file_id}"


def index_object(run_id: str) -> str:
    return f"runs/{run_id}/index"


def segment_object(run_id: str, epoch: int, number: int) -> str:
    """Unique per leader and number; zero-padded so that a listing is in writing order."""
    return f"runs/{run_id}/segments/{epoch:020d}-{number:08d}"
