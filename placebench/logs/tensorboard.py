"""TensorBoard event files: TFRecords, each an `Event` message in protobuf's wire format.

Read here and not by the package tensorboard, which brings gRPC, a web server and protobuf for ten fields of a format
that has not changed since 2015. Both checksums of every record are checked.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from placebench.logs.formats import LogFormat
from placebench.logs.table import STEP_LIMIT, DamagedLogError, StepTable

HEADER_BYTES = 12
FOOTER_BYTES = 4
MAX_RECORD_BYTES = 1 << 28

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
SIZES = {FIXED64: 8, FIXED32: 4}
EVENT_STEP, EVENT_SUMMARY = 2, 5
SUMMARY_VALUE = 1
VALUE_TAG, VALUE_SIMPLE, VALUE_TENSOR = 1, 2, 8
TENSOR_DTYPE, TENSOR_CONTENT, TENSOR_FLOAT, TENSOR_DOUBLE = 1, 4, 5, 6
FLOATS = {1: "<f", 2: "<d"}


def _crc_table() -> tuple[int, ...]:
    """The table of CRC-32C (Castagnoli), reflected."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


CRC_TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    """The checksum that TFRecords carry: CRC-32C, rotated and offset."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def begins_record(data: bytes) -> bool:
    """Whether data begin with the header of a TFRecord, by its checksum."""
    return len(data) >= HEADER_BYTES and masked_crc(data[:8]) == struct.unpack_from("<I", data, 8)[0]


def read_events(blocks: Iterator[bytes], table: StepTable) -> None:
    """Put the scalars of an event file into a table; a last record that is cut off is dropped.

    Raises:
        DamagedLogError: a record's checksum is wrong, or it is no event.
    """
    for number, record in enumerate(_records(blocks, table), 1):
        try:
            _add_event(record, table)
        except (ValueError, LookupError, struct.error):
            raise DamagedLogError(f"record {number:,} is not an event") from None


def _records(blocks: Iterator[bytes], table: StepTable) -> Iterator[bytes]:
    waiting = bytearray()
    number = 1
    for block in blocks:
        waiting += block
        start = 0
        while len(waiting) - start >= HEADER_BYTES:
            header = bytes(waiting[start : start + HEADER_BYTES])
            size = struct.unpack_from("<Q", header)[0]
            if not begins_record(header) or size > MAX_RECORD_BYTES:
                raise DamagedLogError(f"record {number:,} is damaged")
            end = start + HEADER_BYTES + size
            if len(waiting) < end + FOOTER_BYTES:
                break
            record = bytes(waiting[start + HEADER_BYTES : end])
            if masked_crc(record) != struct.unpack_from("<I", waiting, end)[0]:
                raise DamagedLogError(f"record {number:,} is damaged")
            yield record
            start = end + FOOTER_BYTES
            number += 1
        del waiting[:start]
    if waiting:
        table.damage(number)


@dataclass(frozen=True)
class _Field:
    """One field of a message; `number` of varints, `data` of everything else."""

    tag: int
    wire: int
    number: int
    data: bytes


def _fields(message: bytes) -> Iterator[_Field]:
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        wire, number, size = key & 7, 0, 0
        if wire == VARINT:
            number, position = _varint(message, position)
        elif wire == BYTES:
            size, position = _varint(message, position)
        else:
            size = SIZES[wire]
        if position + size > len(message):
            raise ValueError("a field is cut off")
        yield _Field(key >> 3, wire, number, message[position : position + size])
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = message[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a number is too long")


def _add_event(record: bytes, table: StepTable) -> None:
    step = 0
    metrics: dict[str, float] = {}
    for field in _fields(record):
        if field.tag == EVENT_STEP and field.wire == VARINT:
            step = field.number
        elif field.tag == EVENT_SUMMARY and field.wire == BYTES:
            for value in _fields(field.data):
                if value.tag == SUMMARY_VALUE and value.wire == BYTES:
                    metrics.update(_scalar(value.data))
    if metrics and step < STEP_LIMIT:
        table.add(step, metrics)


def _scalar(message: bytes) -> dict[str, float]:
    """The tag and the number of a summary's value; empty where it is no scalar."""
    tag, number = "", None
    for field in _fields(message):
        if field.tag == VALUE_TAG and field.wire == BYTES:
            tag = field.data.decode("utf-8", "replace")
        elif field.tag == VALUE_SIMPLE and field.wire == FIXED32:
            number = struct.unpack("<f", field.data)[0]
        elif field.tag == VALUE_TENSOR and field.wire == BYTES:
            number = _tensor(field.data)
    return {} if number is None or not tag else {tag: number}


def _tensor(message: bytes) -> float | None:
    """The number of a tensor with one floating-point element."""
    dtype, data = 0, b""
    for field in _fields(message):
        if field.tag == TENSOR_DTYPE:
            dtype = field.number
        elif field.tag in (TENSOR_CONTENT, TENSOR_FLOAT, TENSOR_DOUBLE):
            data += field.data
    form = FLOATS.get(dtype)
    return float(struct.unpack(form, data)[0]) if form and len(data) == struct.calcsize(form) else None


TENSORBOARD = LogFormat("tensorboard", "TensorBoard event file", begins_record, read_events, None, binary=True)
