"""DomainNet, and the four subsets of it that papers call DomainNet."""

from collections.abc import Mapping

from ..dataset import Mirror, Source

SITE = "http://csr.bu.edu/ftp/visda/2019/multi-source"
DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
ALIASES = {
    "clipart": ("clip art", "clp"),
    "infograph": ("infographs", "inf"),
    "painting": ("paintings", "pnt"),
    "quickdraw": ("quick draw", "qdr"),
    "real": ("rel", "photo"),
    "sketch": ("sketches", "skt"),
}

# In the order of the official labels 0 to 344: alphabetical, without regard to case, underscores and hyphens.
CLASSES = """
aircraft_carrier airplane alarm_clock ambulance angel animal_migration ant anvil apple arm asparagus axe backpack
banana bandage barn baseball baseball_bat basket basketball bat bathtub beach bear beard bed bee belt bench bicycle
binoculars bird birthday_cake blackberry blueberry book boomerang bottlecap bowtie bracelet brain bread bridge
broccoli broom bucket bulldozer bus bush butterfly cactus cake calculator calendar camel camera camouflage campfire
candle cannon canoe car carrot castle cat ceiling_fan cello cell_phone chair chandelier church circle clarinet clock
cloud coffee_cup compass computer cookie cooler couch cow crab crayon crocodile crown cruise_ship cup diamond
dishwasher diving_board dog dolphin donut door dragon dresser drill drums duck dumbbell ear elbow elephant envelope
eraser eye eyeglasses face fan feather fence finger fire_hydrant fireplace firetruck fish flamingo flashlight
flip_flops floor_lamp flower flying_saucer foot fork frog frying_pan garden garden_hose giraffe goatee golf_club
grapes grass guitar hamburger hammer hand harp hat headphones hedgehog helicopter helmet hexagon hockey_puck
hockey_stick horse hospital hot_air_balloon hot_dog hot_tub hourglass house house_plant hurricane ice_cream jacket
jail kangaroo key keyboard knee knife ladder lantern laptop leaf leg light_bulb lighter lighthouse lightning line lion
lipstick lobster lollipop mailbox map marker matches megaphone mermaid microphone microwave monkey moon mosquito
motorbike mountain mouse moustache mouth mug mushroom nail necklace nose ocean octagon octopus onion oven owl
paintbrush paint_can palm_tree panda pants paper_clip parachute parrot passport peanut pear peas pencil penguin piano
pickup_truck picture_frame pig pillow pineapple pizza pliers police_car pond pool popsicle postcard potato
power_outlet purse rabbit raccoon radio rain rainbow rake remote_control rhinoceros rifle river roller_coaster
rollerskates sailboat sandwich saw saxophone school_bus scissors scorpion screwdriver sea_turtle see_saw shark sheep
shoe shorts shovel sink skateboard skull skyscraper sleeping_bag smiley_face snail snake snorkel snowflake snowman
soccer_ball sock speedboat spider spoon spreadsheet square squiggle squirrel stairs star steak stereo stethoscope
stitches stop_sign stove strawberry streetlight string_bean submarine suitcase sun swan sweater swing_set sword
syringe table teapot teddy-bear telephone television tennis_racquet tent The_Eiffel_Tower The_Great_Wall_of_China
The_Mona_Lisa tiger toaster toe toilet tooth toothbrush toothpaste tornado tractor traffic_light train tree triangle
trombone truck trumpet t-shirt umbrella underwear van vase violin washing_machine watermelon waterslide whale wheel
windmill wine_bottle wine_glass wristwatch yoga zebra zigzag
"""

# Saito et al. (2019), Semi-supervised Domain Adaptation via Minimax Entropy; labels 0 to 125 in this order.
CLASSES_126 = """
aircraft_carrier alarm_clock ant anvil asparagus axe banana basket bathtub bear bee bird blackberry blueberry
bottlecap broccoli bus butterfly cactus cake calculator camel camera candle cannon canoe carrot castle cat ceiling_fan
cello cell_phone chair chandelier coffee_cup compass computer cow crab crocodile cruise_ship dog dolphin dragon drums
duck dumbbell elephant eyeglasses feather fence fish flamingo flower foot fork frog giraffe goatee grapes guitar
hammer helicopter helmet horse kangaroo lantern laptop leaf lion lipstick lobster microphone monkey mosquito mouse mug
mushroom onion panda peanut pear peas pencil penguin pig pillow pineapple potato power_outlet purse rabbit raccoon
rhinoceros rifle saxophone screwdriver sea_turtle see_saw sheep shoe skateboard snake speedboat spider squirrel
strawberry streetlight string_bean submarine swan table teapot teddy-bear television The_Eiffel_Tower
The_Great_Wall_of_China tiger toe train truck umbrella vase watermelon whale zebra
"""

FEDBN_10 = "bird feather headphones ice_cream teapot tiger whale windmill wine_glass zebra"
FEDDCA_10 = "circle feather flower grass strawberry suitcase tiger tornado triangle umbrella"
FEDDCA_20 = """
barn basketball bee circle cloud feather flower grass sailboat skyscraper soccer_ball strawberry suitcase The_Mona_Lisa
tiger tornado triangle umbrella whale yoga
"""

QUICKDRAW = 500  # pictures of every class, in that domain alone

TRAPS = (
    "'DomainNet' means 345, 126, 20 or 10 classes, and there are two sets of 10: say which.",
    "The paper says 569,010 pictures; its first release has 596,010 and the cleaned one 586,575.",
    "The archives of infograph, real and sketch still hold what the cleaned lists leave out: where both lists of a "
    "domain lie beside its pictures, only what they name is taken, with their train and test parts.",
    "clipart and painting exist twice on the server: those under groundtruth have class folders, those of the VisDA "
    "2019 challenge have not and cannot be used.",
    "painting's training list has no picture of class 327, t-shirt.",
    "The pictures are about 17 GB; a subset needs all archives of its domains.",
)

LICENCE = (
    "fair use notice: copyrighted material made available for academic research, distributed without profit for "
    "non-commercial research and educational purposes"
)


def _files(domains: tuple[str, ...]) -> dict[str, tuple[Mirror, ...]]:
    """A domain's pictures, and its two lists of the cleaned version."""
    files: dict[str, tuple[Mirror, ...]] = {}
    for domain in domains:
        folder = f"{SITE}/groundtruth" if domain in ("clipart", "painting") else SITE
        files[f"{domain}.zip"] = (Mirror(f"{folder}/{domain}.zip"),)
        for part in ("train", "test"):
            files[f"{domain}_{part}.txt"] = (Mirror(f"{SITE}/domainnet/txt/{domain}_{part}.txt"),)
    return files


def _variant(
    name: str,
    summary: str,
    classes: str,
    counts: Mapping[str, tuple[int, ...] | int],
    cited: str = "",
    traps: tuple[str, ...] = (),
    domains: tuple[str, ...] = DOMAINS,
) -> Source:
    names = tuple(classes.split())
    return Source(
        name=name,
        divided=True,
        listed=True,
        summary=summary,
        citation=(
            "X. Peng, Q. Bai, X. Xia, Z. Huang, K. Saenko and B. Wang (2019), Moment Matching for Multi-Source Domain "
            f"Adaptation, ICCV, https://arxiv.org/abs/1812.01754{cited}"
        ),
        licence=LICENCE,
        url="http://ai.bu.edu/M3SDA/",
        domains=domains,
        classes=names,
        counts=counts,
        sizes="different; quickdraw's drawings are PNG, all others JPEG",
        traps=(*traps, *TRAPS),
        files=_files(domains),
        aliases={domain: ALIASES[domain] for domain in domains},
    )


FULL = _variant(
    "domainnet-345",
    "586,575 pictures of 345 classes in 6 domains: DomainNet whole, the cleaned version",
    CLASSES,
    {  # as on the authors' page; the lists' train and test parts add up to the same
        "clipart": 48129,
        "infograph": 51605,
        "painting": 72266,
        "quickdraw": (QUICKDRAW,) * 345,
        "real": 172947,
        "sketch": 69128,
    },
)

SUBSET_126 = _variant(
    "domainnet-126",
    "about 145,000 pictures of 126 classes in 4 domains: the subset of semi-supervised and source-free adaptation",
    CLASSES_126,
    {},  # 18,703, 31,502, 70,358 and 24,582 are reported, but for lists of their own: see the trap
    cited="; the subset: K. Saito, D. Kim, S. Sclaroff, T. Darrell and K. Saenko (2019), Semi-supervised Domain "
    "Adaptation via Minimax Entropy, ICCV, https://arxiv.org/abs/1904.06487",
    traps=(
        "Papers report clipart 18,703, painting 31,502, real 70,358 and sketch 24,582: the lengths of the subset's own "
        "lists. Here it is the 126 classes of the cleaned DomainNet with its official lists, so counts differ.",
    ),
    domains=("clipart", "painting", "real", "sketch"),
)

FEDBN = _variant(
    "domainnet-10-fedbn",
    "the 10 classes bird to zebra in 6 domains, as FedBN, FedFA, FDSE, RFedDis and LSI use DomainNet",
    FEDBN_10,
    {"quickdraw": (QUICKDRAW,) * 10},
    cited="; the subset: X. Li, M. Jiang, X. Zhang, M. Kamp and Q. Dou (2021), FedBN: Federated Learning on Non-IID "
    "Features via Local Batch Normalization, ICLR, https://arxiv.org/abs/2102.07623",
    traps=(
        "FedBN's own lists are Python pickles, which fedshift does not open: the official lists, cut to ten classes, "
        "stand in for them.",
        "FedBN and RFedDis cut every domain to fractions of the smallest training set (105 pictures when that has "
        "2,103); FDSE joins train and test and splits anew.",
    ),
)

FEDDCA = _variant(
    "domainnet-10-feddca",
    "the 10 classes circle to umbrella in 6 domains, as FedDCA uses DomainNet",
    FEDDCA_10,
    {  # as released, train and test lists joined
        "clipart": 2414,
        "infograph": 3153,
        "painting": 3562,
        "quickdraw": (QUICKDRAW,) * 10,
        "real": 4230,
        "sketch": 2751,
    },
    cited="; the subset: Hameed, Rizwan and Akhtar, FedDCA, https://github.com/Fayzan-Ali-Akhtar/FedDCA",
    traps=(
        "Only feather and tiger are also among FedBN's ten classes.",
        "FedDCA's release numbers the classes as a walk over each domain's folders meets them, so that labels may not "
        "agree between domains; here they follow the official order.",
        "FedDCA is tested on whole domains, training pictures included.",
    ),
)

FEDDCA_LARGE = _variant(
    "domainnet-20-feddca",
    "20 classes in 6 domains: FedDCA's ten and ten more",
    FEDDCA_20,
    {"quickdraw": (QUICKDRAW,) * 20},
    cited="; the subset: Hameed, Rizwan and Akhtar, FedDCA, https://github.com/Fayzan-Ali-Akhtar/FedDCA",
    traps=FEDDCA.traps[1:3],
)

SOURCES = (FULL, SUBSET_126, FEDBN, FEDDCA, FEDDCA_LARGE)
