"""Folders that are named by a URI (``s3://…``, ``gs://…``, ``file://…``), by way of fsspec, which is an extra."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raytrain.errors import RunFolderError


class RemoteError(OSError):
    """A place behind a URI that does not do what it was asked for. One sentence, with the URI."""

    def __str__(self) -> str:
        return self.args[0]


def is_uri(path: str | Path) -> bool:
    """Whether a results folder, run or checkpoint is named by a URI. A `Path` never is: it would take the second slash away."""
    return isinstance(path, str) and "://" in path


def join(uri: str, *parts: str) -> str:
    """The URI of something inside the folder `uri`."""
    return "/".join([uri.rstrip("/"), *parts])


def run_address(results_dir: str | Path, run_id: str) -> str | Path:
    """Where a run is for people: its URI, or the path of its folder."""
    return join(results_dir, run_id) if is_uri(results_dir) else Path(results_dir) / run_id


class RemoteFolder:
    """The folder at a URI; paths inside it are relative, with ``/``. Usable from several threads.

    Listings are never cached. Where there are no folders (object stores) they exist as long as something is in them.

    Attributes:
        uri: without a slash at the end.

    Raises:
        RunFolderError: fsspec, or the package that it needs for this kind of URI, is not installed, or there is no such kind.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise RunFolderError(f"Expected the package fsspec for {uri}, which is not installed. Use pip install 'raytrain[remote]'.") from error
        try:
            self._fs, root = url_to_fs(self.uri, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise RunFolderError(
                f"Expected a URI that fsspec understands with what is installed, received {uri}: {error} (for s3:// pip install s3fs, for gs:// gcsfs)."
            ) from error
        self._root = root.rstrip("/")
        self._made: set[str] = set()
        self._making = threading.Lock()

    def read(self, path: str) -> bytes | None:
        """Content of a file; None if there is none.

        Raises:
            RemoteError: the place does not answer, or refuses; so do all methods.
        """
        with self._speaking(path):
            try:
                return self._fs.cat_file(self._full(path))
            except FileNotFoundError:
                return None

    def write(self, path: str, data: bytes) -> None:
        """Make a file or replace it."""
        with self._speaking(path):
            self._make_parent(path)
            self._fs.pipe_file(self._full(path), data)

    def put(self, source: Path, path: str) -> None:
        """Upload a local file.

        Raises:
            FileNotFoundError: `source` is gone.
        """
        if not source.is_file():
            raise FileNotFoundError(source)
        with self._speaking(path):
            self._make_parent(path)
            self._fs.put_file(str(source), self._full(path))

    def get(self, path: str, target: Path) -> None:
        """Download a file to a local path, whose folder is made."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._speaking(path):
            self._fs.get_file(self._full(path), str(target))

    def names(self, path: str = "") -> list[str]:
        """Names of what is in a folder, sorted; empty without one."""
        with self._speaking(path):
            self._fs.invalidate_cache()
            try:
                entries = self._fs.ls(self._full(path), detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted({name for entry in entries if (name := entry.rstrip("/").rpartition("/")[2])})

    def changed_s(self, path: str) -> float | None:
        """When a file changed (s since 1970); None without one, or where the place does not know."""
        with self._speaking(path):
            try:
                return self._fs.modified(self._full(path)).timestamp()
            except (FileNotFoundError, NotImplementedError):
                return None

    def files(self, path: str = "") -> list[str]:
        """All files below a folder, relative to it, sorted."""
        full = self._full(path)
        with self._speaking(path):
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(full)
            except FileNotFoundError:
                return []
        return sorted(one[len(full) + 1 :] for one in found if one.startswith(f"{full}/"))

    def remove(self, path: str) -> None:
        """Delete a file, or a folder with all that is in it; nothing if there is none."""
        with self._speaking(path):
            self._fs.invalidate_cache()
            try:
                self._fs.rm(self._full(path), recursive=True)
            except FileNotFoundError:
                return

    def move(self, path: str, target: str) -> None:
        """Move a folder file by file: copies and then deletes where there are no folders."""
        for file in self.files(path):
            with self._speaking(path):
                self._make_parent(f"{target}/{file}")
                self._fs.copy(self._full(f"{path}/{file}"), self._full(f"{target}/{file}"))
        self.remove(path)

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _make_parent(self, path: str) -> None:
        parent = self._full(path).rpartition("/")[0]
        with self._making:
            if parent not in self._made:
                self._fs.makedirs(parent, exist_ok=True)
                self._made.add(parent)

    @contextmanager
    def _speaking(self, path: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each kind of place has errors of its own, not all of which are OSErrors
            with self._making:
                self._made.clear()  # somebody may have deleted a folder
            raise RemoteError(f"{join(self.uri, path)}: {_first_line(error)}") from error


def _first_line(error: Any) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{f' ({lines[0]})' if lines else ''}"
