"""What the row groups of a Parquet file claim to hold, read from the description at the end of the file.

pyarrow tells it, too, by `RowGroupMetaData.column`; but that call ends the process (26.0: an exception of C++ that
nothing catches) if the description of a column contradicts itself, as it may in a damaged file. What reads the data
raises errors. So these few numbers are read here. Formats: parquet.thrift of Apache Parquet, and Apache Thrift's
compact protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_llm.formats.records import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MAGIC: Final = b"PAR1"
MOST_EXPANSION: Final = 100
"""The most bytes of values for a byte of a row group, once there are FREE_BYTES: times of tokens reach 4."""
FREE_BYTES: Final = 64 * 2**20
_VALUE_BYTES: Final = 8
_TAIL_BYTES: Final = 8
"""Behind the description: its length, and MAGIC."""

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(1, 14)
_FIXED_BYTES: Final = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8, _UUID: 16}
"""The bytes of a field's value, by type: a boolean is its type."""
_LONG_LIST: Final = 15
_MOST_DEPTH: Final = 64
_MORE: Final = 0x80
"""The bit of a byte of a number that says that more follow; seven bits each, the lowest first."""
_MOST_SHIFT: Final = 63

_ROW_GROUPS: Final = (4, _LIST)
_COLUMNS: Final = (1, _LIST)
_ROWS: Final = (3, _I64)
_DESCRIPTION: Final = (3, _STRUCT)
_VALUES: Final = (5, _I64)
_PACKED_BYTES: Final = (7, _I64)
"""Fields of the structs FileMetaData, RowGroup, ColumnChunk and ColumnMetaData: number and type."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """What a row group claims: `rows`; `values`: the most of a column; `packed_bytes`: of all columns, compressed."""

    rows: int
    values: int
    packed_bytes: int


def row_groups(path: Path, metadata: Any, shown: Path | None = None) -> list[RowGroup]:
    """Return what the row groups of a Parquet file claim to hold; errors name `shown`, else `path`.

    `metadata`: the file's as pyarrow has read it, which says the same of the rows unless the file is damaged.

    Raises:
        InputError: the file cannot be read, or its description is damaged, or a row group claims values of more than
            FREE_BYTES and MOST_EXPANSION times its own bytes.
    """
    try:
        groups = _row_groups(_Thrift(_description(path)))
        if [group.rows for group in groups] == [
            metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)
        ]:
            _refuse_claims(shown or path, groups)
            return groups
        problem = "its description can be read in two ways"
    except (_BrokenError, OSError) as error:
        problem = str(error)
    except IndexError:
        problem = "its description ends early"
    raise InputError(f"{shown or path}: no whole Parquet file: {problem}")


def _refuse_claims(path: Path, groups: Iterable[RowGroup]) -> None:
    """Refuse a file that claims far more values than its bytes can hold: a list of one repeated value takes none."""
    for group in groups:
        most = max(group.values, group.rows)
        if _VALUE_BYTES * most > max(FREE_BYTES, MOST_EXPANSION * group.packed_bytes):
            raise InputError(
                f"{path}: Parquet of {group.packed_bytes} bytes that claims {most} values in a column: if that is"
                " meant, write it in row groups of fewer rows"
            )


def _description(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read()
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != MAGIC or length > size - _TAIL_BYTES:
            raise _BrokenError("no description at its end")
        file.seek(size - _TAIL_BYTES - length)
        return file.read(length)


def _row_groups(thrift: _Thrift) -> list[RowGroup]:
    groups: list[RowGroup] = []
    for field in thrift.fields():
        if field == _ROW_GROUPS:
            groups = [_row_group(thrift) for _ in thrift.elements()]
        else:
            thrift.skip(field[1])
    return groups


def _row_group(thrift: _Thrift) -> RowGroup:
    rows, columns = 0, [(0, 0)]
    for field in thrift.fields():
        if field == _COLUMNS:
            columns += [_column(thrift) for _ in thrift.elements()]
        elif field == _ROWS:
            rows = thrift.number()
        else:
            thrift.skip(field[1])
    return RowGroup(rows, max(values for values, _ in columns), sum(max(0, packed) for _, packed in columns))


def _column(thrift: _Thrift) -> tuple[int, int]:
    """Return the values of a column, and its compressed bytes."""
    values = packed = 0
    for outer in thrift.fields():
        if outer != _DESCRIPTION:
            thrift.skip(outer[1])
            continue
        for field in thrift.fields():
            if field == _VALUES:
                values = thrift.number()
            elif field == _PACKED_BYTES:
                packed = thrift.number()
            else:
                thrift.skip(field[1])
    return values, packed


class _BrokenError(Exception):
    """The description cannot be read; why."""


class _Thrift:
    """A parser of Thrift's compact protocol; raises IndexError if the data ends early, else _BrokenError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of a struct; the caller reads or skips its value before the next."""
        number = 0
        while head := self._byte():
            step = head >> 4
            number = number + step if step else self.number()
            yield number, head & 0xF

    def elements(self) -> Iterator[int]:
        """Yield the type once for each element of a list; the caller reads or skips it before the next."""
        head = self._byte()
        count = head >> 4
        for _ in range(self._varint() if count == _LONG_LIST else count):
            yield head & 0xF

    def number(self) -> int:
        """Return a whole number."""
        packed = self._varint()
        return (packed >> 1) ^ -(packed & 1)

    def skip(self, kind: int, depth: int = 0) -> None:
        """Pass over the value of a field."""
        if depth > _MOST_DEPTH:
            raise _BrokenError(f"it is nested more than {_MOST_DEPTH} deep")
        if kind in (_I16, _I32, _I64):
            self._varint()
        elif kind == _BINARY:
            length = self._varint()
            self._at += length
        elif kind == _STRUCT:
            for _, of in self.fields():
                self.skip(of, depth + 1)
        elif kind in (_LIST, _SET):
            for of in self.elements():
                self._skip_element(of, depth + 1)
        elif kind == _MAP:
            count = self._varint()
            of = self._byte() if count else 0
            for _ in range(count):
                self._skip_element(of >> 4, depth + 1)
                self._skip_element(of & 0xF, depth + 1)
        elif kind in _FIXED_BYTES:
            self._at += _FIXED_BYTES[kind]
        else:
            raise _BrokenError(f"a value has the unknown type {kind}")

    def _skip_element(self, kind: int, depth: int) -> None:
        self.skip(_BYTE if kind in (_TRUE, _FALSE) else kind, depth)
        self._data[self._at - 1]  # a count that lies ends with the data

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) >= _MORE:
            value |= (byte - _MORE) << shift
            shift += 7
            if shift > _MOST_SHIFT:
                raise _BrokenError("a number has more than 64 bits")
        return value | byte << shift

    def _byte(self) -> int:
        byte = self._data[self._at]
        self._at += 1
        return byte
