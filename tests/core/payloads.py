"""Payloads of every kind for property tests, and how two are compared."""

import torch
from hypothesis import strategies as st
from torch import Tensor

from unisono.core.payload import Payload

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip
SCALARS = st.dictionaries(
    st.text(max_size=5),
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    max_size=3,
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Random bits of any type and shape (also 0-d and empty), laid out in order, transposed, strided or expanded."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    num_elements = int(torch.Size(shape).numel())
    highest = 2 if dtype is torch.bool else 256
    bits = torch.randint(0, highest, (num_elements * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    tensor = (bits.view(dtype) if num_elements else torch.empty(0, dtype=dtype)).reshape(shape)
    layout = draw(st.sampled_from(["plain", "transposed", "strided", "expanded"]))
    if layout == "transposed":
        return tensor.permute(list(reversed(range(tensor.dim()))))
    if layout == "strided" and tensor.dim():
        return tensor[::2]
    return tensor.expand(2, *shape) if layout == "expanded" else tensor


PAYLOADS = st.builds(
    Payload,
    st.dictionaries(st.sampled_from(["encoder", "head", "ä|#"]), st.dictionaries(st.text(max_size=4), tensors(), max_size=4)),
    SCALARS,
)


def bits(tensor: Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    raw = tensor.clone(memory_format=torch.contiguous_format).flatten()
    return tensor.dtype, tensor.shape, raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b""


def same(first: Payload, second: Payload) -> bool:
    """Whether names, order, types, shapes, scalars and every bit agree."""
    if list(first.groups) != list(second.groups) or list(first.scalars.items()) != list(second.scalars.items()):
        return False
    pairs = list(first.tensors()), list(second.tensors())
    return [(name, bits(tensor)) for name, tensor in pairs[0]] == [(name, bits(tensor)) for name, tensor in pairs[1]]
