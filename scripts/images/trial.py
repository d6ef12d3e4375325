"""The images at work: etcd and the five services as containers, a chat, a clean end."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from libs.demo.model import DEMO, ensure_demo_model, model_path
from libs.testing.etcd import free_ports
from scripts.images.buildah import Container, Image
from scripts.images.errors import ImagesError
from scripts.images.tools import CACHE, ROOT, run

USER = 10001
DRAIN_S = 10.0
STOP_WITHIN_S = DRAIN_S + 10.0
HEALTHY_WITHIN_S = 120.0
START = ("kvstore", "leap", "scheduler", "modelserver", "router")
STOP = ("router", "scheduler", "modelserver", "leap", "kvstore")


def try_images(images: Mapping[str, Image]) -> None:
    """Raises ImagesError when a container does not do what its image promises."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="trial-", dir=CACHE))
        state = _state(Path(folder))
        etcd = _etcd(stack, images["etcd"])
        _prepare(stack, images["modelserver"], state)
        grpc, http = _ports(), free_ports(1)[0]
        containers = {}
        for service in START:
            env = {
                "IMPALA_ETCD": etcd,
                "IMPALA_HOST": "127.0.0.1",
                "IMPALA_PORT": str(grpc[service]),
                "IMPALA_MEMBER": service,
                "IMPALA_DRAIN_S": f"{DRAIN_S:g}",
                "IMPALA_MODEL": DEMO.alias,
                "IMPALA_HTTP_PORT": str(http),
            }
            container = Container(images[service], env=env, volumes=_volumes(state))
            containers[service] = stack.enter_context(container)
        for service, container in containers.items():
            container.wait_healthy(HEALTHY_WITHIN_S)
            if container.uid() != USER:
                raise ImagesError(f"{service} runs as user {container.uid()}, not {USER}")
            print(f"{service}: SERVING, as user {USER}", flush=True)
        key = run(ROOT / ".venv/bin/impala", "keys", "create", "--account", "trial", "--etcd", etcd)
        print(f"a chat's answer: {_chat(http, key.split()[-1])!r}", flush=True)
        for service in STOP:
            code = containers[service].stop(STOP_WITHIN_S)
            if code != 0:
                raise ImagesError(f"{service} ended with exit code {code} after SIGTERM, not 0")
            print(f"{service}: drained, exit code 0", flush=True)


def _state(folder: Path) -> Path:
    """What the containers share: a cache with the demo model, and the object store."""
    folder.chmod(0o755)
    model = model_path(folder / "cache")
    model.parent.mkdir(parents=True)
    shutil.copy(ensure_demo_model(), model)
    (folder / "objects").mkdir()
    for path in [*folder.rglob("*"), folder]:
        os.chown(path, USER, USER)
    return folder


def _volumes(state: Path) -> dict[Path, str]:
    return {state / name: f"/var/lib/impala/{name}" for name in ("cache", "objects")}


def _ports() -> dict[str, int]:
    return dict(zip(START, free_ports(len(START)), strict=True))


def _etcd(stack: ExitStack, image: Image) -> str:
    """Starts one; its endpoint."""
    client, peer = free_ports(2)
    endpoint, peers = f"127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    env = {
        "ETCD_LISTEN_CLIENT_URLS": f"http://{endpoint}",
        "ETCD_ADVERTISE_CLIENT_URLS": f"http://{endpoint}",
        "ETCD_LISTEN_PEER_URLS": peers,
        "ETCD_INITIAL_ADVERTISE_PEER_URLS": peers,
        "ETCD_INITIAL_CLUSTER": f"etcd={peers}",
        "ETCDCTL_ENDPOINTS": endpoint,
    }
    stack.enter_context(Container(image, env=env, volumes={})).wait_healthy(HEALTHY_WITHIN_S)
    print("etcd: healthy", flush=True)
    return endpoint


def _prepare(stack: ExitStack, image: Image, state: Path) -> None:
    command = ("python", "-m", "libs.models.prepare", DEMO.alias)
    with Container(image, env={}, volumes=_volumes(state), command=command) as container:
        code = container.wait(HEALTHY_WITHIN_S)
        if code != 0:
            raise ImagesError(f"preparing {DEMO.alias} ended with exit code {code}")
    print(f"{DEMO.alias}: prepared", flush=True)


def _chat(port: int, key: str) -> str:
    """The text of one chat completion, through the router to the model server."""
    body = {
        "model": DEMO.alias,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 16,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=HEALTHY_WITHIN_S) as response:
            answer = json.load(response)
    except OSError as error:
        raise ImagesError(f"the router did not answer a chat: {error}") from error
    return str(answer["choices"][0]["message"]["content"])
