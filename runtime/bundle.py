"""A bundle on disk, checked before any parser sees a byte of it.

Enters: a folder. Leaves: a `Bundle`, whose files exist, are regular, lie inside the folder and have the size and
SHA-256 that `bundle.json` states. Hashes stop corruption and a changed file, not a person who rewrites bundle.json
too: whatever parses these files later still treats them as data.
"""

from __future__ import annotations

import hashlib
import stat
from dataclasses import dataclass
from pathlib import Path

from spec_edge.models.aliases import ALIASES
from spec_edge.models.contract import MANIFEST, BadUsage, FileFact, GraphSpec, Manifest, SpecError
from spec_edge.runtime import manifest as schema
from spec_edge.runtime.manifest_values import check_vocabulary

CHUNK = 4 << 20
OTHERS = frozenset({"thumbs.db", "desktop.ini"})
"""Files that Windows puts into folders by itself; names that start with a dot are left alone too."""


@dataclass(frozen=True)
class Bundle:
    """`folder` is resolved; every file named in `manifest` has been checked. digest: SHA-256 of bundle.json."""

    folder: Path
    manifest: Manifest
    digest: str

    def path(self, fact: FileFact) -> Path:
        return self.folder / fact.file

    def graphs(self, network: str, role: str) -> tuple[GraphSpec, ...]:
        """Graphs of one network and role, narrow and short first, parts in order; empty if there are none."""
        found = [g for g in self.manifest.graphs if g.network == network and g.role == role]
        return tuple(sorted(found, key=lambda g: (g.past or 0, g.width or 0, g.part)))


def is_bundle(folder: Path) -> bool:
    """Whether `folder` claims to be a bundle; nothing in it is read."""
    return (folder / MANIFEST).is_file()


def open_bundle(folder: Path) -> Bundle:
    """Read bundle.json and check every file it names; SpecError says which file is wrong and how to mend it."""
    if not folder.exists():
        raise BadUsage(f"bundle '{folder}' does not exist; make one: spec-export MODEL -o '{folder}'")
    root = folder.resolve(strict=True)
    if not is_bundle(root):
        raise BadUsage(f"'{folder}' holds no {MANIFEST}, so it is not a bundle; make one: spec-export MODEL -o FOLDER")
    with (root / MANIFEST).open("rb") as file:
        text = file.read(schema.LIMIT + 1)
    bundle = Bundle(root, schema.read(text), hashlib.sha256(text).hexdigest())
    facts = schema.files(bundle.manifest)
    _refuse_others(root, {MANIFEST, *(fact.file for fact in facts)}, bundle)
    for fact in facts:
        _check_place(bundle, fact)
    for fact in facts:
        _check_content(bundle, fact)
    for drafter in bundle.manifest.drafters:
        if drafter.vocabulary is not None:
            check_vocabulary(bundle.manifest, drafter, bundle.path(drafter.vocabulary).read_bytes())
    return bundle


def beside(bundle: Bundle, folder: str, digest: str, what: str, otherwise: str) -> Bundle:
    """The bundle in a folder of this name beside this one, which records its digest.

    SpecError: it is not there, or is another one. what: "draft model"; otherwise: what else to do.
    """
    place = bundle.folder.with_name(folder)
    if not is_bundle(place):
        raise SpecError(f"the {what} of this bundle is not at {place}; put it back, or {otherwise}")
    found = open_bundle(place)
    if found.digest != digest:
        raise SpecError(f"{place} is not the {what} that was exported with this bundle; {otherwise}")
    return found


def _fix(bundle: Bundle) -> str:
    source = bundle.manifest.source
    name = next((name for name, alias in ALIASES.items() if alias.sha256 == source.sha256), source.name)
    return f"export it again: spec-export {name} -o '{bundle.folder}' --force"


def _refuse_others(root: Path, known: set[str], bundle: Bundle) -> None:
    """A file that nothing vouches for could be read by a graph as its weights."""
    for entry in sorted(root.iterdir()):
        name = entry.name
        if name not in known and not name.startswith(".") and name.lower() not in OTHERS:
            raise SpecError(f"bundle file {name!a} is not listed in {MANIFEST}: remove it, or {_fix(bundle)}")


def _check_place(bundle: Bundle, fact: FileFact) -> None:
    try:
        real = bundle.path(fact).resolve(strict=True)
        info = real.stat()
    except (OSError, RuntimeError):
        raise SpecError(f"bundle file {fact.file} is missing: {_fix(bundle)}") from None
    if real.parent != bundle.folder or not stat.S_ISREG(info.st_mode):
        raise SpecError(f"bundle file {fact.file} is not a regular file inside the bundle's folder: {_fix(bundle)}")
    if info.st_size != fact.bytes:
        raise SpecError(f"bundle file {fact.file} has {info.st_size} bytes, not {fact.bytes}: {_fix(bundle)}")


def _check_content(bundle: Bundle, fact: FileFact) -> None:
    if sha256(bundle.path(fact)) != fact.sha256:
        raise SpecError(f"bundle file {fact.file} has changed (its SHA-256 differs): {_fix(bundle)}")


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex; one buffer, however large the file."""
    digest, buffer = hashlib.sha256(), bytearray(CHUNK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
    return digest.hexdigest()
