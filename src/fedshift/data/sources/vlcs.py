"""VLCS: five classes in four older photograph collections."""

from ..dataset import Source
from ._short import drive

SOURCE = Source(
    name="vlcs",
    divided=True,
    summary="10,729 photographs of 5 classes from Caltech101, LabelMe, SUN09 and VOC2007",
    citation=(
        "C. Fang, Y. Xu and D. N. Rockmore (2013), Unbiased Metric Learning: On the Utilization of Multiple Datasets "
        "and Web Images for Softening Bias, ICCV, https://doi.org/10.1109/ICCV.2013.208"
    ),
    licence="not stated for the collection; each of the four sets has its own terms; research use",
    url="https://github.com/facebookresearch/DomainBed",
    domains=("Caltech101", "LabelMe", "SUN09", "VOC2007"),
    classes=("bird", "car", "chair", "dog", "person"),  # alphabetical; 0 to 4 where folders are numbered
    counts={"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376},  # as published
    sizes="different; many of LabelMe and SUN09 are small crops, Caltech101 is about 300x200",
    traps=(
        "The authors published features, not pictures; two picture copies go round: DomainBed's (domain/class) and one "
        "with folders train, crossval, test and full, where classes are numbered 0 to 4.",
        "'full' repeats the other three folders; it is left out where they are present.",
        "The classes are far from balanced: person is the largest in every domain, bird and dog are rare in SUN09.",
        "Domains differ far more in difficulty than methods do: an average alone hides what happens.",
    ),
    files={
        "VLCS.tar.gz": (drive("1skwblH1_okBwxWxmRsp9_qi15hyPpxg8"), drive("1yDuLrJdPSvMbTmpq-7XmwG0HnJengD-T")),
    },
    aliases={
        "Caltech101": ("Caltech",),
        "SUN09": ("SUN",),
        "VOC2007": ("VOC", "PASCAL", "PascalVOC2007"),
        "bird": ("0",),
        "car": ("1",),
        "chair": ("2",),
        "dog": ("3",),
        "person": ("4",),
    },
)
