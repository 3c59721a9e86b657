"""The data sets that need a download, one file each. To add one: write its file, and name its source here."""

from ..dataset import Source
from . import digits, domainnet, office_31, office_caltech10, office_home, pacs, vlcs

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        pacs.SOURCE,
        office_home.SOURCE,
        vlcs.SOURCE,
        office_caltech10.SOURCE,
        office_31.SOURCE,
        *domainnet.SOURCES,
        digits.FIVE,
        digits.FOUR,
    )
}
