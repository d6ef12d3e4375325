"""A local instance: the processes of `launch`, supervised by this process, in one state folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, Self

from libs.cluster.client import EtcdClient
from libs.cluster.errors import ClusterError
from libs.cluster.members import Members
from libs.demo.cache import cache_dir
from libs.demo.etcd import EtcdNotFound, resolve_etcd
from libs.models.resolve import resolve_model
from services.cli.certificate_check import check
from services.cli.client import Client, Job
from services.cli.core.reason import reason_of
from services.cli.errors import INTERRUPTED, ApiError, CliError, NotReachable
from services.cli.launch import Launch, Settings, plan
from services.cli.renewal import see_to, see_to_always
from services.cli.state_dir import Instance, ServiceInfo, StateDir
from services.cli.supervisor.supervisor import Happened, Supervisor
from services.cli.tls_files import TlsFiles

ASK_EVERY_S = 0.1


class Interrupted(CliError):
    """Somebody asked for the end before the start was over."""

    exit_code = INTERRUPTED


class Reporter(Protocol):
    """Where a start, restarts and a drain are shown."""

    def say(self, text: str) -> None:
        """One line that stays."""

    def news(self, happened: Happened) -> None: ...


class LocalInstance:
    """`async with LocalInstance(state, settings, reporter) as instance`: entered when it serves its
    model and has a job for it, left drained. Entering raises CliError for what could not start."""

    def __init__(
        self, state: StateDir, settings: Settings, reporter: Reporter, *, api_key: str = ""
    ) -> None:
        self.state = state
        self.settings = settings
        self._reporter = reporter
        self._api_key = api_key
        self._stack = contextlib.AsyncExitStack()
        self._phase = "starting"
        self._precision = settings.precision
        self._since = int(time.time())
        self._interrupted = False
        self._supervisor: Supervisor | None = None
        self.job: Job | None = None

    @property
    def url(self) -> str:
        return self._launch.url

    @property
    def supervisor(self) -> Supervisor:
        if self._supervisor is None:
            raise RuntimeError("the instance was not started")
        return self._supervisor

    def interrupt(self) -> None:
        """First call: drain; second: end everything at once."""
        supervisor = self._supervisor
        if supervisor is not None:
            (supervisor.kill if self._interrupted else supervisor.stop)()
        self._interrupted = True

    async def ended(self) -> None:
        """Returns once nothing runs any more."""
        await self.supervisor.ended.wait()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        settings = self.settings
        self._stack.enter_context(self.state.held())
        await asyncio.to_thread(self._see_to_certificates)
        # Here and not in the model server's log: a download is shown, a wrong name said at once.
        await asyncio.to_thread(resolve_model, settings.model, cache_dir(), self._reporter.say)
        try:
            binary = await asyncio.to_thread(resolve_etcd)
        except EtcdNotFound as error:
            raise CliError(f"Cannot start etcd: {error}.") from error
        self._launch: Launch = plan(settings, self.state, binary.path)
        self._reporter.say(f"using {binary.describe()}")
        self._supervisor = Supervisor(self._launch.services, self.state.logs, on_news=self._on_news)
        running = asyncio.create_task(self._supervisor.run())
        self._stack.push_async_callback(self._drain, running)
        if self._launch.tls is not None and settings.tls_folder is None:
            self._renew_certificates(self._launch.tls)
        if self._interrupted:
            self._supervisor.stop()
        await self._or_end(self._supervisor.settled.wait())
        await self._or_end(self._until_served())
        self._phase = "ready"
        try:
            self._publish()
        except OSError as error:
            raise CliError(
                f"The state folder {self.state.path} cannot be written: {error.strerror}; give "
                "another --state."
            ) from error

    def _see_to_certificates(self) -> None:
        """Raises UnusableTls for the user's own that cannot be used."""
        files, now = self.settings.tls_files(self.state), datetime.now(UTC)
        if files is None:
            return
        if self.settings.tls_folder is None and (said := see_to(files, _host(), now)):
            self._reporter.say(said)
        check(files, now)

    def _renew_certificates(self, files: TlsFiles) -> None:
        """From now on until the end."""
        renewing = asyncio.create_task(see_to_always(files, _host(), self._reporter.say))
        self._stack.callback(renewing.cancel)

    async def _drain(self, running: asyncio.Task[None]) -> None:
        self.supervisor.stop()
        await running

    async def _or_end(self, work: Coroutine[Any, Any, Any]) -> None:
        """Does the work, or raises why everything ended before it was done."""
        doing = asyncio.create_task(work)
        ended = asyncio.create_task(self.ended())
        try:
            await asyncio.wait([doing, ended], return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise self._why()
            doing.result()
        finally:
            for task in (doing, ended):
                task.cancel()

    async def _until_served(self) -> None:
        """The router knows the model's servers, their precision is known, and there is a job."""
        tls = self._launch.tls
        async with Client(self.url, self._api_key, tls.client() if tls else None) as client:
            while True:
                if self.settings.served_name in await _models(client):
                    break
                await asyncio.sleep(ASK_EVERY_S)
            with contextlib.suppress(ClusterError):
                self._precision = await self._served_precision()
            try:
                self.job = await ensure_job(client, self.settings.served_name)
            except ApiError as error:
                if not self.settings.auth:
                    raise
                why = error if self._api_key else "no key was given"
                self._reporter.say(f"no job was made: {why}")

    async def _served_precision(self) -> str:
        """What the model servers chose, if it was left to them. They say it in etcd, where it can
        be read without an API key."""
        tls = self._launch.tls
        async with (
            EtcdClient([self._launch.etcd], tls=tls.client() if tls else None) as client,
            Members(client, "modelserver") as members,
        ):
            found = {str(each.info["precision"]) for each in members.current().values()}
        return found.pop() if len(found) == 1 else self.settings.precision

    def _on_news(self, happened: Happened) -> None:
        if self.supervisor.stopping:
            self._phase = "draining"
        # A full disk must not end what runs: 'impala ps' then shows what was.
        with contextlib.suppress(OSError):
            self._publish()
        self._reporter.news(happened)

    def _publish(self) -> None:
        self.state.write(
            Instance(
                pid=os.getpid(),
                since=self._since,
                phase=self._phase,
                url=self._launch.url,
                model=self.settings.served_name,
                source=self.settings.source,
                precision=self._precision,
                etcd=self._launch.etcd,
                tls=str(self._launch.tls.folder) if self._launch.tls else "",
                services=[
                    ServiceInfo(
                        service=each.service,
                        name=each.name,
                        pid=each.pid,
                        ports=each.ports,
                        since=each.since,
                        restarts=each.restarts,
                        phase=each.phase.value,
                    )
                    for each in self.supervisor.processes()
                ],
            )
        )

    def _why(self) -> CliError:
        failure = self.supervisor.failure
        if failure is None:
            return Interrupted("Stopped before it was ready.")
        log = self.supervisor.log_of(failure.name)
        lines = log.tail() or ["nothing was said"]
        service = failure.name.partition("-")[0]
        reason = reason_of(service, lines)
        if reason:
            return CliError(f"The {service} could not start: {reason} (Its log: {log.path})")
        return CliError(
            f"The {service} could not start (exit code {failure.code}): {lines[-1]} "
            f"(its log: {log.path})"
        )


def _host() -> str:
    return socket.gethostname()


async def _models(client: Client) -> list[str]:
    try:
        return [model["id"] for model in await client.models()]
    except NotReachable:
        return []
    except ApiError as error:
        # Without a key a router with keys tells nobody its models; /ready tells that it has some.
        if error.status == 401:
            return await client.ready_models()
        raise


async def ensure_job(client: Client, model: str) -> Job:
    """The newest job of the model, made if there is none."""
    for job in await client.jobs():
        if job["model"] == model:
            return job
    return await client.create_job(model, name="impala up", idempotency_key=f"up {model}")
