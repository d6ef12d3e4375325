"""The router as a whole: made, started, drained. Everything in it runs on one event loop.

State that a restart loses is kept nowhere: views of etcd are read again, requests under way end
with their connection, lines of batches are handed out again by their leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime
from types import TracebackType
from typing import Self

import msgspec

from libs.clock import Clock, SystemClock
from libs.cluster.accounts import AccountsView
from libs.cluster.epochs import Epochs
from libs.cluster.errors import ClusterError
from libs.cluster.membership import Membership
from libs.cluster.secret import ClusterSecret
from libs.errors import StartupError
from libs.lasting import lasting
from libs.models import resolve_model
from libs.objects import ObjectStore, check_store, open_store
from libs.obs import METRICS, Metrics
from libs.records.members import RouterInfo
from libs.records.store_mark import check_belonging
from libs.rpc import RpcServer, ServerTls
from libs.rpc.frame import address_for_peers, client_tls, etcd_client, host_of, member_id_of
from services.router.access import Access
from services.router.batches import Batches
from services.router.channels import Channels
from services.router.completions import Completions
from services.router.config import RouterConfig
from services.router.core.batch_line import FileLimits
from services.router.execution import Executor
from services.router.files import Files
from services.router.fleets import Fleets
from services.router.garbage import Garbage
from services.router.grpc_api import SERVICES, add_services
from services.router.http.app import http_app
from services.router.http.server import HttpServer
from services.router.identity import Maker
from services.router.indexing import Indexer
from services.router.jobs import Jobs
from services.router.meter import Meter
from services.router.parts import Parts
from services.router.pipeline import Pipeline
from services.router.placing import Placing
from services.router.prepare import Preparer
from services.router.request_bytes import RequestBytes
from services.router.results import Results
from services.router.runs import Runs
from services.router.steps import Steps
from services.router.sweeper import Sweeper
from services.router.text_model import TextModel
from services.router.text_models import Load, TextModels

log = logging.getLogger(__name__)


class Router:
    """`async with Router(config) as router`: entered when it answers, left drained."""

    def __init__(
        self,
        config: RouterConfig,
        *,
        clock: Clock | None = None,
        metrics: Metrics = METRICS,
        load_text_model: Load | None = None,
        objects: ObjectStore | None = None,
    ) -> None:
        """load_text_model, objects: instead of what the configuration names; for embedders."""
        self.config = config
        self.maker = Maker(clock or SystemClock())
        self._metrics = metrics
        self._client = etcd_client(config)
        self._objects = objects or open_store(config.objects)
        self._opens_store = objects is None
        self._channels = Channels(client_tls(config))
        self._load = load_text_model or _loader(config)
        self._accounts = None if config.no_auth else AccountsView(self._client)
        self._draining = False
        self._closers: list[Callable[[], Awaitable[object]]] = []

    @property
    def http_url(self) -> str:
        return self._http.url

    @property
    def address(self) -> str:
        """host:port of the gRPC API."""
        return self._rpc.address

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except ClusterError as error:
            await self._close()
            raise StartupError(f"{error}: start etcd, or give another --etcd.") from error
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.drain()
        await self._close()

    @property
    def superseded(self) -> asyncio.Event:
        """Set when another process has registered under this router's name."""
        return self._membership.superseded

    async def drain(self) -> None:
        """Health says NOT_SERVING, leaders are told, no new work; what runs gets its grace."""
        if self._draining:
            return
        self._draining = True
        self._rpc.set_serving(False)
        await self._membership.leave()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._http.drain())
            group.create_task(self._rpc.drain(self.config.drain_s))

    async def _start(self) -> None:
        self._closers.append(self._client.close)
        await check_store(self._objects, self.maker.clock)
        if self._opens_store:
            await check_belonging(self._client, self._objects, self.maker.token)
        self._closers.append(self._channels.aclose)
        self.parts = await self._make_parts()
        await self._listen(self.parts)
        await self._join()

    async def _make_parts(self) -> Parts:
        config, client = self.config, self._client
        fleets = Fleets(client)
        jobs = Jobs(client, self.maker, config.price_per_engine_hour)
        secret = ClusterSecret(client, lambda: secrets.token_urlsafe(32))
        started: list[Fleets | Jobs | AccountsView | ClusterSecret] = [fleets, jobs, secret]
        if self._accounts is not None:
            started.append(self._accounts)
        for view in started:
            self._closers.append(view.aclose)
            await view.start()
        placing = Placing(fleets, self._channels, patience_s=config.scheduler_patience_s)
        steps = Steps(placing, self._channels)
        models = TextModels(self._load)
        preparer = Preparer(fleets, jobs, models, wait_for_server_s=config.server_patience_s)
        self._closers += [models.aclose, placing.aclose, steps.aclose, _later(preparer.close)]
        sweeper = Sweeper(client, self._objects, self.maker, every_s=config.sweep_s)
        garbage = Garbage(
            client,
            self._objects,
            self.maker,
            every_s=config.sweep_s,
            grace_s=config.garbage_grace_s,
            keep_results_s=config.keep_results_s,
        )
        for name, work in (
            ("load tokenizers", models.keep_warm(fleets)),
            ("delete expired files", sweeper.run()),
            ("delete garbage", garbage.run()),
        ):
            self._closers.append(_later(lasting(work, name).cancel))
        meter = Meter(self._metrics)
        pipeline = Pipeline(steps, self.maker.clock, meter, config.member)
        request_bytes = RequestBytes(config.max_request_bytes)
        files = Files(
            client,
            self._objects,
            self.maker,
            request_bytes,
            max_batch_bytes=config.max_batch_bytes,
            max_bytes=config.max_file_bytes,
        )
        batches = Batches(client, self.maker, files, jobs)
        completions = Completions(preparer, pipeline, self.maker, meter)
        epochs = Epochs(client)
        limits = FileLimits(config.max_batch_lines, config.max_batch_bytes)
        return Parts(
            access=Access(self._accounts),
            files=files,
            batches=batches,
            jobs=jobs,
            runs=Runs(client),
            fleets=fleets,
            completions=completions,
            results=Results(batches, files, self._objects, self.maker.clock),
            indexer=Indexer(self._objects, jobs, fleets, epochs, limits),
            executor=Executor(
                self._objects,
                completions,
                self.maker,
                epochs,
                line_timeout_s=config.line_timeout_s,
            ),
            request_bytes=request_bytes,
            cluster_secret=secret,
            metrics=self._metrics,
        )

    async def _listen(self, parts: Parts) -> None:
        config = self.config
        self._rpc = RpcServer(
            SERVICES,
            config.host,
            config.port,
            tls=_server_tls(config),
            allow_insecure=config.insecure,
            metrics=self._metrics,
        )
        app = http_app(
            parts,
            self.maker,
            request_timeout_s=config.request_timeout_s,
            is_draining=lambda: self._draining,
        )
        self._http = HttpServer(
            app,
            config.host,
            config.http_port,
            tls=_server_tls(config),
            drain_s=config.drain_s,
        )
        add_services(self._rpc.server, parts, self.maker, config.request_timeout_s)
        await self._rpc.start()
        self._closers.append(self._rpc.stop)
        await self._http.start()
        self._closers.append(self._http.drain)
        self._rpc.set_serving(True)
        log.info("serving HTTP", extra={"url": self._http.url})

    async def _join(self) -> None:
        incarnation = self.maker.token()
        address = address_for_peers(self.config, self._rpc)
        info = RouterInfo(
            address=address,
            http_url=self.config.advertise_http or self._http.url_on(host_of(address)),
            incarnation=incarnation,
        )
        member_id = member_id_of(self.config, "router", address)
        self._membership = Membership(
            self._client, "router", member_id, msgspec.to_builtins(info), incarnation=incarnation
        )
        await self._membership.start()
        self._closers.append(self._membership.leave)

    async def _close(self) -> None:
        while self._closers:
            with contextlib.suppress(ClusterError):
                await self._closers.pop()()


def _later(close: Callable[[], object]) -> Callable[[], Awaitable[None]]:
    async def closing() -> None:
        close()

    return closing


def _loader(config: RouterConfig) -> Load:
    cache = config.cache_folder

    def load(source: str) -> TextModel:
        path = resolve_model(source, cache, lambda doing: log.info("%s", doing))
        return TextModel.load(path, cache / "tokenizers", datetime.now)

    return load


def _server_tls(config: RouterConfig) -> ServerTls | None:
    """Clients show API keys here, and members the cluster's secret."""
    if config.tls_cert is None or config.tls_key is None:
        return None
    return ServerTls(config.tls_cert, config.tls_key, config.tls_ca if config.tls_clients else None)
