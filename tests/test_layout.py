"""Guards: what is packaged, who imports whom, what a desktop app must never need."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("models", "targets", "export", "runtime")
HEAVY = ("torch", "transformers", "optimum", "onnx", "gguf", "safetensors", "huggingface_hub")


def _sources() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def test_every_package_on_disk_is_packaged() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"]
    on_disk = {
        "spec_edge." + ".".join(init.parent.relative_to(ROOT).parts)
        for folder in FOLDERS
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert on_disk == set(listed)
    assert all((ROOT / folder / "py.typed").is_file() for folder in FOLDERS)


def test_runtime_imports_with_the_heavy_packages_absent() -> None:
    names = [
        "spec_edge." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in _sources()
        if path.relative_to(ROOT).parts[0] in ("runtime", "targets") and path.name not in ("__init__.py", "__main__.py")
    ]
    program = (
        "import sys, importlib\n"
        f"for name in {HEAVY!r}: sys.modules[name] = None\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print('imported')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "imported", done.stderr


@pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_small(path: Path) -> None:
    limit = 320 if path.relative_to(ROOT).parts[0] == "runtime" else 400
    assert len(path.read_text("utf-8").splitlines()) <= limit


def test_the_step_stays_short_and_names_no_method() -> None:
    tree = ast.parse((ROOT / "runtime" / "engine.py").read_text("utf-8"))
    steps = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "step"]
    assert len(steps) == 1
    assert steps[0].end_lineno is not None
    assert steps[0].end_lineno - steps[0].lineno < 40
    names = [path.stem for folder in ("runtime/drafters", "targets") for path in (ROOT / folder).glob("*.py")]
    text = (ROOT / "runtime" / "engine.py").read_text("utf-8")
    imported = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module}
    assert not {f"spec_edge.runtime.drafters.{name}" for name in names if name != "options"} & imported


def test_version_is_one() -> None:
    from importlib.metadata import version

    written = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert version("spec-edge") == written
