"""The compiled kernels.

Enters: nothing. Leaves: the library with its functions typed, or ProviderMissing with the reason.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import platform
from pathlib import Path

from spec_edge.runtime.native.mirror import FACTS, Matrix, Quantised, Run
from spec_edge.runtime.providers.provider import ProviderMissing

FOLDER = Path(__file__).parent
MACHINES = ("x86_64", "amd64")
INSTRUCTIONS = ("AVX2", "AVX-VNNI", "AVX512-VNNI")
"""By native_instructions' numbers."""

REBUILD = (
    "install a C compiler (gcc, clang or Visual Studio's), then spec-edge again: "
    "pip install --no-cache-dir --force-reinstall --no-deps spec-edge"
)


class Unfit(ProviderMissing):
    """The kernels are for another processor than this."""


def path() -> Path | None:
    """The library's file; None: it was not built."""
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        file = FOLDER / f"_kernels{suffix}"
        if file.is_file():
            return file
    return None


@functools.cache
def library() -> ctypes.CDLL:
    """ProviderMissing: it was not built, or is another version's. Unfit: this is another processor."""
    if platform.machine().lower() not in MACHINES:
        raise Unfit(f"spec-edge's own kernels are for x86-64, not for {platform.machine()}")
    file = path()
    if file is None:
        raise ProviderMissing(f"spec-edge was installed without its own kernels; {REBUILD}")
    try:
        found = ctypes.CDLL(str(file))
        facts = (ctypes.c_int32 * len(FACTS))()
        found.native_facts(facts, len(FACTS))
        same = tuple(facts) == FACTS
        _declare(found)
    except OSError as error:
        raise ProviderMissing(f"spec-edge's kernels cannot be loaded ({error}); {REBUILD}") from None
    except AttributeError:
        same = False
    if not same:
        raise ProviderMissing(f"spec-edge's kernels are another version's; {REBUILD}")
    if not found.native_supported():
        raise Unfit("this processor lacks AVX2, FMA or F16C, which spec-edge's own kernels need")
    found.native_instructions(-1)
    return found


def instructions(wanted: str = "") -> str:
    """What matrices are multiplied with from now on; the best there is, or where this processor has not what is
    wanted. Results are the same to the last bit."""
    return INSTRUCTIONS[library().native_instructions(INSTRUCTIONS.index(wanted) if wanted else -1)]


def unfit() -> str:
    """Why this processor is not meant, "" where it is."""
    try:
        library()
    except Unfit as error:
        return error.message
    except ProviderMissing:
        pass
    return ""


def _declare(found: ctypes.CDLL) -> None:
    pointer, number = ctypes.c_void_p, ctypes.c_int
    found.native_pool.restype = pointer
    found.native_pool.argtypes = [number]
    found.native_free.restype = None
    found.native_free.argtypes = [pointer]
    found.native_threads.argtypes = [pointer]
    found.native_run.restype = number
    found.native_run.argtypes = [pointer, ctypes.POINTER(Run)]
    found.native_product.restype = None
    found.native_product.argtypes = [ctypes.POINTER(Matrix), ctypes.POINTER(Quantised), number, pointer, number]
    found.native_quantise.restype = None
    found.native_quantise.argtypes = [pointer, ctypes.POINTER(Quantised), number]
    found.native_top.restype = None
    found.native_top.argtypes = [pointer, number, pointer, number, *[pointer] * 3]
    found.native_instructions.argtypes = [number]
    found.native_reach.argtypes = [pointer, ctypes.c_int64]
    found.native_pack.restype = None
    found.native_pack.argtypes = [number, *[pointer] * 3, *[number] * 3, ctypes.c_float, pointer]
