"""Office-Caltech10: the ten classes that Office-31 and Caltech-256 share."""

from ..dataset import Source
from ._short import drive

# Alphabetical under both namings, backpack and back_pack.
CLASSES = "backpack bike calculator headphones keyboard laptop monitor mouse mug projector"

SOURCE = Source(
    name="office-caltech10",
    summary="2,533 pictures of 10 classes from Office-31 and Caltech-256",
    citation=(
        "B. Gong, Y. Shi, F. Sha and K. Grauman (2012), Geodesic Flow Kernel for Unsupervised Domain Adaptation, CVPR, "
        "https://doi.org/10.1109/CVPR.2012.6247911"
    ),
    licence="not stated for Office; Caltech-256 is CC BY 4.0 at CaltechDATA; research use",
    url="https://doi.org/10.1109/CVPR.2012.6247911",
    domains=("amazon", "caltech", "dslr", "webcam"),
    classes=tuple(CLASSES.split()),
    counts={  # domains as published; classes counted in a complete copy
        "amazon": (92, 82, 94, 99, 100, 100, 99, 100, 94, 98),
        "caltech": (151, 110, 100, 138, 85, 128, 133, 94, 87, 97),
        "dslr": (12, 21, 12, 13, 10, 24, 22, 12, 8, 23),
        "webcam": (29, 21, 31, 27, 27, 30, 43, 30, 27, 30),
    },
    sizes="amazon 300x300; dslr 1000x1000; caltech and webcam vary",
    traps=(
        "dslr has 157 pictures and webcam 295; FDSE's paper prints them the other way round.",
        "There is no official split. FedBN's train and test lists are Python pickles, which fedshift does not open; "
        "split by seed, and say so.",
        "FedBN cuts every domain to fractions of dslr's training set: 62 pictures to train on if that has 125.",
        "With 15 test pictures in dslr one right answer is 7 points: report intervals over many seeds.",
    ),
    files={
        "office_caltech_10_dataset.zip": (drive("1gxhV5xRXQgC9AL4XexduH7hdxDng7bJ3"),),
    },
    aliases={
        "caltech": ("caltech10", "caltech256"),
        "backpack": ("back_pack",),
        "bike": ("touring bike",),
        "headphones": ("headphone",),
        "keyboard": ("computer keyboard",),
        "laptop": ("laptop_computer",),
        "monitor": ("computer monitor",),
        "mouse": ("computer mouse",),
        "mug": ("coffee mug",),
        "projector": ("video projector",),
    },
)
