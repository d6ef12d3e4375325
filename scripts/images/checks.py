"""Containerfiles and manifests against what their readers accept, without any server."""

from __future__ import annotations

from pathlib import Path

from scripts.images.tools import CACHE, ROOT, run

KUSTOMIZATIONS = ("base", "single-node", "tls")


def containerfiles() -> list[Path]:
    return sorted([*ROOT.glob("services/*/Containerfile"), *ROOT.glob("examples/**/Containerfile")])


def check_files(checkers: Path) -> None:
    """Raises ImagesError, with the first fault that was found."""
    files = containerfiles()
    run(checkers / "hadolint", *files)
    print(f"hadolint: {len(files)} Containerfiles are clean")
    for name in KUSTOMIZATIONS:
        folder = ROOT / "examples/deploy/kubernetes" / name
        rendered = CACHE / f"kubernetes-{name}.yaml"
        rendered.write_text(run(checkers / "kubectl", "kustomize", folder))
        log = CACHE / f"kubernetes-{name}.log"
        said = run(checkers / "kubernetes-validate", "--strict", rendered, log=log)
        print(
            f"kubernetes/{name}: {said.count(' passed ')} objects follow their schemas", flush=True
        )
