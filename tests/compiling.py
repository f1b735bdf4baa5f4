"""Kernels compiled for a GPU that is not there.

Programs that compile Triton's kernels are each forked from a process that has imported PyTorch and Triton. That process
has no interpreter, which is fixed when a kernel is decorated.
"""

import atexit
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from lamina.accelerate.common.tiling import SHARED_MEMORY
from lamina.accelerate.runtime import nvrtc
from lamina.accelerate.runtime.nvrtc import Arguments, Kernel, Size, check_launch

SERVER = """
import json, os, sys, traceback
import torch, triton, triton.language
import triton.backends.compiler, triton.compiler

for line in sys.stdin:
    text, arguments, folder = json.loads(line)
    child = os.fork()
    if not child:
        code = 1
        try:
            for descriptor, name in enumerate(("out", "error"), 1):
                os.dup2(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT), descriptor)
            os.environ["TRITON_CACHE_DIR"] = folder
            sys.argv = ["-c", *arguments]
            exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def run(text: str, *arguments: str, folder: Path) -> "CompletedProcess[str]":
    """A program, given as its text, with arguments; the folder is for its output and for compiled kernels."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    try:
        print(json.dumps([text, arguments, str(folder)]), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
    except BaseException:  # the next program must not get this one's answer
        server.kill()
        _server.cache_clear()
        raise
    return CompletedProcess(text, code, *((folder / name).read_text() for name in ("out", "error")))


@cache
def _server() -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.communicate)  # it ends with its input
    return server


needs_nvrtc = pytest.mark.skipif(sys.platform != "linux", reason="NVRTC is for Linux here")


class ForHopper(Kernel):
    """A kernel of CUDA C++ that is compiled as for a Hopper GPU when it is launched, and not run."""

    def launch(self, grid: Size, block: Size, args: Arguments, shared: int = 0) -> None:
        check_launch(self.name, grid, block, args, shared)
        assert shared <= SHARED_MEMORY
        assert nvrtc.compiled(self.source, "sm_90", self.options)
