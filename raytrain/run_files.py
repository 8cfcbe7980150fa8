"""The small files of a run, read where it lies: in a folder on this machine, or at a URI."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from raytrain.errors import RunFolderError
from raytrain.remote import RemoteError, RemoteFolder, is_uri
from raytrain.run_folder import check_is_run
from raytrain.run_lock import Holder, read_holder

CONFIGURATION, LOCK = "configuration.yaml", "lock"


class RunFiles(ABC):
    """What is read of one run.

    Attributes:
        name: of the run.
        where: the run for people: its path or its URI.
    """

    name: str
    where: str

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """Content of a file; None if there is none.

        Raises:
            OSError: it cannot be read; so do all methods.
        """

    @abstractmethod
    def folders_with(self, file: str) -> list[str]:
        """Names of the folders in it that hold `file`, sorted."""

    @abstractmethod
    def changed_s(self, path: str) -> float | None:
        """When a file changed (s since 1970); None without one, or where the place does not know."""

    @abstractmethod
    def holder(self) -> Holder | None:
        """Who holds the run's lock, alive or not; None when nobody does."""


class _Here(RunFiles):
    def __init__(self, path: Path) -> None:
        self._path, self.name, self.where = path, path.absolute().name, str(path)

    def read(self, path: str) -> bytes | None:
        try:
            return (self._path / path).read_bytes()
        except FileNotFoundError:
            return None

    def folders_with(self, file: str) -> list[str]:
        return sorted(found.parent.name for found in self._path.glob(f"*/{file}"))

    def changed_s(self, path: str) -> float | None:
        try:
            return (self._path / path).stat().st_mtime
        except OSError:
            return None

    def holder(self) -> Holder | None:
        return read_holder(self._path / LOCK)


class _AtUri(RunFiles):
    def __init__(self, uri: str) -> None:
        self._folder = RemoteFolder(uri)
        self.where, self.name = self._folder.uri, self._folder.uri.rpartition("/")[2]

    def read(self, path: str) -> bytes | None:
        return self._folder.read(path)

    def folders_with(self, file: str) -> list[str]:
        return [name for name in self._folder.names() if file in self._folder.names(name)]

    def changed_s(self, path: str) -> float | None:
        return self._folder.changed_s(path)

    def holder(self) -> Holder | None:
        data = self._folder.read(LOCK)
        try:
            return None if data is None else Holder.from_bytes(data)
        except ValueError:
            return None  # half-written, as `raytrain.remote_lock` takes it


def files_of(run: str | Path) -> RunFiles:
    """The files of a run, which nobody has looked at yet.

    Args:
        run: its folder or URI.

    Raises:
        RunFolderError: nothing is installed that understands the URI.
    """
    return _AtUri(str(run)) if is_uri(run) else _Here(Path(run).expanduser())


def check_holds_run(run: str | Path) -> None:
    """Raise if there is no run at `run`, its folder or URI.

    Raises:
        RunFolderError: with the runs there are, or the place does not answer.
    """
    if not is_uri(run):
        check_is_run(Path(run).expanduser())
        return
    from raytrain.staging import is_remote_run, list_remote_runs

    folder = RemoteFolder(str(run))
    parent = folder.uri.rpartition("/")[0]
    try:
        if is_remote_run(folder):
            return
        there = list_remote_runs(RemoteFolder(parent))
    except RemoteError as error:
        raise unreachable(error) from error
    raise RunFolderError(f"Expected a run, found none at {run}. Runs in {parent}: {', '.join(there) or 'none'}.")


def unreachable(error: RemoteError) -> RunFolderError:
    """What is said of a place that does not answer."""
    return RunFolderError(f"Cannot read {error}. Check the URI, the credentials and the network.")
