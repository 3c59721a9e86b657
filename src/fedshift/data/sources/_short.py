"""Short forms for writing a source down."""

from ..dataset import Mirror


def numbers(text: str) -> tuple[int, ...]:
    """Counts per class, as a line of a table."""
    return tuple(map(int, text.split()))


def drive(file: str) -> Mirror:
    """The file of that id on Google Drive, past the page that warns of large files."""
    return Mirror(f"https://drive.google.com/uc?export=download&confirm=t&id={file}")
