"""The files that a command's paths stand for: files, folders, patterns, standard input."""

from __future__ import annotations

import os
from glob import has_magic
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Final

from otel_llm.formats.io.bytestream import STDIN
from otel_llm.formats.io.journal_format import CLOSED_SUFFIX, JOURNAL_SUFFIX, is_journal
from otel_llm.formats.recordings.format_table import format_of
from otel_llm.formats.recordings.recording_format import EXPECTED
from otel_llm.formats.records import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_llm.formats.io.skipped import Skipped

_MADE_FIRST: Final = frozenset({"journal.lock", "resume.json"})
JOURNALS_OWN: Final = _MADE_FIRST | {"alerts.json", "dead_letters.jsonl"}
"""The collector's other files in a journal's folder; the first two identify the folder."""


def input_files(paths: Iterable[Path], skipped: Skipped, *, journals: bool = False) -> list[Path]:
    """Return the files that `paths` stand for, each once, in the order given, a folder's in order of name.

    A folder with journal files stands for these (their names sort by time). Any other folder stands for all of its
    files of a known format, and those of its folders; the others are counted by name. A pattern such as
    `runs/**/*.json` stands for its matches. Names that begin with a dot are left out of both, as a shell leaves them
    out. With `journals` a folder must be a journal's.

    Raises:
        InputError: a path does not exist, a pattern matches nothing, or a folder holds nothing that can be read.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if journals and path.is_dir() and not any(is_journal(file) and file.is_file() for file in path.iterdir()):
            _refuse_fresh(path)
            raise InputError(f"{path}: no journal in this folder: expected *{JOURNAL_SUFFIX} or *{CLOSED_SUFFIX}")
        for file in _files(path, skipped):
            found.setdefault(file if file == STDIN else file.resolve(), file)
    return list(found.values())


def size(path: Path) -> int:
    """Return the bytes of a file, 0 if they are not known: standard input, a pipe."""
    try:
        status = path.stat()
    except OSError:
        return 0
    return status.st_size if path != STDIN and S_ISREG(status.st_mode) else 0


def _files(path: Path, skipped: Skipped) -> list[Path]:
    if path == STDIN:
        return [path]
    if path.is_dir():
        _refuse_fresh(path)
        files = list(_folder(path, skipped))
        if not files:
            if not any(path.iterdir()):
                raise InputError(f"{path}: the folder is empty: {EXPECTED}")
            seen = "; ".join(skipped.notes[:3])
            raise InputError(f"{path}: nothing in this folder can be read{f' ({seen})' if seen else ''}")
        return files
    if path.exists():
        return [] if _unfinished(path, skipped) else [path]
    if has_magic(str(path)):
        matches = _matches(path)
        if not matches:
            raise InputError(f"{path}: no file matches this pattern")
        files = []
        for match in matches:
            files += _folder(match, skipped) if match.is_dir() else _known(match, skipped)
        if not files:
            raise InputError(f"{path}: none of the {len(matches)} files that match can be read")
        return files
    raise InputError(f"{path}: no such file or folder")


def _refuse_fresh(folder: Path) -> None:
    """Raise InputError if a folder has the collector's other files but no records yet."""
    names = {path.name for path in folder.iterdir()}
    if names & _MADE_FIRST and names <= JOURNALS_OWN:
        raise InputError(f"{folder}: a journal that has received nothing yet: there are no records in it to read")


def _matches(pattern: Path) -> list[Path]:
    """Return the matches of a pattern, in order; of a folder and its contents, the folder.

    `Path.glob` enters no linked folders, so a link to a folder above causes no loop.
    """
    root = Path(pattern.anchor or ".")
    parts = pattern.parts[1:] if pattern.anchor else pattern.parts
    hidden = any(part.startswith(".") and part != ".." for part in parts)
    found: list[Path] = []
    for match in sorted(root.glob(str(Path(*parts)))):
        inner = match.relative_to(root)
        if not hidden and any(part.startswith(".") and part != ".." for part in inner.parts):
            continue
        if not (found and found[-1] in match.parents and found[-1].is_dir()):
            found.append(match)
    return found


def _folder(folder: Path, skipped: Skipped) -> Iterator[Path]:
    """Yield the files of a folder and of those in it; a folder reached by several ways is read once."""
    seen: set[tuple[int, int]] = set()
    for name, folders, names in os.walk(folder, followlinks=True):
        here = Path(name)
        status = here.stat()
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        journal = {one for one in names if is_journal(here / one) and (here / one).is_file()}
        if journal:
            # Other files in a journal's folder are the collector's own.
            folders.clear()
            for one in sorted(set(names) - journal):
                if is_journal(here / one):
                    skipped.add("unreadable_file", f"{here / one}: named as a journal's file, and no file: not read")
            yield from (here / one for one in sorted(journal) if not _unfinished(here / one, skipped))
        else:
            for one in sorted(names):
                if not one.startswith("."):
                    yield from _known(here / one, skipped)


def _unfinished(path: Path, skipped: Skipped) -> bool:
    """Tell whether a journal's file is a compressed one beside its plain format, which is read instead; count it."""
    unfinished = path.name.endswith(CLOSED_SUFFIX) and path.with_suffix("").is_file()
    if unfinished:
        skipped.add("unfinished_zst", f"{path}: unfinished, {path.with_suffix('').name} is read instead")
    return unfinished


def _known(path: Path, skipped: Skipped) -> list[Path]:
    """Return the file if it is of a known format; else count it."""
    try:
        if not S_ISREG(path.stat().st_mode):
            return []
        if format_of(path) is None:
            skipped.add("unknown_file", f"{path}: holds no format that we know")
            return []
    except (InputError, OSError) as error:
        text = str(error)
        skipped.add("unreadable_file", text if text.startswith(str(path)) else f"{path}: {text}")
        return []
    skipped.chosen.add(path)
    return [path]
