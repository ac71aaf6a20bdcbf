"""What a run has finished so far, on the disk: a later run goes on from there if this run dies.

A run has a folder in `reconcile.directory` until its report is written. Each file in the folder is written
under another name, synced and renamed: a file is complete or not there. A run holds a lock on its folder,
which the kernel releases when the process ends, however it ends: so a folder that nobody locks is that of a
run that died. Two runs never use one folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, NamedTuple

from toc.domain.disagreements import Disagreement
from toc.reconcile.findings import Finding, RepairResult, ShardComparison
from toc.runtime.clock import Clock
from toc.runtime.private_files import make_private_directory, open_private_file, sync_directory
from toc.runtime.settings import Settings

log = logging.getLogger(__name__)

RESUMED_S_MAX = 21_600
"""In s. Results of a run that began longer ago are not used: so old may a finding of a long run be, too."""

RUN = "run.json"
_FOLDER = re.compile(r"\.\w+\.unfinished", re.ASCII)
_COMPARED, _REPAIRED = "compared", "repaired"


class FinishedShards(NamedTuple):
    """Shards that were compared and rechecked, until `ended_ms`."""

    ended_ms: int
    shards: list[ShardComparison]


class UnfinishedRun:
    """The folder of a run. See `open_unfinished_run`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.compared: list[FinishedShards] = []
        """What the interrupted run has compared."""
        self.repairs: list[RepairResult] = []
        """What the interrupted run has repaired."""
        self._files = 0

    def read_files(self) -> None:
        """Reads what the interrupted run has finished.

        Raises OSError, ValueError, KeyError, TypeError, AttributeError.
        """
        for path in sorted(self._folder.glob("*-*.json")):
            kind, _, number = path.stem.partition("-")
            self._files = max(self._files, int(number))
            value = json.loads(path.read_bytes())
            if kind == _COMPARED:
                shards = [_comparison_of_json(each) for each in value["shards"]]
                self.compared.append(FinishedShards(int(value["ended_ms"]), shards))
            elif kind == _REPAIRED:
                self.repairs += [
                    RepairResult(_finding_of_json(finding), bool(done), str(how))
                    for finding, done, how in value
                ]

    def record_compared(self, finished: FinishedShards) -> None:
        """Records shards that were compared. An error is logged: the run can go on without this."""
        shards = [_comparison_as_json(compared) for compared in finished.shards]
        self._write_file(_COMPARED, {"ended_ms": finished.ended_ms, "shards": shards})

    def record_repaired(self, results: Sequence[RepairResult]) -> None:
        """Records the results of repairs. An error is logged."""
        self._write_file(_REPAIRED, results)

    def delete(self) -> None:
        """Deletes the folder: the report is written."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write_file(self, kind: str, value: object) -> None:
        self._files += 1
        path = self._folder / f"{kind}-{self._files:06}.json"
        try:
            _write_json(path, value)
        except OSError as error:
            log.warning("%s cannot be written: a later run would repeat this part: %s", path, error)


@contextmanager
def open_unfinished_run(
    settings: Settings, clock: Clock, *, repair: bool, fresh: bool
) -> Iterator[UnfinishedRun | None]:
    """The folder of an interrupted run with the same settings, else a new one; locked during the block.
    None: the directory lacks room or locks, which is logged.

    repair: whether the run repairs; a run that does not repair takes up no run that does, and vice versa.
    fresh: takes up no run. Deletes the folders of runs that died long ago.
    """
    directory = Path(settings.reconcile.directory)
    make_private_directory(directory)
    key = _settings_key(settings, repair=repair)
    for folder in _list_folders(directory):
        with _lock_folder(folder) as lock:
            if lock is None:
                continue
            run = _take_up(folder, lock, key, clock.wall_ms(), fresh=fresh)
            if run is not None:
                yield run
                return
    try:
        new, lock = _create_folder(directory, {"key": key, "began_ms": clock.wall_ms()})
    except OSError as error:
        log.warning("if this run dies, the next one begins anew: %s: %s", directory, error)
        yield None
        return
    with lock:
        yield new


def _create_folder(directory: Path, about: dict[str, object]) -> tuple[UnfinishedRun, IO[str]]:
    """A new run, and the file that locks its folder while it is open."""
    folder = Path(tempfile.mkdtemp(".unfinished", ".", directory))
    lock = open_private_file(folder / RUN, "w+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        json.dump(about, lock)
        lock.flush()
        os.fsync(lock.fileno())
    except BaseException:
        lock.close()
        raise
    return UnfinishedRun(folder), lock


def _settings_key(settings: Settings, *, repair: bool) -> str:
    """Equal for runs with the same settings, apart from passwords, and the same version of toc."""
    text = json.dumps([version("toc"), repair, settings.model_dump_json()])
    return hashlib.sha256(text.encode()).hexdigest()


def _list_folders(directory: Path) -> list[Path]:
    """Folders of unfinished runs, newest first."""
    found = []
    for entry in os.scandir(directory):
        with suppress(OSError):  # its run deletes it just now
            if _FOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                found.append((entry.stat(follow_symlinks=False).st_mtime, Path(entry.path)))
    return [path for _, path in sorted(found, reverse=True)]


@contextmanager
def _lock_folder(folder: Path) -> Iterator[IO[str] | None]:
    """The locked file RUN of a folder; None: a live run has it, or it has just been deleted."""
    try:
        file = open_private_file(folder / RUN, "r+")
    except OSError:
        yield None
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_there = os.path.samestat(os.fstat(file.fileno()), (folder / RUN).stat())
        except OSError:
            is_there = False
        yield file if is_there else None


def _take_up(
    folder: Path, lock: IO[str], key: str, now_ms: int, *, fresh: bool
) -> UnfinishedRun | None:
    """The run that died, if it can be taken up; deletes its folder if no run can take it up any more."""
    run = UnfinishedRun(folder)
    try:
        about = json.load(lock)
        age_s = (now_ms - about["began_ms"]) / 1000
        if about["key"] == key and not fresh and 0 <= age_s <= RESUMED_S_MAX:
            run.read_files()
            return run
        is_over = age_s > RESUMED_S_MAX or (fresh and about["key"] == key)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        # A run that has just begun has an empty file for a moment.
        age_s = now_ms / 1000 - os.fstat(lock.fileno()).st_mtime
        is_over = age_s > RESUMED_S_MAX
        log.warning("an interrupted run is not taken up: %s cannot be read (%r)", folder, error)
    if is_over:
        run.delete()
    return None


def _write_json(path: Path, value: object) -> None:
    """Writes a file that is complete or not there."""
    unfinished = path.with_suffix(".tmp")
    with open_private_file(unfinished, "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_directory(path.parent)


def _comparison_as_json(compared: ShardComparison) -> dict[str, Any]:
    return {
        "shard": compared.shard,
        "counts": compared.counts,
        "found": compared.found,
        "findings": compared.findings,
        "work": compared.work,
    }


def _comparison_of_json(value: dict[str, Any]) -> ShardComparison:
    return ShardComparison(
        int(value["shard"]),
        Counter(value["counts"]),
        Counter({Disagreement(kind): int(number) for kind, number in value["found"].items()}),
        [_finding_of_json(each) for each in value["findings"]],
        work=defaultdict(float, value["work"]),
    )


def _finding_of_json(value: list[Any]) -> Finding:
    kind, *rest = value
    return Finding(Disagreement(kind), *rest)
