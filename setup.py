"""The C kernels of runtime/native, built where there is a compiler; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("runtime/native/src")

KERNELS = Extension(
    "spec_edge.runtime.native._kernels",
    sources=sorted(path.as_posix() for path in SOURCES.glob("*.c")),
    depends=[(SOURCES / "native.h").as_posix()],
    # No contraction: a row's numbers must not depend on how a compiler unrolled the rows beside it. Compilers that do
    # not know an option say so and go on.
    extra_compile_args=["-O3", "-ffp-contract=off", "-fvisibility=hidden", "-pthread"],
    extra_link_args=["-pthread"],
    py_limited_api=True,  # it uses nothing of Python's: one file serves every version
    optional=True,  # without a compiler the provider `native` is missing, and says so
)

setup(ext_modules=[KERNELS], options={"bdist_wheel": {"py_limited_api": "cp310"}})
