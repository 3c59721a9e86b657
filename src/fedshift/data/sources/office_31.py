"""Office-31: 31 things of an office, from a shop's pages, a camera and a webcam."""

from ..dataset import Mirror, Source
from ._short import numbers

# Alphabetical, as the folders are named.
CLASSES = """
back_pack bike bike_helmet bookcase bottle calculator desk_chair desk_lamp desktop_computer file_cabinet
headphones keyboard laptop_computer letter_tray mobile_phone monitor mouse mug paper_notebook pen phone
printer projector punchers ring_binder ruler scissors speaker stapler tape_dispenser trash_can
"""

SOURCE = Source(
    name="office-31",
    summary="4,110 pictures of 31 classes from amazon.com, a digital camera (dslr) and a webcam",
    citation=(
        "K. Saenko, B. Kulis, M. Fritz and T. Darrell (2010), Adapting Visual Category Models to New Domains, ECCV, "
        "https://doi.org/10.1007/978-3-642-15561-1_16"
    ),
    licence="not stated; research use",
    url="https://faculty.cc.gatech.edu/~judy/domainadapt/",
    domains=("amazon", "dslr", "webcam"),
    classes=tuple(CLASSES.split()),
    # Domains as published: 2,817, 498 and 795; classes as in the lists of Saito et al. (2019), which name all pictures.
    counts={
        "amazon": numbers("""
            92 82 72 82 36 94 91 97 97 81 99 100 100 98 100 99 100 94 96 95 93 100 98 98 90 75 100 99 99 96 64
        """),
        "dslr": numbers("""
            12 21 24 12 16 12 13 14 15 15 13 10 24 16 31 22 12 8 10 10 13 15 23 18 10 7 18 26 21 22 15
        """),
        "webcam": numbers("""
            29 21 28 12 16 31 40 18 21 19 27 27 30 19 30 43 30 27 28 32 16 20 30 27 40 11 25 30 24 23 21
        """),
    },
    sizes="amazon 300x300; dslr 1000x1000; webcam varies",
    traps=(
        "The paper, and many after it, say 4,652 pictures; what is distributed, and what all code reads, are 4,110.",
        "71 pictures are extra copies of others: keep duplicates on one side of a split.",
        "Folders of features (interest points, DeCAF) lie beside the pictures; they are not read.",
        "dslr has as few as 7 pictures of a class: one more right answer is several points.",
    ),
    files={
        "amazon.tgz": (Mirror("https://cloud.tsinghua.edu.cn/f/ec12dfcddade43ab8101/?dl=1"),),
        "dslr.tgz": (Mirror("https://cloud.tsinghua.edu.cn/f/a41d818ae2f34da7bb32/?dl=1"),),
        "webcam.tgz": (Mirror("https://cloud.tsinghua.edu.cn/f/8a41009a166e4131adcd/?dl=1"),),
    },
    aliases={"laptop_computer": ("laptop",)},
)
