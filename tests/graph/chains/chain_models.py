"""Models with chains of contractions, and their partitions."""

import onnx
from tests.frontend.onnx_models import model

from tilewright.frontend.onnx import load_onnx
from tilewright.graph.chains.find import Dataflow, KernelChain, find_chains, find_links
from tilewright.graph.kernel import Kernel
from tilewright.graph.lower import lower_graph
from tilewright.graph.partition import Partition, partition
from tilewright.graph.passes import simplify_graph


def two_products(
    m: int | str = 20, k: int = 8, n: int = 24, h: int = 8, between: str = "c = Relu(c0)"
) -> onnx.ModelProto:
    """E = f(A B) D."""
    body = f"c0 = MatMul(a, b) {between} e = MatMul(c, d)"
    inputs = f"float[{m}, {k}] a, float[{k}, {n}] b, float[{n}, {h}] d"
    return model(body, inputs=inputs, outputs=f"float[{m}, {h}] e")


def attention(sequence: int | str = 10, batch: int = 2, mask: bool = False) -> onnx.ModelProto:
    """Attention of 3 heads of 8 columns, with the transposes and reshapes of an exporter."""
    score = "t0 = MatMul(qt, kt) half = Constant<value_float = 0.5>() t1 = Mul(t0, half)"
    body = f"""
        heads = Constant<value_ints = [0, 0, 3, 8]>() flat = Constant<value_ints = [0, 0, 24]>()
        q0 = Reshape(q, heads) qt = Transpose<perm = [0, 2, 1, 3]>(q0)
        k0 = Reshape(k, heads) kt = Transpose<perm = [0, 2, 3, 1]>(k0)
        v0 = Reshape(v, heads) vt = Transpose<perm = [0, 2, 1, 3]>(v0)
        {score} {"t2 = Add(t1, mask)" if mask else "t2 = Identity(t1)"}
        p = Softmax<axis = -1>(t2) o = MatMul(p, vt)
        o1 = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(o1, flat)"""
    shape = f"float[{batch}, {sequence}, 24]"
    inputs = ", ".join(f"{shape} {n}" for n in "qkv")
    masks = f", float[{batch}, 1, {sequence}, {sequence}] mask" if mask else ""
    return model(body, inputs=inputs + masks, outputs=f"{shape} y")


def merged_heads(sequence: int | str = 10) -> onnx.ModelProto:
    """Attention whose products have one axis for batch and heads, and whose mask has two."""
    body = f"""
        four = Constant<value_ints = [2, 3, {sequence}, {sequence}]>()
        three = Constant<value_ints = [6, {sequence}, {sequence}]>()
        t0 = MatMul(q, k) t1 = Reshape(t0, four) t2 = Add(t1, mask)
        p0 = Softmax<axis = -1>(t2) p = Reshape(p0, three) y = MatMul(p, v)"""
    inputs = f"float[6, {sequence}, 8] q, float[6, 8, {sequence}] k, float[6, {sequence}, 8] v"
    inputs += f", float[2, 1, {sequence}, {sequence}] mask"
    return model(body, inputs=inputs, outputs=f"float[6, {sequence}, 8] y")


def cached_attention(
    heads: int = 3, size: int = 8, shared_by: int = 1, outputs: str = "keys values"
) -> onnx.ModelProto:
    """Attention of one new position, of a batch B, over a cache of P positions that its key and value are appended to.

    Args:
        heads: of keys and values.
        size: of a head.
        shared_by: heads of queries per head of keys.
        outputs: further outputs; by default the new cache.
    """
    groups = [-1, heads, shared_by, size]
    body = f"""
        keys = Concat<axis = -2>(old_keys, k) values = Concat<axis = -2>(old_values, v)
        groups = Constant<value_ints = {groups}>() flat = Constant<value_ints = [0, {heads * shared_by}, 1, {size}]>()
        grouped = Reshape(q, groups) kt = Transpose<perm = [0, 1, 3, 2]>(keys) s = MatMul(grouped, kt)
        half = Constant<value_float = 0.5>() scores = Mul(s, half)
        p = Softmax<axis = -1>(scores) o = MatMul(p, values) y = Reshape(o, flat)"""
    one, cache = f"float[B, {heads}, 1, {size}]", f"float[B, {heads}, P, {size}]"
    queries = f"float[B, {heads * shared_by}, 1, {size}]"
    inputs = f"{queries} q, {one} k, {one} v, {cache} old_keys, {cache} old_values"
    stored = "".join(f", float[B, {heads}, T, {size}] {name}" for name in outputs.split())
    return model(body, inputs=inputs, outputs=f"{queries} y{stored}")


def partition_of(source: onnx.ModelProto, shapes: dict[str, int] | None = None) -> Partition:
    """The kernels of a model, none of them fused to chains."""
    return partition(lower_graph(simplify_graph(load_onnx(source, shapes))))


def chains_of(parts: Partition) -> tuple[Dataflow, list[KernelChain]]:
    """The dataflow of a partition, and all its chains."""
    flow = Dataflow(parts)
    return flow, list(find_chains(flow, find_links(flow)))


def labels(flow: Dataflow, positions: tuple[int, ...]) -> list[str]:
    """The labels of kernels at some positions."""
    return [u.label for k in positions if isinstance(u := flow.units[k], Kernel)]
