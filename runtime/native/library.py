"""The compiled kernels.

Enters: nothing. Leaves: the library with its functions typed, or ProviderMissing with the reason.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
from pathlib import Path

from spec_edge.runtime.native.mirror import SIZES, Matrix, Quantised, Run
from spec_edge.runtime.providers.provider import ProviderMissing

FOLDER = Path(__file__).parent
REBUILD = "install a C compiler (gcc, clang or Visual Studio's), then spec-edge again: pip install --force-reinstall"


def path() -> Path | None:
    """The library's file; None: it was not built."""
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        file = FOLDER / f"_kernels{suffix}"
        if file.is_file():
            return file
    return None


@functools.cache
def library() -> ctypes.CDLL:
    """ProviderMissing: it was not built, is another version's, or this processor lacks AVX2."""
    file = path()
    if file is None:
        raise ProviderMissing(f"spec-edge was installed without its own kernels; {REBUILD}")
    try:
        found = ctypes.CDLL(str(file))
    except OSError as error:
        raise ProviderMissing(f"spec-edge's kernels cannot be loaded ({error}); {REBUILD}") from None
    _declare(found)
    sizes = (ctypes.c_int32 * len(SIZES))()
    found.native_sizes(sizes)
    if list(sizes) != [ctypes.sizeof(kind) for kind in SIZES]:
        raise ProviderMissing(f"spec-edge's kernels are another version's; {REBUILD}")
    if not found.native_supported():
        raise ProviderMissing("this processor lacks AVX2, FMA or F16C, which spec-edge's own kernels need")
    return found


def _declare(found: ctypes.CDLL) -> None:
    pointer, number = ctypes.c_void_p, ctypes.c_int
    found.native_pool.restype = pointer
    found.native_pool.argtypes = [number, number]
    found.native_free.restype = None
    found.native_free.argtypes = [pointer]
    found.native_threads.argtypes = [pointer]
    found.native_run.restype = number
    found.native_run.argtypes = [pointer, ctypes.POINTER(Run)]
    found.native_product.restype = None
    found.native_product.argtypes = [ctypes.POINTER(Matrix), ctypes.POINTER(Quantised), number, pointer, number]
    found.native_quantise.restype = None
    found.native_quantise.argtypes = [pointer, ctypes.POINTER(Quantised), number]
    found.native_sizes.restype = None
    found.native_reach.argtypes = [pointer, ctypes.c_int64]
    found.native_pack.restype = None
    found.native_pack.argtypes = [number, *[pointer] * 3, *[number] * 3, ctypes.c_float, pointer]
