"""Files and folders: checksums, atomic writes, locks, leases, deadlines."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vlrl.decoders import load_json, parse_json
from vlrl.types import UserError

# What a folder's files were when they were written: sizes and SHA-256, to see later that they are still that.

LIST = "files.json"


def note(folder: Path) -> None:
    """Writes the list of all files of a folder into it."""
    files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    (folder / LIST).write_text(json.dumps({name: checksums_of(folder / name) for name in files}))


def problem(folder: Path) -> str | None:
    """The first file of the list that is not what was noted; None: all are.

    Raises:
        FileNotFoundError: the folder has no list.
    """
    try:
        for name, entry in load_json(folder / LIST).items():
            if not (folder / name).is_file():
                return f"{name} is missing"
            if (folder / name).stat().st_size != entry["bytes"] or checksums_of(folder / name) != entry:
                return f"{name} is not what was saved"
    except (UnicodeDecodeError, ValueError, AttributeError, TypeError, KeyError):
        return f"{LIST} is no list of files"
    return None


def checksums_of(file: Path) -> dict[str, Any]:
    """A file's size and the SHA-256 of what it holds."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replaces a file: a kill or a power loss at any moment leaves the old content or the new one. Text becomes UTF-8.

    Raises:
        OSError: it cannot be written; the old content is still there.
    """
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


# A limit on how long a piece of Python may take.

AGAIN = 0.2  # seconds until code that caught the error is interrupted anew


class OverdueError(BaseException):
    """Time is up. No Exception: what is interrupted should not take it for a fault of its own and go on."""


@contextlib.contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Raises OverdueError inside when the time is up; None: no limit, and no cost.

    In the main thread by a signal, which also ends what sleeps, reads from a socket, waits for a process or searches by
    a regular expression. In another thread between two lines of Python only: what blocks there is interrupted once it
    comes back. The clock is the system's monotonic one.
    """
    if seconds is None:
        yield
    elif threading.current_thread() is threading.main_thread():
        with _by_signal(seconds):
            yield
    else:
        with _by_watch(seconds):
            yield


@contextlib.contextmanager
def _by_signal(seconds: float) -> Iterator[None]:
    def end(number: int, frame: object) -> None:
        raise OverdueError

    before = signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
        yield
    finally:
        _surely(lambda: (signal.setitimer(signal.ITIMER_REAL, 0), signal.signal(signal.SIGALRM, before)))


@contextlib.contextmanager
def _by_watch(seconds: float) -> Iterator[None]:
    own, over = ctypes.c_ulong(threading.get_ident()), threading.Event()
    order = threading.Lock()  # nothing is raised once the block has ended

    def watch() -> None:
        wait = seconds
        while not over.wait(wait):
            with order:
                if not over.is_set():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(own, ctypes.py_object(OverdueError))
            wait = AGAIN

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:

        def ended() -> None:
            with order:
                over.set()

        _surely(ended)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(own, None)  # what was raised and has not arrived
        watcher.join()


def _surely(end: Callable[[], object]) -> None:
    """Ends the watching, however often it strikes meanwhile."""
    while True:
        try:
            end()
            return
        except OverdueError:
            pass


# A file that one process at a time holds, with the name of its holder in it.
#
# The lease is `flock`'s: it goes with the process, however that ends, and stays as long as a child that inherited its
# descriptor lives. The file itself stays, so that nobody can lock a name that was removed meanwhile.

COMMAND = 120  # characters of the holder's command line that are kept


@contextlib.contextmanager
def hold(file: Path, what: str, remedy: str) -> Iterator[int]:
    """Holds a file, which is made, in a folder that is there -> its descriptor, to be inherited or to be signed.

    Args:
        what: what the file stands for, as the error names it.
        remedy: what the user can do.

    Raises:
        UserError: another process holds it, or it cannot be locked.
    """
    try:
        descriptor = _leases_open(file)
    except OSError as error:
        raise UserError(f"{what}: {file} cannot be made: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sign(descriptor)
        yield descriptor
    except BlockingIOError:
        raise UserError(f"{what} is in use by {describe_holder(descriptor)}: {remedy}") from None
    finally:
        os.close(descriptor)


def sign(descriptor: int) -> None:
    """This process is the holder from now on, for whoever reads the error."""
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:COMMAND]
    holder = {"pid": os.getpid(), "host": platform.node(), "command": command, "since": since}
    data = json.dumps(holder).encode()
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))


def _leases_open(file: Path) -> int:
    """Without O_CREAT first: it is refused for another user's file in a folder like /tmp (fs.protected_regular)."""
    with contextlib.suppress(FileNotFoundError):
        return os.open(file, os.O_RDWR | os.O_NOFOLLOW)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with contextlib.suppress(PermissionError):
        os.fchmod(descriptor, 0o666)  # whatever the umask: other users must be able to hold it as well
    return descriptor


def describe_holder(descriptor: int) -> str:
    """Who signed a lease that another process holds."""
    try:
        holder = parse_json(os.pread(descriptor, 4096, 0))
        named = "process {pid} on {host} ({command}), since {since}".format(**holder)
    except (ValueError, KeyError, TypeError):  # it has not signed yet
        return "another process"
    if holder["host"] == platform.node() and not Path(f"/proc/{holder['pid']}").exists() and Path("/proc/1").exists():
        return f"a process that was started by {named}, which has ended"
    return named


# Leases: one process at a time writes a folder, and the folder says which one (`.lease`).
#
# The lock is that of `flock`: it ends with its process, however that ends. What the file says is for messages alone.

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
        descriptor = _locks_open(folder, kind)
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


def _locks_open(folder: Path, kind: int) -> int:
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


def holds_final_model(folder: Path) -> bool:
    """Whether a run ended in this folder and left its model there, as `vlrl clone` does."""
    return all((folder / name).is_file() for name in ("config.json", "summary.json"))


def is_unfinished(folder: Path) -> bool:
    """Whether a run of ours left checkpoints in this folder and has not ended."""
    began = all((folder / name).exists() for name in ("config.yaml", "checkpoints"))
    return began and not (folder / "summary.json").exists()
