"""The nine layout primitives, each with its inverse among them.

Split and fuse are mutual inverses, reorder is its own.

| primitive                          | shape                          | access                                     |
|------------------------------------|--------------------------------|--------------------------------------------|
| split(k, (F1, ..., Fm))            | N_k becomes F1, ..., Fm        | the digits of i_k                          |
| reorder(p)                         | permuted                       | permuted                                   |
| fuse(k, count)                     | the product                    | the linearized indices                     |
| unfold(k, B, S), fold(k, B, S, D)  | D becomes ceil((D-B)/S)+1, B   | tile and offset                            |
| pad(k, b, a), unpad(k, b, a)       | N_k becomes b + N_k + a        | shifted by b                               |
| store_at(U, ..., k), decouple_at   | N_k becomes N_k + 1            | U's elements in the new slice              |
"""

from collections.abc import Mapping

from tilewright.layout.basic import Fuse, Reorder, Split
from tilewright.layout.padding import Pad, Unpad
from tilewright.layout.primitive import Array, Indices, Primitive, Shape, Size
from tilewright.layout.store_at import DecoupleAt, StoreAt
from tilewright.layout.unfold import Fold, Unfold

__all__ = [
    "PRIMITIVES", "Array", "DecoupleAt", "Fold", "Fuse", "Indices", "Pad", "Primitive", "Reorder", "Shape", "Size",
    "Split", "StoreAt", "Unfold", "Unpad",
]  # fmt: skip

PRIMITIVES: Mapping[str, type[Primitive]] = {
    kind.name: kind for kind in (Split, Reorder, Fuse, Unfold, Fold, Pad, Unpad, StoreAt, DecoupleAt)
}
"""Every primitive by name."""
