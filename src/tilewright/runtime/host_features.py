"""CPU features of this machine, as LLVM detects them."""


def llvm_host_features() -> frozenset[str]:
    """LLVM's names of the features that this machine has.

    Raises:
        RuntimeError: LLVM does not know the processor.
    """
    import llvmlite.binding as llvm  # here because importing LLVM takes 40 ms that `import tilewright` must not

    return frozenset(str(name) for name, present in llvm.get_host_cpu_features().items() if present)
