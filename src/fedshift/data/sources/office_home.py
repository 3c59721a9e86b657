"""Office-Home: 65 things of office and home as art, clip art, product pictures and photographs."""

from ..dataset import Mirror, Source
from ._short import drive, numbers

# In the order of their codes, as `sorted` gives it: capitals first, so TV stands before Table.
CLASSES = """
Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair Clipboards Computer
Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops Flowers Folder Fork Glasses Hammer
Helmet Kettle Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen
Pencil Postit_Notes Printer Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda
Speaker Spoon TV Table Telephone ToothBrush Toys Trash_Can Webcam
"""

SOURCE = Source(
    name="office-home",
    summary="15,588 pictures of 65 classes as art, clip art, product pictures and photographs",
    citation=(
        "H. Venkateswara, J. Eusebio, S. Chakraborty and S. Panchanathan (2017), Deep Hashing Network for Unsupervised "
        "Domain Adaptation, CVPR, https://arxiv.org/abs/1706.07522"
    ),
    licence="none found stated; pictures collected from the web; research use",
    url="http://hemanthdv.org/OfficeHome-Dataset/",
    domains=("Art", "Clipart", "Product", "Real World"),
    classes=tuple(CLASSES.split()),
    # Domains as published: 2,427, 4,365, 4,439 and 4,357; classes counted in a complete copy.
    counts={
        "Art": numbers("""
            74 41 27 40 75 99 40 33 20 76 69 25 44 40 40 23 15 18 21 45 22 46 90 20 46 40 40 79 46 18 72 49 51
            20 42 32 18 49 21 20 19 19 20 26 19 18 24 47 49 15 20 30 42 41 46 40 20 46 40 16 44 43 20 21 16
        """),
        "Clipart": numbers("""
            60 56 64 98 99 99 73 46 78 99 99 40 99 64 42 41 48 40 41 50 40 40 99 99 61 52 99 69 40 99 53 40 99
            71 99 40 76 99 83 40 51 40 99 99 41 87 40 46 40 67 99 75 42 42 43 61 90 60 99 80 99 39 99 53 40
        """),
        "Product": numbers("""
            79 99 62 43 44 62 47 81 81 56 99 65 96 88 75 83 67 41 67 58 71 99 91 90 41 67 57 90 72 99 41 54 99
            56 98 72 96 41 93 68 70 47 60 40 38 99 43 43 59 58 99 40 49 46 99 43 99 47 76 60 58 42 45 93 98
        """),
        "Real World": numbers("""
            86 99 64 83 99 78 80 73 68 99 96 65 64 76 73 62 51 43 81 60 58 85 75 57 36 60 52 60 72 75 83 78 67
            23 71 46 60 58 68 64 30 68 65 59 67 52 53 66 75 41 77 51 66 77 88 63 81 54 53 59 82 85 67 81 49
        """),
    },
    sizes="very different, from under a hundred to several thousand pixels a side",
    traps=(
        "398 groups of identical files, 87 of them with conflicting labels: keep duplicates on one side of a split.",
        "There is no official split; papers split 80/20 or 90/10 by seeds of their own.",
        "Some libraries number the classes otherwise (Drill = 0): labels of saved models may not agree.",
        "'Real World' is written Real World, Real_World, RealWorld or Real.",
        "A copy made for domain generalisation has folders train and val in each domain; they are not the authors'.",
    ),
    files={
        "OfficeHome.zip": (
            drive("1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC"),
            Mirror("https://transferlearningdrive.blob.core.windows.net/teamdrive/dataset/OfficeHome.zip"),
            drive("1USXqK4nCvOAR5Ty4iwKcuCOrRJoRuDyU"),
        ),
    },
    aliases={
        "Art": ("Ar",),
        "Clipart": ("Cl", "clip art"),
        "Product": ("Pr", "products"),
        "Real World": ("Rw", "real"),
        "Flipflops": ("flip flop",),
        "TV": ("television",),
    },
)
