"""Writing a file or a folder that appears whole or not at all.

What is not finished has a hidden name beside the one that it will take, ``.<name>.<8 hex digits>.partial``, and is
locked by the process that writes it. Such a name that nobody holds is what a killed process left: whoever writes the
same file or folder next removes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

#: Errors of writing itself, which carry no path.
_OF_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)

#: A folder cannot take the name of a folder that is not empty, or of a file.
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """A file to write into, which takes the name ``target`` in one step when the block ends.

    Where the block raises, or the disk is full, or the machine stops, what ``target`` named before is still there. The
    new file has the permissions of the old one, or those that a new file has by default. It is written beside
    ``target``, whose folder must be there.

    Raises:
        OSError: it cannot be written. It names ``target``.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with replacing(folder / "a.txt") as file:
    ...     _ = file.write(b"whole")
    >>> [path.name for path in folder.iterdir()], (folder / "a.txt").read_text()
    (['a.txt'], 'whole')
    """

    def make(partial: Path) -> int:
        return os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    with _unfinished(target, make) as (partial, descriptor):
        with os.fdopen(os.dup(descriptor), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            partial.chmod(target.stat().st_mode & 0o777)
        partial.replace(target)


@contextlib.contextmanager
def filling(target: Path) -> Iterator[Path]:
    """A folder to fill, which takes the name ``target`` in one step when the block ends; where the block raises,
    nothing of it stays. ``target`` must not be there; the folders above it are made.

    Raises:
        OSError: it cannot be written, or another writer made ``target`` meanwhile, which stays. It names ``target``.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with filling(folder / "a") as partial:
    ...     _ = (partial / "b.txt").write_text("whole")
    >>> [path.name for path in folder.iterdir()], [path.name for path in (folder / "a").iterdir()]
    (['a'], ['b.txt'])
    """

    def make(partial: Path) -> int:
        partial.mkdir(parents=True)
        return os.open(partial, os.O_RDONLY)

    with _unfinished(target, make) as (partial, _):
        yield partial
        try:
            partial.rename(target)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            why = "another writer made it meanwhile, and it is left as it is"
            raise FileExistsError(errno.EEXIST, why, os.fspath(target)) from error


@contextlib.contextmanager
def _unfinished(target: Path, make: Callable[[Path], int]) -> Iterator[tuple[Path, int]]:
    """A new hidden name beside ``target`` that is locked meanwhile, and the descriptor that ``make`` opened it with.
    When the block ends it is gone."""
    partial, descriptor = target, -1
    try:
        _remove_leftovers(target)
        while descriptor < 0:
            partial = target.parent / f".{target.name}.{secrets.token_hex(4)}.partial"
            descriptor = _locked(make(partial), partial)
        yield partial, descriptor
    except OSError as error:
        of_it = str(error.filename).startswith(os.fspath(partial)) or (descriptor < 0 and error.filename is not None)
        if of_it or (error.filename is None and error.errno in _OF_WRITING):
            raise OSError(error.errno, error.strerror, os.fspath(target)) from error
        raise
    finally:
        if partial != target:
            with contextlib.suppress(OSError):  # a file system that only reads says so of what is not there, too
                _remove(partial)
        if descriptor >= 0:
            os.close(descriptor)


def _locked(descriptor: int, path: Path) -> int:
    """The descriptor, with its lock where the system has them; -1 where who removes leftovers was quicker."""
    if not _lock(descriptor):
        return descriptor
    try:
        ours = os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        ours = False
    if not ours:
        os.close(descriptor)
    return descriptor if ours else -1


def _lock(descriptor: int, *, wait: bool = True) -> bool:
    """Lock an open file or folder until it is closed or its process dies. False where that cannot be."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def _remove_leftovers(target: Path) -> None:
    """Remove what earlier writers of ``target`` left when they were killed: ours, and held by nobody."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.partial")
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for path in [Path(entry.path) for entry in entries if pattern.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):
                _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    if path.is_symlink() or path.stat().st_uid != os.geteuid():
        return
    descriptor = os.open(path, (os.O_RDONLY if path.is_dir() else os.O_RDWR) | os.O_NOFOLLOW)
    try:
        if _lock(descriptor, wait=False):
            _remove(path)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
