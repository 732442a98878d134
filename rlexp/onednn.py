"""Products of float32 matrices by oneDNN, as the torch operator ``rlexp::product``.

torch multiplies float32 matrices with MKL, which runs code for AVX2 on every processor that is not Intel's. AMD's with
AVX-512 of full width (Zen 5) then do half of what they can: 108 instead of 235 GFLOP/s a core, for matrices of 256 by
256. torch contains oneDNN as well, and calls it for convolutions and for bfloat16, but on such machines not for this.
So compiled updates call it there, by an operator of their own, since torch's only reaches single matrices; its numbers
are float32 like MKL's, summed in another order.

The operator takes a few lines of C++. They are compiled in two seconds, once for each version of torch and compiler,
and kept beside the other code that torch compiles. Where that fails, MKL goes on as ever.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from rlexp.machine import is_zen5

COMPILER_SECONDS = 120  # more than it takes on any machine

# mkldnn_matmul is exported by torch and declared in none of its headers. Its name in the library spells out its
# arguments: a torch in which they are others has no such name, and SYMBOL is not found.
SYMBOL = "_ZN2at6native13mkldnn_matmulERKNS_6TensorES3_S3_ff"
SOURCE = r"""
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

namespace at {
class Tensor;
namespace native {
void mkldnn_matmul(const Tensor& left, const Tensor& right, const Tensor& out, float beta, float alpha);
}
}  // namespace at

using torch::stable::Tensor;

static const at::Tensor& unwrapped(const Tensor& tensor) {
  return *reinterpret_cast<const at::Tensor*>(tensor.get());
}

static Tensor product(Tensor left, Tensor right) {
  STD_TORCH_CHECK(left.numel() && right.numel(), "rlexp::product: there is nothing to multiply");
  Tensor out = left.dim() == 2 ? torch::stable::new_empty(left, {left.size(0), right.size(1)})
                               : torch::stable::new_empty(left, {left.size(0), left.size(1), right.size(2)});
  at::native::mkldnn_matmul(unwrapped(left), unwrapped(right), unwrapped(out), 0.0f, 1.0f);
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(rlexp, CPU, m) {
  m.impl("product", TORCH_BOX(&product));
}
"""


def helps(device: torch.device) -> bool:
    """Whether products in float32 are faster by oneDNN than by what torch calls on this machine."""
    return (
        device.type == "cpu"
        and sys.platform == "linux"
        and is_zen5()
        and torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
    )


@functools.cache
def problem() -> str | None:
    """Why there is no operator, in a few words, or None. The first call of a process makes it."""
    try:
        library = ctypes.CDLL(str(_torch() / "lib" / "libtorch_cpu.so"))
        if not hasattr(library, SYMBOL):
            return f"torch {torch.__version__} has no mkldnn_matmul"
        built = _built() or _build()
        _declare()
        torch.ops.load_library(str(built))
    except subprocess.CalledProcessError as error:
        return f"the C++ compiler failed: {(error.stderr.strip().splitlines() or ['no message'])[0]}"
    except (OSError, RuntimeError, ImportError, subprocess.TimeoutExpired) as error:
        return str(error).splitlines()[0]
    return None


def _torch() -> Path:
    return Path(torch.__file__).parent


def _run(*command: str, folder: Path | None = None) -> str:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, errors="replace", check=True, timeout=COMPILER_SECONDS
    ).stdout


def _compiler() -> str:
    found = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    if found is None:
        raise OSError("no C++ compiler was found (g++ or clang++)")
    return found


def _place() -> tuple[Path, str]:
    """The folder of compiled operators, and how the names of those begin that can be used here."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    made_of = (SOURCE, torch.__version__, str(_torch()), _run(_compiler(), "--version"))
    return Path(cache_dir()) / "rlexp", f"product-{_digest(chr(0).join(made_of).encode())}-"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _built() -> Path | None:
    """The operator that was compiled before. Its name ends with a digest of what is in it: one that was cut short, as
    by a full disk, would end the process that loads it."""
    folder, begin = _place()
    for path in folder.glob(f"{begin}*.so"):
        if path.name == f"{begin}{_digest(path.read_bytes())}.so":
            return path
        path.unlink(missing_ok=True)
    return None


def _build() -> Path:
    """Compile the operator; two processes at once do no harm."""
    folder, begin = _place()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        made = Path(temporary) / "product.so"
        made.with_suffix(".cpp").write_text(SOURCE, encoding="utf-8")
        where = (f"-I{_torch() / 'include'}", f"-L{_torch() / 'lib'}", "-ltorch_cpu", "-lc10")
        flags = ("-O2", "-std=c++20", "-shared", "-fPIC", "product.cpp", "-o", "product.so")
        _run(_compiler(), *flags, *where, folder=made.parent)  # short names: the file would hold longer ones
        path = folder / f"{begin}{_digest(made.read_bytes())}.so"
        os.replace(made, path)
    return path


def _declare() -> None:
    """What the operator takes and gives, for those that trace it."""
    tags = (torch.Tag.flexible_layout, torch.Tag.pt2_compliant_tag)
    torch.library.define("rlexp::product", "(Tensor left, Tensor right) -> Tensor", tags=tags)

    @torch.library.register_fake("rlexp::product")
    def _(left: Tensor, right: Tensor) -> Tensor:
        return left.new_empty((*left.shape[:-1], right.shape[-1]))
