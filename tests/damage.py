"""Damages of a run's files, as crashes, full disks, editors and other programs leave them."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

Damage = Callable[[Path, bytes], None]


def _bytes(change: Callable[[bytes], bytes]) -> Damage:
    """A damage that writes other bytes."""

    def damage(path: Path, content: bytes) -> None:
        path.write_bytes(change(content))

    return damage


def _values(change: Callable[[Any], Any]) -> Damage:
    """A damage of every number and text of a file of JSON, or of the JSON in its lines; of other text, of its words."""

    def damage(path: Path, content: bytes) -> None:
        try:
            lines = content.decode().splitlines() if path.suffix == ".jsonl" else [content.decode()]
            text = "\n".join(json.dumps(map_values(json.loads(line), change)) for line in lines) + "\n"
        except ValueError:
            text = str(change(content.decode(errors="replace").strip()))
        path.write_text(text)

    return damage


def map_values(content: Any, change: Callable[[Any], Any]) -> Any:
    """JSON with each of its numbers and texts changed, but `schema_version` and `kind`, which say what it is."""
    if isinstance(content, dict):
        keep = ("schema_version", "kind")
        return {key: value if key in keep else map_values(value, change) for key, value in content.items()}
    if isinstance(content, list):
        return [map_values(value, change) for value in content]
    return change(content)


def _numbers(number: float) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        return number if isinstance(value, int | float) and not isinstance(value, bool) else value

    return change


def _folder(path: Path, _: bytes) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path, _: bytes) -> None:
    path.unlink()
    os.mkfifo(path)


def _loop(path: Path, _: bytes) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _other_keys(content: bytes) -> bytes:
    return content.replace(b'": ', b'_": ')


def _twice(content: bytes) -> bytes:
    return b"".join(line * 2 for line in content.splitlines(keepends=True))


DAMAGES: dict[str, Damage] = {
    "folder": _folder,
    "missing": lambda path, _: path.unlink(),
    "empty": _bytes(lambda _: b""),
    "half": _bytes(lambda content: content[: len(content) // 2]),
    "cut in a number": _bytes(lambda content: content[:-9] + b"\n"),
    "zeros": _bytes(lambda content: bytes(len(content))),
    "zeros at the end": _bytes(lambda content: content[: len(content) // 2] + bytes(4096)),
    "binary": _bytes(lambda content: random.Random(0).randbytes(len(content))),
    "latin-1": _bytes(lambda content: content.replace(b"e", b"\xe9")),
    "null": _bytes(lambda _: b"null\n"),
    "list": _bytes(lambda _: b"[1, [], {}]\n"),
    "text": _bytes(lambda _: b'"text"\n'),
    "nested": _bytes(lambda _: b"[" * 100_000 + b"\n"),
    "nulls": _values(lambda _: None),
    "texts": _values(str),
    "lists": _values(lambda value: [value]),
    "NaN": _values(_numbers(float("nan"))),
    "infinite": _values(_numbers(float("inf"))),
    "huge": _values(_numbers(1e308)),
    "huge whole": _values(_numbers(10**40)),
    "negative": _values(_numbers(-1)),
    "zero": _values(_numbers(0)),
    "other keys": _bytes(_other_keys),
    "twice": _bytes(_twice),
    "fifo": _fifo,
    "loop": _loop,
}
