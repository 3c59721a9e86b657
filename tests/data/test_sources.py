"""The sources' own words and numbers must fit together, and the published totals."""

import re
from urllib.parse import urlparse

import pytest

from fedshift.data.find import _plain, _Words
from fedshift.data.sources import SOURCES, domainnet

ALL = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)

PUBLISHED = {  # pictures per domain, in the source's order; each from the set's publication or its authors' page
    "pacs": (2048, 2344, 1670, 3929),
    "office-home": (2427, 4365, 4439, 4357),
    "vlcs": (1415, 2656, 3282, 3376),
    "office-caltech10": (958, 1123, 157, 295),
    "office-31": (2817, 498, 795),
    "domainnet-345": (48129, 51605, 72266, 172500, 172947, 69128),
    "domainnet-10-feddca": (2414, 3153, 3562, 5000, 4230, 2751),
    "digits5": (70000, 99289, 9298, 488953, 70000),
    "digits4": (20000, 9298, 6000, 10160),
}


def total(count):
    return count if isinstance(count, int) else sum(count)


def test_every_set_of_the_field_is_in_the_table():
    assert list(SOURCES) == [
        "pacs", "office-home", "vlcs", "office-caltech10", "office-31", "domainnet-345", "domainnet-126",
        "domainnet-10-fedbn", "domainnet-10-feddca", "domainnet-20-feddca", "digits5", "digits4",
    ]  # fmt: skip
    assert all(name == source.name for name, source in SOURCES.items())
    assert {s.name for s in SOURCES.values() if s.divided} >= {s.name for s in SOURCES.values() if s.listed} != set()


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_add_up_to_the_published_ones(name):
    source = SOURCES[name]
    assert tuple(total(source.counts[domain]) for domain in source.domains) == PUBLISHED[name]


@ALL
def test_a_count_is_of_a_domain_and_has_a_number_for_each_class(source):
    assert source.counts.keys() <= {*source.domains}
    assert all(isinstance(c, int) or len(c) == len(source.classes) for c in source.counts.values())
    assert all(n > 0 for c in source.counts.values() for n in (c if isinstance(c, tuple) else (c,)))


@ALL
def test_no_word_means_two_things(source):
    """Otherwise a folder's name could not say which class or domain it is."""
    for names in (source.domains, source.classes):
        words = [{_plain(w) for w in (name, *source.aliases.get(name, ()))} for name in names]
        assert sum(map(len, words)) == len(set().union(*words))
        assert "" not in set().union(*words)
    assert source.aliases.keys() <= {*source.domains, *source.classes}
    words = _Words(source)
    assert not words.domains.keys() & words.classes.keys()


@ALL
def test_the_words_of_a_source_are_complete_sentences(source):
    assert source.summary and source.licence and source.sizes and "https://" in source.citation
    assert source.traps and all(re.fullmatch(r"['A-Z0-9a-z].*[.:]", trap) for trap in source.traps)
    assert urlparse(source.url).scheme in ("http", "https")


@ALL
def test_a_mirror_is_a_url_and_perhaps_a_sha256(source):
    for name, mirrors in source.files.items():
        assert name and "/" not in name and mirrors
        for mirror in mirrors:
            url = urlparse(mirror.url)
            assert url.scheme in ("http", "https") and url.netloc and (url.path.strip("/") or url.query)
            assert re.fullmatch(r"([0-9a-f]{64})?", mirror.sha256)


def test_domainnet_has_its_official_order():
    """The lists number the classes alphabetically, whatever the case and the separators."""
    classes = domainnet.FULL.classes
    assert len(classes) == 345 == len({*classes})
    assert list(classes) == sorted(classes, key=_plain)
    assert classes[327] == "t-shirt"  # as Dassl's notes number it
    # From the lists' file names, which hold the number counted from 1.
    for number, name in ((1, "aircraft_carrier"), (68, "cell_phone"), (309, "The_Eiffel_Tower"), (344, "zebra")):
        assert classes[number - 1] == name


@pytest.mark.parametrize("source", domainnet.SOURCES[1:], ids=lambda s: s.name)
def test_a_subset_of_domainnet_keeps_the_order(source):
    classes = domainnet.FULL.classes
    assert len(source.classes) == int(source.name.split("-")[1])
    assert [classes.index(name) for name in source.classes] == sorted(classes.index(name) for name in source.classes)


def test_the_two_sets_of_ten_share_two_classes():
    assert {*domainnet.FEDBN.classes} & {*domainnet.FEDDCA.classes} == {"feather", "tiger"}
    assert {*domainnet.FEDDCA.classes} < {*domainnet.FEDDCA_LARGE.classes}


def test_class_orders_are_those_of_the_field():
    assert SOURCES["pacs"].classes == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    assert SOURCES["vlcs"].classes == ("bird", "car", "chair", "dog", "person")
    for name in ("office-home", "office-31", "office-caltech10", "pacs", "vlcs"):
        assert list(SOURCES[name].classes) == sorted(SOURCES[name].classes)
    assert len(SOURCES["office-home"].classes) == 65 and len(SOURCES["office-31"].classes) == 31


def test_office_31_and_office_caltech10_agree_where_they_are_the_same_pictures():
    """Two independent counts: one in the lists of Office-31, one in a copy of Office-Caltech10."""
    large, small = SOURCES["office-31"], SOURCES["office-caltech10"]
    names = {_plain(word): name for name in small.classes for word in (name, *small.aliases.get(name, ()))}
    for domain in ("amazon", "dslr", "webcam"):
        counts = dict(zip(large.classes, large.counts[domain], strict=True))
        there = {names[_plain(name)]: count for name, count in counts.items() if _plain(name) in names}
        assert there == dict(zip(small.classes, small.counts[domain], strict=True))
