"""Jobs: a model and its configuration, what batches run on. Few, so all are kept in view."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from libs.cluster.client import EtcdClient
from libs.cluster.entry import Entry
from libs.cluster.errors import OutcomeUnknown
from libs.cluster.ops import Compare, Delete, Put
from libs.cluster.view import View
from libs.records import keys
from libs.records.batch import TERMINAL, BatchRecord, Job
from services.router.core.fields import check_number, check_str, wrong_value
from services.router.core.paging import bad_after
from services.router.domain_errors import JobInUse, NoSuchJob
from services.router.idempotency import Once
from services.router.identity import Maker
from services.router.records import Page, decode, encode, list_page

MAX_NAME_CHARS = 512
MAX_PRICE = 1e6
"""USD per engine-hour."""


def _read(entry: Entry) -> Job:
    return decode(entry, Job)


def _check(field: str, text: str) -> None:
    """Names are shown in terminals and metrics: no control characters. Raises BadRequest."""
    check_str(field, text, MAX_NAME_CHARS)
    if not text.isprintable():
        raise wrong_value(field, "a text without control characters", text)


def _order(job: Job) -> tuple[int, str]:
    return job.created_at, job.id


class Jobs:
    """Reads come from a live view, so that every request can ask; writes are compare-and-set."""

    def __init__(self, client: EtcdClient, maker: Maker, default_price: float) -> None:
        self._client = client
        self._maker = maker
        self._default_price = default_price
        self._view: View[Job] = View(client, keys.JOBS, _read)

    async def start(self) -> None:
        """Returns once the view is filled."""
        await self._view.start()

    async def aclose(self) -> None:
        await self._view.aclose()

    async def create(
        self,
        account: str,
        model: str,
        *,
        name: str = "",
        fleet: str = "",
        precision: str = "",
        price_per_engine_hour: float = 0.0,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str = "",
        may_be_made: Callable[[], None] = lambda: None,
    ) -> Job:
        """A new job, or the one that the same idempotency key made within a day.

        price_per_engine_hour: USD; 0 takes the router's default.
        may_be_made: raises why not; not asked where the key has made the job already.
        Raises BadRequest naming a field, and IdempotencyKeyReused.
        """
        _check("model", model)
        _check("name", name)
        check_number("price_per_engine_hour", price_per_engine_hour, 0.0, MAX_PRICE)
        asked = (model, name, fleet, precision, price_per_engine_hour, dict(metadata or {}))
        once = Once(self._client, account, "job", idempotency_key, asked)
        made = await once.made()
        if made is not None:
            try:
                return await self.load(account, made)
            except NoSuchJob:
                once.renew()
        may_be_made()
        while True:
            job = Job(
                id=self._maker.job_id(),
                model=model,
                fleet=fleet,
                account=account,
                name=name,
                precision=precision,
                price_per_engine_hour=price_per_engine_hour or self._default_price,
                created_at=self._maker.unix_s(),
                metadata=dict(metadata or {}),
            )
            known = await self._write(job, once)
            if known is not None:
                return known

    async def _write(self, job: Job, once: Once) -> Job | None:
        """The job that is there now: this one, or the key's; None if the short id is taken."""
        key = keys.job(job.id)
        compares = [Compare.absent(key), *once.compares()]
        puts = [Put(key, encode(job)), *await once.puts(job.id)]
        try:
            result = await self._client.txn(compares, puts, once.reads())
        except OutcomeUnknown:
            stored = await self._client.get(key)
            if stored is None or stored.value != encode(job):
                raise
            return job
        if result.succeeded:
            return job
        earlier = result.entry() if once.reads() else None
        return None if earlier is None else await self.load(job.account, once.read(earlier))

    async def load(self, account: str, job_id: str) -> Job:
        """From etcd, so that a job made a moment ago elsewhere is found. Raises NoSuchJob."""
        if "/" in job_id or not job_id.isprintable() or not job_id:
            raise NoSuchJob(job_id)
        entry = await self._client.get(keys.job(job_id))
        job = None if entry is None else _read(entry)
        if job is None or job.account != account:
            raise NoSuchJob(job_id)
        return job

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Returns once the condition on the view holds."""
        await self._view.wait_until(holds)

    def of_account(self, account: str) -> list[Job]:
        """Newest first."""
        own = [job for job in self._view.all().values() if job.account == account]
        return sorted(own, key=_order, reverse=True)

    async def page(self, account: str, *, limit: int, after: str) -> Page[Job]:
        """A page of `of_account`. Raises BadRequest naming `after` for a job that is not there:
        ids do not tell where it was."""
        rest = self.of_account(account)
        if after:
            try:
                # From etcd: another router's page may end with a job that is not in view here yet.
                last = await self.load(account, after)
            except NoSuchJob:
                raise bad_after(after) from None
            rest = [job for job in rest if _order(job) < _order(last)]
        return Page(rest[:limit], len(rest) > limit)

    async def delete(self, account: str, job_id: str) -> None:
        """Raises JobInUse while a batch of it is not terminal."""
        await self.load(account, job_id)
        using = await list_page(
            self._client,
            keys.batches_of(account),
            BatchRecord,
            limit=1,
            keep=lambda batch: batch.job_id == job_id and batch.status not in TERMINAL,
        )
        if using.records:
            raise JobInUse(job_id, using.records[0].id)
        await self._client.txn([], [Delete(keys.job(job_id))])
