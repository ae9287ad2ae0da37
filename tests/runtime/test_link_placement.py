"""Where linked code lies: its sections stay within reach of each other, whatever else is mapped."""

from tests.runtime.process import python


def test_sections_are_placed_together_where_address_space_is_fragmented() -> None:
    """Code takes the only hole in a region of 4 GiB: what it refers to must not end up on the other side of it."""
    script = """
        import ctypes
        from tests.runtime.models import count_artifact
        from tilewright.runtime import Executable

        PAGE, FAILED = 4096, 2**64 - 1
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_uint64
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        NO_ACCESS, PRIVATE_ANONYMOUS_NORESERVE = 0, 0x2 | 0x20 | 0x4000

        def reserve(size):
            address = libc.mmap(None, size, NO_ACCESS, PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
            assert address != FAILED
            return address

        Executable(count_artifact(), threads=1)()  # what is allocated once
        region = reserve(4 << 30)
        # fill every hole above the region, so that new mappings go below it
        for pages in (256, 64, 16, 4, 2, 1):
            while (last := reserve(pages * PAGE)) > region:
                pass
        models = []
        for k in range(1, 9):
            hole = region + (4 << 30) - (64 * k + 16) * PAGE
            assert libc.munmap(hole, k * PAGE) == 0
            models.append(Executable(count_artifact(), threads=1))
            assert models[-1]().tolist() == [1, 0, 0, 0]
    """
    process = python(script)
    assert process.returncode == 0, process.stderr
