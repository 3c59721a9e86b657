"""Sets of digits: Digits-5, and four sets of digits of which one is printed."""

from ..dataset import Source

CLASSES = tuple("0123456789")
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ALIASES = {
    **{digit: (word,) for digit, word in zip(CLASSES, WORDS, strict=True)},
    "0": ("zero", "10"),  # SVHN's files call the digit 0 class 10
    "mnist": ("MT",),
    "mnistm": ("mnist_m", "MM"),
    "usps": ("UP",),
}
MNIST = "Y. LeCun, L. Bottou, Y. Bengio and P. Haffner (1998), Gradient-Based Learning Applied to Document "
MNIST += "Recognition, Proc. IEEE, https://doi.org/10.1109/5.726791"
USPS = "J. J. Hull (1994), A Database for Handwritten Text Recognition Research, IEEE TPAMI, "
USPS += "https://doi.org/10.1109/34.291440"
MNISTM = "Y. Ganin and V. Lempitsky (2015), Unsupervised Domain Adaptation by Backpropagation, ICML, "
MNISTM += "https://arxiv.org/abs/1409.7495"
USPS_TRAP = "USPS is distributed as 7,291 to train and 2,007 to test; the test part is much harder. It is 16x16."

FIVE = Source(
    name="digits5",
    divided=True,
    summary="Digits-5: MNIST, SVHN, USPS, SynthDigits and MNIST-M, all of each",
    citation=(
        f"{MNIST}; Y. Netzer et al. (2011), Reading Digits in Natural Images with Unsupervised Feature Learning, NIPS "
        f"Workshop; {USPS}; {MNISTM} (SynthDigits and MNIST-M)"
    ),
    licence="SVHN: for non-commercial use only; all others: not stated; research use",
    url="http://ufldl.stanford.edu/housenumbers/",
    domains=("mnist", "svhn", "usps", "synthdigits", "mnistm"),
    classes=CLASSES,
    counts={  # train and test together
        "mnist": (6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958),
        "svhn": (6692, 18960, 14734, 11379, 9981, 9266, 7704, 7614, 6705, 6254),
        "usps": (1553, 1269, 929, 824, 852, 716, 834, 792, 708, 821),  # counted in a complete copy
        "synthdigits": 488953,
        "mnistm": 70000,  # as FedBN uses it; MNIST-M's first release has 68,002
    },
    sizes="MNIST 28x28 grey, USPS 16x16 grey, SVHN and SynthDigits 32x32 colour, MNIST-M 32x32 or 28x28 colour",
    traps=(
        "No archive of all five is fit to read: the usual ones are MATLAB files or Python pickles. Import a folder "
        "domain/[train|test]/class/image, or an .npz with the arrays mnist_x_train, mnist_y_train and so on.",
        "SVHN calls the digit 0 class 10; it becomes 0. Its 531,131 'extra' pictures are not part of this set.",
        USPS_TRAP,
        "MNIST-M's first release has 59,001 and 9,001 pictures of 32x32; the 70,000 of FedBN are another making.",
        "M3SDA's Digit-Five is a subset (25,000 to train and 9,000 to test of each, USPS whole), and Digits-DG "
        "another, with 600 a class and without USPS: numbers do not compare.",
        "FedBN pools train and test, splits 80/20 stratified (test sizes 14,000, 19,858, 1,860, 97,791 and 14,000) and "
        "trains on 743 pictures of each.",
    ),
    aliases={**ALIASES, "svhn": ("SV",), "synthdigits": ("syn", "synth", "synthetic", "synthetic digits", "syndigits")},
)

FOUR = Source(
    name="digits4",
    divided=True,
    summary="MNIST (20,000 of it), USPS, MNIST-M (6,000 of it) and printed digits in 1,016 styles; not Digits-5",
    citation=(
        f"{MNIST}; {USPS}; {MNISTM}; T. E. de Campos, B. R. Babu and M. Varma (2009), Character Recognition in Natural "
        "Images, VISAPP (Chars74K)"
    ),
    licence="not stated; research use",
    url="http://www.ee.surrey.ac.uk/CVSSP/demos/chars74k/",
    domains=("mnist", "usps", "mnistm", "fonts"),
    classes=CLASSES,
    counts={  # train and test together; counted, for this selection is nobody's publication
        "mnist": (1975, 2242, 1978, 2022, 1948, 1828, 1946, 2058, 1968, 2035),
        "usps": (1553, 1269, 929, 824, 852, 716, 834, 792, 708, 821),
        "mnistm": (593, 661, 613, 626, 570, 528, 602, 612, 589, 606),
        "fonts": (1016,) * 10,
    },
    sizes="MNIST and fonts 28x28 grey, USPS 16x16 grey, MNIST-M 32x32 colour",
    traps=(
        "This is not Digits-5: SVHN and SynthDigits are missing, and printed fonts stand in for neither.",
        "MNIST has 10,000 of its 60,000 training pictures here and MNIST-M 4,000 and 2,000: do not compare with "
        "published numbers.",
        USPS_TRAP,
        "The fonts' train and test parts are ours (8,128 and 2,032); Chars74K gives none for them.",
        "Import an .npz with the arrays mnist_x_train, mnist_y_train, mnist_x_test, mnist_y_test and so on.",
    ),
    aliases={**ALIASES, "fonts": ("Chars74K-Fnt", "Fnt", "chars74k")},
)
