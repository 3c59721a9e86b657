"""PACS: photographs, art paintings, cartoons and sketches of seven things."""

from ..dataset import Mirror, Source
from ._short import drive

SOURCE = Source(
    name="pacs",
    divided=True,
    summary="9,991 pictures of 7 classes as art paintings, cartoons, photographs and sketches",
    citation=(
        "D. Li, Y. Yang, Y.-Z. Song and T. M. Hospedales (2017), Deeper, Broader and Artier Domain Generalization, "
        "ICCV, https://arxiv.org/abs/1710.03077"
    ),
    licence="not stated; research use",
    url="https://dali-dl.github.io/project_iccv2017.html",
    domains=("art_painting", "cartoon", "photo", "sketch"),
    classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),  # alphabetical, as everywhere
    counts={  # domains as published; classes counted in a complete copy
        "art_painting": (379, 255, 285, 184, 201, 295, 449),
        "cartoon": (389, 457, 346, 135, 324, 288, 405),
        "photo": (189, 202, 182, 186, 199, 280, 432),
        "sketch": (772, 740, 753, 608, 816, 80, 160),
    },
    sizes="227x227 colour; sketches are grey drawings stored as colour",
    traps=(
        "The official lists number the classes from 1 to 7; here labels come from the folders and run from 0 to 6.",
        "The official 'test' list of a domain is the whole domain, training pictures included: the split that holds is "
        "train (8,977) against crossval (1,014), kept here as train and val.",
        "The lists are a second download; a copy without them has no official split.",
        "Some loaders leave out sketch/dog/n02103406_4068-1.png as faulty and so count 9,990; it is counted here.",
        "Some papers order the domains P, A, C, S and some A, C, P, S: compare columns by name.",
    ),
    files={
        "PACS.zip": (
            drive("1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd"),
            Mirror("https://wjdcloud.blob.core.windows.net/dataset/PACS.zip"),
            drive("1WWi9tuUNFmUiw7Eirq_JT_hxYZv3J-Vv"),
        ),
    },
    aliases={
        "art_painting": ("art", "artpaintings", "painting"),
        "cartoon": ("cartoons",),
        "photo": ("photos", "photograph", "photographs"),
        "sketch": ("sketches",),
    },
)
