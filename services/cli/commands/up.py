"""impala up, down and ps."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from typer._click import Context
from typer.core import TyperCommand

from libs.clock.polling import wait_until
from libs.config import parse_bytes
from libs.demo.model import DEMO
from services.cli import net, options
from services.cli.errors import CliError, Usage
from services.cli.instance import LocalInstance
from services.cli.interrupts import Interrupts
from services.cli.invocation import typed
from services.cli.launch import PortWishes, Settings
from services.cli.output import StartReporter, clock, print_json, say, seconds, table
from services.cli.state_dir import Instance, StateDir

PRECISIONS = ("auto", "float32", "float16", "int8")
LOOK_EVERY_S = 0.1
DOWN_WITHIN_S = 120.0

Port = Annotated[int | None, typer.Option(min=0, max=65535)]


def register(app: typer.Typer) -> None:
    app.command(cls=UpCommand)(up)
    app.command()(down)
    app.command()(ps)


class UpCommand(TyperCommand):
    """`--tls` may stand without a value."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_lone_tls(args))


def with_lone_tls(arguments: Sequence[str]) -> list[str]:
    """`--tls` that no folder follows, as `--tls=`. What follows it and is no flag is the folder:
    nothing else of `impala up` stands without a flag."""
    return [
        "--tls=" if argument == "--tls" and after.startswith("-") else argument
        for argument, after in pairwise([*arguments, "-"])
    ]


def check_precision(value: str | None) -> str | None:
    if value is not None and value not in PRECISIONS:
        raise typer.BadParameter(f"{value!r} is none of {', '.join(PRECISIONS)}")
    return value


def up(
    model: Annotated[
        str, typer.Option(help="Alias, folder, .gguf file or hub id of the weights.")
    ] = DEMO.alias,
    name: Annotated[str, typer.Option(help="Name that requests use; else as --model.")] = "",
    state: options.State = None,
    servers: Annotated[int, typer.Option(help="Model servers.", min=1, max=64)] = 1,
    precision: Annotated[
        str,
        typer.Option(
            help="Of the weights: auto, float32, float16 or int8.", callback=check_precision
        ),
    ] = "auto",
    threads: Annotated[
        int, typer.Option(help="Of each model server; 0: the cores shared evenly.", min=0)
    ] = 0,
    kv_bytes: Annotated[str, typer.Option(help="KV pool of each model server, as 2GiB.")] = "",
    auth: Annotated[bool, typer.Option("--auth", help="Ask for API keys.")] = False,
    tls: Annotated[
        str | None,
        typer.Option(
            metavar="[FOLDER]",
            help="Speak TLS, and mutual TLS between members and to etcd: with tls.crt, tls.key and "
            "ca.crt of FOLDER, or, without it, with a CA made for this instance.",
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once it is ready.")
    ] = False,
    http_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="8080 by default; 0 picks a free one.")
    ] = None,
    grpc_port: Port = None,
    scheduler_port: Port = None,
    modelserver_port: Port = None,
    kvstore_port: Port = None,
    leap_port: Port = None,
    etcd_port: Port = None,
    api_key: options.ApiKey = "",
) -> int:
    """Start an instance here: etcd and the five services, supervised. Ctrl-C drains it.

    What dies is started again. Ports but HTTP's move to a free one if the default is taken.
    """
    settings = Settings(
        model=model,
        name=name,
        precision=precision,
        servers=servers,
        threads=threads,
        kv_bytes=_checked_size(kv_bytes),
        auth=auth,
        tls=tls is not None,
        tls_folder=Path(tls).expanduser() if tls else None,
        ports=PortWishes(
            http=http_port,
            router=grpc_port,
            scheduler=scheduler_port,
            modelserver=modelserver_port,
            kvstore=kvstore_port,
            leap=leap_port,
            etcd=etcd_port,
        ),
    )
    folder = StateDir.named(state)
    if detach:
        return _detached(folder)
    return asyncio.run(_up(folder, settings, api_key))


async def _up(state: StateDir, settings: Settings, api_key: str) -> int:
    with StartReporter() as reporter, Interrupts() as interrupts:
        instance = LocalInstance(state, settings, reporter, api_key=api_key)
        interrupts.call(instance.interrupt)
        async with instance:
            reporter.settled()
            say(_summary(state.require(), state, settings, without_job=instance.job is None))
            await instance.ended()
    return 0


def _summary(instance: Instance, state: StateDir, settings: Settings, *, without_job: bool) -> str:
    body = f'{{"model": "{instance.model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    key = 'os.environ["IMPALA_API_KEY"]' if settings.auth else '"none"'
    header = ' -H "authorization: Bearer $IMPALA_API_KEY"' if settings.auth else ""
    ca, cacert = _how_to_trust(instance)
    where, impala = _where(state), typed()
    first = ""
    if without_job:
        first = f"""
It asks for API keys. Without one yet (it is shown once), and without a job for batches:
  export IMPALA_API_KEY=$({impala} keys create --account me{where})
  {impala} jobs create --model {instance.model}{where}
"""
    servers = "1 model server" if settings.servers == 1 else f"{settings.servers} model servers"
    return f"""
Impala is ready at {instance.url}
  model    {instance.model} ({instance.precision}, {servers}, {settings.threads_each} threads each)
  etcd     {instance.etcd}
  state    {state.path} (logs in {state.logs})
{ca}{first}
Try it:
  curl{cacert} {instance.url}/v1/chat/completions -H 'content-type: application/json'{header} \\
    -d '{body}'

{_openai(instance, key)}
  client.chat.completions.create(model="{instance.model}", messages=[...])

  {impala} run IN.jsonl -o OUT.jsonl --model {instance.model}{where}
"""


def _how_to_trust(instance: Instance) -> tuple[str, str]:
    """A line about the CA, and curl's flag for it; empty without TLS."""
    files = instance.tls_files
    if files is None:
        return "", ""
    ca = shlex.quote(str(files.ca))
    (port,) = (each.ports["grpc"] for each in instance.services if each.service == "router")
    line = f"  CA       {files.ca} (gRPC: grpcurl -cacert {ca} {net.HOST}:{port} list)\n"
    return line, f" --cacert {ca}"


def _openai(instance: Instance, key: str) -> str:
    """How its client is made; `key` is a Python expression."""
    at, files = f'base_url="{instance.url}/v1", api_key={key}', instance.tls_files
    modules = ["os"] if key.startswith("os.") else []
    if files is None:
        lines = ["from openai import OpenAI", f"client = OpenAI({at})"]
    else:
        modules.append("ssl")
        lines = [
            "from openai import DefaultHttpxClient, OpenAI",
            f"tls = ssl.create_default_context(cafile={str(files.ca)!r})",
            f"client = OpenAI({at}, http_client=DefaultHttpxClient(verify=tls))",
        ]
    imports = [f"import {', '.join(modules)}"] if modules else []
    return "\n".join(f"  {line}" for line in [*imports, *lines])


def _where(state: StateDir) -> str:
    """The flag with which other commands find this instance."""
    if state.path == StateDir.named(None).path:
        return ""
    return f" --state {shlex.quote(str(state.path))}"


def _detached(state: StateDir) -> int:
    """The same command again as a session of its own; its output goes to a log."""
    state.make()
    owner = state.owner()
    if owner is not None:
        raise CliError(
            f"Another 'impala up' (pid {owner}) runs in {state.path}: stop it with 'impala down', "
            "or give another --state."
        )
    log = state.logs / "up.log"
    arguments = [each for each in sys.argv[1:] if each not in ("-d", "--detach")]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "services.cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    shown = 0
    while process.poll() is None:
        instance = state.instance()
        text = log.read_text(errors="replace")
        if instance is not None and instance.phase == "ready" and "Try it:" in text:
            sys.stderr.write(text[shown:])
            return 0
        end = text.rfind("\n") + 1
        sys.stderr.write(text[shown:end])
        shown = max(shown, end)
        # A file says nothing when it grows; the loop ends with the process, whose start is bounded.
        time.sleep(LOOK_EVERY_S)
    sys.stderr.write(log.read_text(errors="replace")[shown:])
    return process.returncode or 1


def down(state: options.State = None) -> int:
    """Drain the instance and wait until it has ended."""
    folder = StateDir.named(state)
    pid = folder.owner()
    if not pid:
        folder.require()
        return 1
    os.kill(pid, signal.SIGTERM)
    if not wait_until(lambda: folder.owner() != pid, DOWN_WITHIN_S, every_s=LOOK_EVERY_S):
        raise CliError(f"The instance (pid {pid}) still drains after {DOWN_WITHIN_S:.0f} s.")
    say(f"The instance in {folder.path} has stopped.")
    return 0


def ps(state: options.State = None, as_json: options.AsJson = False) -> int:
    """List the processes of the instance."""
    folder = StateDir.named(state)
    if as_json:
        instance = folder.instance()
        print_json(msgspec.to_builtins(instance.services if instance else []))
        return 0 if instance else 1
    instance = folder.require()
    now = int(time.time())
    table(
        ("service", "pid>", "phase", "ports", "since", "up>", "restarts>"),
        [
            (
                each.name,
                each.pid,
                each.phase,
                " ".join(f"{name}:{port}" for name, port in each.ports.items()),
                clock(each.since),
                seconds(now - each.since) if each.pid and each.since else None,
                each.restarts,
            )
            for each in instance.services
        ],
    )
    say(
        f"\n{instance.model} ({instance.precision}) at {instance.url} ({instance.phase}, "
        f"supervisor pid {instance.pid})"
    )
    if instance.tls_files:
        say(f"CA of its certificates: {instance.tls_files.ca}")
    return 0


def _checked_size(text: str) -> str:
    if text:
        try:
            parse_bytes(text)
        except ValueError as error:
            raise Usage(f"--kv-bytes {text} is wrong: {error}.") from error
    return text
