"""Which pictures a data set consists of, where they lie, and what they show; written once by `fedshift data import`."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ..core.errors import DataError

Kind = Literal["folder", "zip", "tar", "npz"]
FORMAT = 1


@dataclass(frozen=True)
class Row:
    """One picture: where it lies in its container, what it shows, and the SHA-256 of its bytes.

    In an `npz` container `path` is the key of the array and the index, as in `images/17`.
    """

    path: str
    domain: str
    label: int
    split: str = ""  # the authors' own: "train", "val" or "test"; empty where they give none
    sha256: str = ""


@dataclass(frozen=True)
class Manifest:
    """A data set as found in one container; nothing is copied, `root` must stay where it is."""

    name: str
    root: Path  # a folder, or an archive
    kind: Kind
    classes: tuple[str, ...]
    rows: tuple[Row, ...]
    left_out: tuple[tuple[str, str], ...] = ()  # what the container has and cannot give, and why

    @property
    def domains(self) -> tuple[str, ...]:
        """In the order in which they were found."""
        return tuple(dict.fromkeys(row.domain for row in self.rows))

    def of(self, domain: str) -> Iterator[Row]:
        """The pictures of one domain."""
        return (row for row in self.rows if row.domain == domain)

    def to_json(self) -> str:
        """One line of what concerns all, then one line per picture."""
        head = {
            "format": FORMAT, "name": self.name, "root": str(self.root), "kind": self.kind, "classes": self.classes,
            "left_out": self.left_out,
        }  # fmt: skip
        return "\n".join(json.dumps(part) for part in (head, *map(asdict, self.rows))) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> "Manifest":
        """Read back; `where` names the file in errors."""
        try:
            head, *rows = map(json.loads, text.splitlines())
            if head["format"] != FORMAT:
                raise ValueError(f"format {head['format']}, expected {FORMAT}")
            return cls(
                head["name"], Path(head["root"]), head["kind"], tuple(head["classes"]), tuple(Row(**r) for r in rows),
                tuple((path, reason) for path, reason in head.get("left_out", ())),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{where}: not a manifest of this version ({error}); import the data set again.") from None
