"""Writing a file that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """A file to write into, which takes the name ``target`` in one step when the block ends.

    Where the block raises, or the disk is full, or the machine stops, what ``target`` named before is still there. The
    new file has the permissions of the old one, or those that a new file has by default. It is written beside
    ``target``, whose folder must be there.

    Raises:
        OSError: it cannot be written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with replacing(folder / "a.txt") as file:
    ...     _ = file.write(b"whole")
    >>> [path.name for path in folder.iterdir()], (folder / "a.txt").read_text()
    (['a.txt'], 'whole')
    """
    partial = target.parent / f".{target.name}.{secrets.token_hex(4)}.partial"
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            partial.chmod(target.stat().st_mode & 0o777)
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
