"""The C kernels of runtime/native, built where there is a compiler; everything else is in pyproject.toml."""

import platform
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("runtime/native/src")
ABI3 = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""One file serves every version, since it uses nothing of Python's; a free-threaded Python knows no such name yet."""

OPTIONS = ["-O3", "-ffp-contract=off", "-fvisibility=hidden", "-pthread"]
"""No contraction: a row's numbers must not depend on how a compiler unrolled the rows beside it. Compilers that do not
know an option say so and go on."""

if sysconfig.get_platform().startswith("mingw"):
    OPTIONS.append("-Wa,-muse-unaligned-vector-move")  # its stacks are aligned to 16 bytes (GCC bug 54412)

KERNELS = Extension(
    "spec_edge.runtime.native._kernels",
    sources=sorted(path.as_posix() for path in SOURCES.glob("*.c")),
    depends=sorted(path.as_posix() for path in SOURCES.glob("*.h")),
    extra_compile_args=OPTIONS,
    extra_link_args=["-pthread"],
    py_limited_api=ABI3,
    optional=True,  # without a compiler the provider `native` is missing, and says so
)

x86 = platform.machine().lower() in ("x86_64", "amd64")
setup(
    ext_modules=[KERNELS] if x86 else [],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if x86 and ABI3 else {},
)
