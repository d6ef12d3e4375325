"""Builds a model server from its settings and runs it until it is told to stop."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from impala.modelserver.v1 import modelserver_pb2_grpc
from libs.clock import Clock, SystemClock
from libs.cluster.client import EtcdClient
from libs.cluster.epochs import Epochs
from libs.cluster.errors import ClusterUnavailable
from libs.cluster.members import Members
from libs.cluster.membership import Membership
from libs.errors import StartupError
from libs.hashing import BLOCK_TOKENS, KvNamespace
from libs.records import keys
from libs.records.ids import fleet_name
from libs.records.members import ModelServerInfo
from libs.rpc import RpcServer, Shutdown
from libs.rpc.frame import (
    address_for_peers,
    client_tls,
    cluster_of,
    member_id_of,
    server_of,
    start_metrics,
)
from services.modelserver.adapters.hang_guard import hang_guard
from services.modelserver.adapters.kvstore_tier import KvStoreTier
from services.modelserver.adapters.report_sender import ReportSender
from services.modelserver.adapters.weight_registrar import manifest_of, register_weights
from services.modelserver.api import Identity, ModelServerApi, Served
from services.modelserver.app import ModelServerApp
from services.modelserver.config import ModelServerConfig
from services.modelserver.core import checks
from services.modelserver.core.step_watch import StepWatch
from services.modelserver.herd.core.batcher import Batcher, BatcherConfig
from services.modelserver.herd.engine.engine import Engine
from services.modelserver.herd.engine.thread import EngineThread, HandOff
from services.modelserver.herd.models.errors import ModelError
from services.modelserver.model import Load, ServedModel
from services.modelserver.pending import KvControlPending, WeightControlPending
from services.modelserver.ports import ServedWeights

log = logging.getLogger(__name__)

_SERVICES = (
    "impala.modelserver.v1.ModelServer",
    "impala.modelserver.v1.KvControl",
    "impala.modelserver.v1.WeightControl",
)
_NUMBER_WAIT_S = 3.0
_FLUSH_S = 3.0
_ASK_EPOCH_S = 1.5
_ENGINE_STOP_S = 5.0
_LEAST_GUARD_S = 60.0
"""However short a step may be, a busy machine may hold up the event loop for some seconds."""


async def serve(config: ModelServerConfig, shutdown: Shutdown, load: Load) -> None:
    """Load, register, serve, drain."""
    clock = SystemClock()
    server = server_of(config, _SERVICES, tunnelled=True)
    api = ModelServerApi()
    _add_servicers(api, server)
    async with contextlib.AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop)
        start_metrics(config)
        model = await _load(config, load)
        client = await stack.enter_async_context(cluster_of(config, shutdown))
        views = {
            name: await stack.enter_async_context(Members(client, name))
            for name in ("kvstore", "leap", "scheduler")
        }
        herd = _Herd.build(config, model, views["kvstore"], clock)
        stack.callback(herd.stop)
        guard_s = max(_LEAST_GUARD_S, config.step_limit_s) if config.step_limit_s else 0.0
        await stack.enter_async_context(hang_guard(guard_s))
        unit = _Unit(config, model, herd, server, clock, Epochs(client))
        api.open(unit.served())
        await unit.run(client, views, shutdown)


def _add_servicers(api: ModelServerApi, server: RpcServer) -> None:
    for each in server.servers:
        modelserver_pb2_grpc.add_ModelServerServicer_to_server(api, each)
    modelserver_pb2_grpc.add_KvControlServicer_to_server(KvControlPending(), server.server)
    modelserver_pb2_grpc.add_WeightControlServicer_to_server(WeightControlPending(), server.server)


async def _load(config: ModelServerConfig, load: Load) -> ServedModel:
    """Off the event loop."""
    try:
        model = await asyncio.to_thread(load, config)
    except ModelError as error:
        raise StartupError(str(error)) from None
    log.info("weights loaded", extra={"digest": model.digests.root.hex()[:16]})
    return model


@dataclass(frozen=True, slots=True)
class _Herd:
    """The engine, its thread, and the app that speaks for them."""

    app: ModelServerApp
    thread: EngineThread
    tier: KvStoreTier | None
    limits: checks.Limits
    layout: str

    @classmethod
    def build(
        cls, config: ModelServerConfig, model: ServedModel, kvstores: Members, clock: Clock
    ) -> "_Herd":
        pool = model.pool
        layout = pool.layout_signature()
        tier = None
        if config.lower_tiers:
            tier = KvStoreTier(
                kvstores,
                layout=layout,
                block_bytes=pool.block_bytes,
                buffer_bytes=config.store_buffer_bytes,
                tls=client_tls(config),
            )
        batcher = Batcher(
            BatcherConfig(
                num_blocks=pool.num_blocks,
                max_batch_tokens=max(config.max_batch_tokens, config.max_seqs),
                max_seqs=config.max_seqs,
                external_tier=config.lower_tiers,
            )
        )
        namespace = KvNamespace(
            model_digest=model.digests.config,
            version_digest=model.digests.root,
            adapter="",
            numerics=model.numerics,
            layout=layout,
        )
        engine = Engine(
            batcher,
            model.runner,
            pool,
            namespace.digest,
            now=clock.now,
            store_evicted=config.lower_tiers,
        )
        name = config.model_name or config.model
        loop = asyncio.get_running_loop()
        app: ModelServerApp

        def deliver(news: HandOff) -> None:
            loop.call_soon_threadsafe(app.hand_off, news)

        def died(error: BaseException) -> None:
            loop.call_soon_threadsafe(app.engine_died, error)

        thread = EngineThread(engine, deliver, died)
        app = ModelServerApp(
            thread.send,
            ServedWeights(name, 0, model.digests.root),
            clock=clock,
            tier=tier,
            max_waiting=config.max_waiting,
            idle_stats=batcher.stats(),
        )
        thread.start()
        context = min(config.max_context or model.max_context, model.max_context)
        limits = checks.Limits(name, model.vocab, context, pool.num_blocks * BLOCK_TOKENS)
        return cls(app, thread, tier, limits, layout)

    def stop(self) -> None:
        """After the step that the engine is in; one that is stuck is left behind."""
        self.thread.stop(0.0 if self.app.died.is_set() else _ENGINE_STOP_S)


class _Unit:
    """One model server in the cluster, from registration to drain."""

    def __init__(
        self,
        config: ModelServerConfig,
        model: ServedModel,
        herd: _Herd,
        server: RpcServer,
        clock: Clock,
        epochs: Epochs,
    ) -> None:
        self._config = config
        self._epochs = epochs
        self._model = model
        self._herd = herd
        self._server = server
        self._clock = clock
        self._address = address_for_peers(config, server)
        self._phase = "serving"
        name = herd.limits.model
        self._identity = Identity(
            member_id=member_id_of(config, "modelserver", self._address),
            incarnation=secrets.token_hex(8),
            fleet=fleet_name(name, model.precision),
            precision=model.precision,
            numerics=model.numerics,
            layout=herd.layout,
            eos_ids=model.eos_ids,
            max_seqs=config.max_seqs,
            block_tokens=BLOCK_TOKENS,
        )

    async def run(self, client: EtcdClient, views: dict[str, Members], shutdown: Shutdown) -> None:
        identity, app = self._identity, self._herd.app
        sender = ReportSender(
            app,
            client,
            views["scheduler"],
            fleet=identity.fleet,
            member_id=identity.member_id,
            incarnation=identity.incarnation,
            clock=self._clock,
            tls=client_tls(self._config),
        )
        membership = Membership(
            client,
            "modelserver",
            identity.member_id,
            self._info(),
            incarnation=identity.incarnation,
        )
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(sender.run())]
            if self._herd.tier is not None:
                tasks.append(group.create_task(self._herd.tier.run()))
            if self._config.step_limit_s:
                tasks.append(group.create_task(self._watch_engine()))
            numbered = group.create_task(self._number(views["leap"], membership))
            await asyncio.wait([numbered], timeout=_NUMBER_WAIT_S)
            async with membership:
                membership.publish(self._info())
                self._server.set_serving(True)
                log.info("serving", extra={"address": self._address, "fleet": identity.fleet})
                await _first(shutdown.wait, app.died.wait, membership.superseded.wait)
                self._phase = "draining"
                membership.publish(self._info())
                await self._server.drain(self._config.drain_s)
                await sender.flush(_FLUSH_S)
            for task in (*tasks, numbered):
                task.cancel()
        if app.died.is_set():
            raise StartupError("The engine stopped with an error; see the log above.")
        if membership.superseded.is_set():
            raise StartupError(
                f"Another process has registered as {identity.member_id}; give each its own "
                "--member name."
            )

    async def _watch_engine(self) -> None:
        thread = self._herd.thread
        watch = StepWatch(self._config.step_limit_s)
        await self._herd.app.watch(watch, lambda: thread.step, thread.where)

    def served(self) -> Served:
        """What the contract is answered from."""
        tier = self._herd.tier
        return Served(
            app=self._herd.app,
            identity=self._identity,
            limits=self._herd.limits,
            check_epoch=self._check_epoch,
            draw_seed=lambda: secrets.randbits(62),
            phase=lambda: self._phase,
            kv_moved=lambda: (
                (tier.loaded_blocks, tier.stored_blocks, tier.refused_blocks)
                if tier is not None
                else (0, 0, 0)
            ),
        )

    async def _check_epoch(self, epoch: int) -> None:
        """While etcd cannot be asked, a leader that is not known here is believed and not
        remembered: it stops granting by itself once it cannot reach etcd, and what it records is
        guarded there."""
        try:
            async with asyncio.timeout(_ASK_EPOCH_S):
                await self._epochs.check(keys.fleet_election(self._identity.fleet), epoch)
        except (ClusterUnavailable, TimeoutError):
            log.warning("a grant's epoch could not be checked", extra={"epoch": epoch})

    async def _number(self, leaps: Members, membership: Membership) -> None:
        """Learn the served version's number from Leap and tell the cluster."""
        manifest = manifest_of(self._herd.limits.model, self._config.model, self._model.digests)
        seq = await register_weights(
            manifest, leaps, clock=self._clock, tls=client_tls(self._config)
        )
        self._herd.app.weights.seq = seq
        membership.publish(self._info())
        log.info("weights registered", extra={"seq": seq})

    def _info(self) -> dict[str, object]:
        identity, limits, app = self._identity, self._herd.limits, self._herd.app
        info = ModelServerInfo(
            address=self._address,
            incarnation=identity.incarnation,
            model=limits.model,
            fleet=identity.fleet,
            precision=identity.precision,
            phase=self._phase,
            source=self._config.model,
            max_context=limits.max_context,
            vocab_size=limits.vocab_size,
            total_blocks=limits.pool_tokens // BLOCK_TOKENS,
            max_steps=identity.max_seqs,
            weight_seq=app.weights.seq,
            weight_digest=app.weights.digest.hex(),
        )
        built: dict[str, object] = msgspec.to_builtins(info)
        return built


async def _first(*waits: Callable[[], Awaitable[object]]) -> None:
    """Returns when the first of the waits does."""
    tasks = [asyncio.ensure_future(wait()) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
