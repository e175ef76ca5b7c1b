"""Leases: one process at a time writes a folder, and the folder says which one (`.lease`).

The lock is that of `flock`: it ends with its process, however that ends. What the file says is for messages alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from vlrl.leases import describe_holder, sign
from vlrl.types import UserError

LEASE = ".lease"
ADVICE = "wait until it ends, end it (SIGTERM lets a run save first), or name another folder"
NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EROFS)
_LEASES: dict[Path, int] = {}  # folders that this process holds alone, and the locks' file descriptors


class HeldError(UserError):
    """Another process holds the folder."""

    exit_code = 2  # of a run in several processes, the first of which reports it


class ReadOnlyError(UserError):
    """This process may not write the folder."""


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[int]:
    """Holds a folder against every other process; one that is missing is created, and removed if it stays empty.

    Gives the lock's file descriptor: a process that inherits it holds the folder as well.

    Raises:
        HeldError: another process holds it.
        UserError: there cannot be such a folder.
    """
    key, is_new = folder.absolute(), not folder.exists()
    _LEASES[key] = descriptor = _acquire(folder, fcntl.LOCK_EX)
    try:
        yield descriptor
    finally:
        if key in _LEASES:  # not in a forked process; another descriptor after `rename_folder`
            _release(folder, _LEASES.pop(key))
            if is_new:
                with contextlib.suppress(OSError):
                    folder.rmdir()


@contextlib.contextmanager
def read_folder(folder: Path) -> Iterator[None]:
    """Holds a folder that must not change while it is read, together with other readers.

    Raises:
        HeldError: another process writes it.
    """
    try:
        descriptor = _acquire(folder, fcntl.LOCK_SH)
    except ReadOnlyError:  # nobody writes it
        yield
        return
    try:
        yield
    finally:
        _release(folder, descriptor)


def rename_folder(folder: Path, new: Path) -> None:
    """Renames a folder that no other process holds. Where this one holds it, it then holds an empty one of that name.

    Raises:
        HeldError: another process holds it.
    """
    own = _LEASES.get(folder.absolute())
    descriptor = _acquire(folder, fcntl.LOCK_EX) if own is None else own
    folder.rename(new)
    if own is not None:
        _LEASES[folder.absolute()] = _acquire(folder, fcntl.LOCK_EX)
    (new / LEASE).unlink(missing_ok=True)
    os.close(descriptor)


@contextlib.contextmanager
def make_folder(out: Path, *, resumable: bool = False) -> Iterator[Path]:
    """An empty folder to write into, which gets the name `out` when all is in it: there is all of it, or nothing.

    Args:
        resumable: what an interrupted call left in the folder is still there.

    Raises:
        HeldError: another process makes the same.
        UserError: the name is taken.
    """
    check_free(out)
    work = out.with_name(f".{out.name}.part")
    part = work / out.name
    try:
        with hold_folder(work):
            if not resumable:
                shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
            part.mkdir(exist_ok=True)
            try:
                yield part
                check_free(out)
                os.replace(part, out)
            finally:
                if not resumable:
                    shutil.rmtree(part, ignore_errors=True)
    finally:
        with contextlib.suppress(OSError):
            work.rmdir()  # unless something is left in it to resume from, or somebody else holds it


def check_free(folder: Path) -> None:
    """UserError where something is in the way of a new folder; an empty one is not."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder} exists already: name another folder, or remove it")


def _acquire(folder: Path, kind: int) -> int:
    """The file descriptor of the folder's lock, exclusive or shared."""
    while True:
        descriptor = _open(folder, kind)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = describe_holder(descriptor)
            os.close(descriptor)
            raise HeldError(f"{folder} is in use by {holder}: {ADVICE}") from None
        except OSError as error:
            print(f"vlrl: {folder}: its file system has no locks ({error.strerror}): that no other process writes "
                  "there is not checked", file=sys.stderr)  # fmt: skip
            return descriptor
        if _is_current(folder, descriptor):
            with contextlib.suppress(OSError):  # a full disk, or one to read, is no reason to hold nothing
                sign(descriptor)
            return descriptor
        os.close(descriptor)  # its holder removed it between our opening and locking it


def _open(folder: Path, kind: int) -> int:
    """The file descriptor of the folder's lease, which is created with its folder."""
    try:
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # its last holder removed the folder, because it was empty
                return os.open(folder / LEASE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if error.errno in NO_ACCESS and kind == fcntl.LOCK_SH and (folder / LEASE).exists():  # somebody else's
            return os.open(folder / LEASE, os.O_RDONLY)
        refusal = ReadOnlyError if error.errno in NO_ACCESS else UserError
        raise refusal(f"out: cannot write {folder}: {error.strerror}") from None


def _is_current(folder: Path, descriptor: int) -> bool:
    """Whether the folder's lease is still the file that was opened."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder / LEASE))
    except FileNotFoundError:
        return False


def _release(folder: Path, descriptor: int) -> None:
    """Removes the lease, unless others hold it as well, and gives the lock back."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_current(folder, descriptor):
            (folder / LEASE).unlink()
    os.close(descriptor)


def _forget() -> None:
    """In a forked process: the folders are its parent's, also where the child lives longer."""
    for descriptor in _LEASES.values():
        os.close(descriptor)
    _LEASES.clear()


os.register_at_fork(after_in_child=_forget)
