"""Jobs, files, batches and runs as etcd holds them, and the legal life of a batch.

Times are Unix seconds (integers) because that is what the HTTP surface shows.
"""

import msgspec

TERMINAL = frozenset({"completed", "failed", "expired", "cancelled"})

_NEXT = {
    "validating": {"in_progress", "failed", "cancelled", "expired"},
    "in_progress": {"finalizing", "failed"},
    "finalizing": {"completed", "expired", "cancelled", "failed"},
}


def may_follow(before: str, after: str) -> bool:
    """Whether the record of a batch may go from one status to the other.

    `cancelling` is not recorded: it is a cancel intent beside a status that is not terminal.
    """
    return after in _NEXT.get(before, set())


class Job(msgspec.Struct, kw_only=True):
    id: str
    model: str
    fleet: str
    """Empty = the model's fleet is looked up among live servers."""
    account: str
    name: str = ""
    precision: str = ""
    price_per_engine_hour: float
    created_at: int
    metadata: dict[str, str] = {}


class FileRecord(msgspec.Struct, kw_only=True):
    id: str
    account: str
    bytes: int
    filename: str
    purpose: str
    created_at: int
    expires_at: int | None = None
    digest: str = ""
    """Of the content, as `libs.objects.digest` makes it; empty in records from before it did."""


class BatchError(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchRecord(msgspec.Struct, kw_only=True):
    id: str
    account: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int | None
    """None = an unlimited window."""
    status: str = "validating"
    job_id: str = ""
    """Empty until the intake leader resolved it from the lines' model."""
    fleet: str = ""
    run_id: str
    """Fixed at creation, so that indexing twice is the same work."""
    model: str = ""
    errors: list[BatchError] = []
    metadata: dict[str, str] | None = None
    output_expires_after_s: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None


class LedgerRecord(msgspec.Struct, kw_only=True):
    """What a run's lines came to and what they cost; engine seconds and USD.

    Tasks and tokens are sums over the recorded lines, each counted once, however often it was
    executed. Engine time and `computed_tokens` are sums over the step reports of every execution.
    """

    tasks: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    computed_tokens: int = 0
    """Fed or sampled by the engines, as far as a report of it came: what was found cached is not
    among them."""
    busy_engine_s: float = 0.0
    idle_engine_s: float = 0.0
    price_per_engine_hour: float = 0.0
    task_seconds: list[float] = []
    """Task completion times: `libs.units.durations.DurationSketch.to_list()`."""
    self_placed_steps: int = 0

    @property
    def wall_engine_s(self) -> float:
        return self.busy_engine_s + self.idle_engine_s

    @property
    def wasted_tokens(self) -> int:
        """Computed and in no recorded line: of executions that were lost or given up and, while
        the run goes on, of lines about to be recorded. Never negative, though the report of a
        recorded line may be lost with its server."""
        recorded = self.prompt_tokens - self.cached_tokens + self.completion_tokens
        return max(0, self.computed_tokens - recorded)

    @property
    def processing_cost(self) -> float:
        """USD."""
        return self.wall_engine_s / 3600.0 * self.price_per_engine_hour

    @property
    def price_1m_tokens(self) -> float:
        """USD per million prompt and completion tokens; 0 before the first token."""
        tokens = self.prompt_tokens + self.completion_tokens
        return self.processing_cost / tokens * 1e6 if tokens else 0.0

    @property
    def tasks_per_dollar(self) -> float:
        """0 while nothing was spent."""
        cost = self.processing_cost
        return self.tasks / cost if cost > 0 else 0.0


class SegmentRef(msgspec.Struct, frozen=True, kw_only=True):
    object: str
    lines: int
    bytes: int
    digest: str = ""
    """As in `FileRecord`."""


class RunRecord(msgspec.Struct, kw_only=True):
    id: str
    batch_id: str
    account: str
    job_id: str
    fleet: str
    model: str
    endpoint: str
    input_object: str
    index_object: str
    index_digest: str = ""
    """As in `FileRecord`."""
    total: int
    completed: int = 0
    failed: int = 0
    unanswered: int = 0
    """Of `failed`: lines that had no outcome when the run was cancelled, expired or broke."""
    segments: list[SegmentRef] = []
    released: bool = False
    """The run ended long ago and its segments are gone: its results are in its files."""
    losses: dict[int, int] = {}
    """Line without an outcome -> how often what ran it was lost; lines in no loss are left out."""
    output_file_id: str = ""
    error_file_id: str = ""
    """Both fixed before finalizing starts, used only for the kinds of line that exist."""
    outcome: str = ""
    """Terminal status that finalizing leads to: completed, expired or cancelled; empty before."""
    ledger: LedgerRecord
    created_at: int
    started_at: float
    ended_at: int | None = None
    error: str = ""
