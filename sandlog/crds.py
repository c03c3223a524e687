"""`sandlog crds`: the CustomResourceDefinitions, for `kubectl apply -f -`."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from sandlog.exits import failed


def _folder() -> Traversable:
    """Inside the package as installed from a wheel, else the checkout's deploy/crds."""
    packaged = resources.files("sandlog") / "crds"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "deploy" / "crds"


def documents() -> dict[str, str]:
    """File name → YAML. Raises Stop if they are nowhere."""
    folder = _folder()
    found = {
        file.name: file.read_text(encoding="utf-8")
        for file in sorted(folder.iterdir() if folder.is_dir() else (), key=lambda file: file.name)
        if file.name.endswith(".yaml")
    }
    if not found:
        raise failed(f"the CRDs are missing from this installation (looked in {folder})")
    return found


def text() -> str:
    """All of them as one stream of YAML documents."""
    return "".join(f"---\n{body.removeprefix('---').strip()}\n" for body in documents().values())
