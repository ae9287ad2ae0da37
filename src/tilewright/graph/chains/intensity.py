"""Whether it may pay to fuse two contractions: their operations per byte of the intermediates that fusion removes.

MCFuser (section II-A) calls a contraction memory-bound where its operations per byte, phi, are fewer than the P / W
that the machine can do while memory delivers a byte. phi counts the traffic of a contraction alone, of which fusion
removes the intermediates and nothing else. So the ratio is taken over those: at P / W, moving them takes as long as all
operations, and if nothing of it were hidden the fused kernel would take half of the time; at r times P / W fusion gains
1 / (r + 1) at most.
"""

from dataclasses import dataclass

from tilewright.expr.computation import iteration_space_size
from tilewright.expr.pattern import is_sum_of_products
from tilewright.graph.chains.find import Dataflow, Link, written_by
from tilewright.graph.kernel import Kernel
from tilewright.graph.memory_plan import representative_size
from tilewright.machine.model import Machine


@dataclass(frozen=True, slots=True)
class LinkIntensity:
    """Work and traffic of two contractions in sequence, at representative sizes.

    Attributes:
        flops: operations of both contractions, two for every product.
        bytes: of the intermediates: what is written and what is read of them, without what others read as well.
    """

    flops: int
    bytes: int

    def max_gain(self, machine: Machine) -> float:
        """Upper bound of the share of time that fusion saves."""
        if not self.flops or not self.bytes:
            return 0.0
        return 1 / (1 + self.flops_per_byte / machine_balance(machine))

    @property
    def flops_per_byte(self) -> float:
        """Operations per byte of the intermediates."""
        return self.flops / self.bytes if self.bytes else float("inf")


def machine_balance(machine: Machine) -> float:
    """P / W: operations at peak rate while memory delivers a byte."""
    return machine.gflops(machine.cores) / machine.levels[-1].gbs(machine.cores)


def link_intensity(link: Link, flow: Dataflow) -> LinkIntensity:
    """Work and traffic of a link."""
    written = [b for k in link.members - {link.consumer} for b in written_by(flow.units[k])]
    moved = 0
    for b in written:
        stored = flow.is_read_outside(b, link.members)
        kernels = [k for k in flow.readers_of(b) if k in link.members and isinstance(flow.units[k], Kernel)]
        is_kernel_result = isinstance(flow.units[flow.writer_of(b)], Kernel)
        times = len(kernels) + (0 if stored or not is_kernel_result else 1)
        moved += times * representative_size(b.size * b.dtype.bytes)
    return LinkIntensity(sum(map(_flops, (flow.units[link.producer], flow.units[link.consumer]))), moved)


def _flops(kernel: object) -> int:
    stages = kernel.stages if isinstance(kernel, Kernel) else ()
    return sum(
        2 * representative_size(iteration_space_size((*s.axes, *s.reduce_axes)))
        for s in stages
        if is_sum_of_products(s)
    )
