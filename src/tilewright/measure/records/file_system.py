"""Which file system a path is on: network file systems share no memory, so SQLite's write-ahead log fails there."""

import os
from pathlib import Path

NETWORK_TYPES = frozenset((
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "drvfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre",
    "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "prl_fs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs",
))  # fmt: skip
"""Types of file systems, as Linux calls them, whose files several machines may share."""

_LOCAL_FUSE = frozenset(("fuse.fuseblk", "fuse.fuse-overlayfs", "fuse.ntfs", "fuse.ntfs-3g"))

_MOUNTS = Path("/proc/self/mountinfo")


def is_network(path: Path, mounts: str | None = None) -> bool:
    """Whether a path is on a network file system; no where the system does not tell.

    Args:
        path: of a file or folder, which need not exist.
        mounts: text of Linux's `mountinfo`, by default this process's.
    """
    if mounts is None:
        try:
            mounts = _MOUNTS.read_text()
        except (OSError, UnicodeDecodeError):
            return False
    place, best, kind = os.path.realpath(path), "", ""
    for line in mounts.splitlines():
        # "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw"
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = fields[4].encode().decode("unicode_escape") if "\\" in fields[4] else fields[4]
        is_above = place == point or place.startswith(point.rstrip("/") + "/")
        # a later mount hides an earlier one of the same place
        if is_above and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind in NETWORK_TYPES or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def is_read_only(path: Path) -> bool:
    """Whether a file is on media that nobody can write to."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False
