"""What augmentation costs beside the training step it feeds: interleaved medians, as shares and images/s.

    python -m benchmarks.augment [--recipe domainbed] [--batch 64] [--threads 1] [--repeats 40]

The step is the hFedF network's on the CPU: forward, backward and SGD on 3x32x32 pictures. Beside it stands the same
maths done with Pillow, one picture after another, and torchvision's own transforms, where it is installed
(`pip install --no-deps torchvision==0.28.0` is enough beside a CPU build of torch).

glibc may give memory that the step has freed back to the system at any time, within the augmentation too. Set
MALLOC_TRIM_THRESHOLD_=10000000000 MALLOC_MMAP_MAX_=0 MALLOC_TOP_PAD_=67108864 for figures without that.
"""

import argparse
import time
from collections.abc import Callable
from statistics import mean, median, stdev

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.nn import functional as F

from fedshift.data.augment import Transform, crop_boxes
from fedshift.data.recipes import RECIPES, STATISTICS
from fedshift.models import build

from . import tv

Jobs = dict[str, Callable[[], object]]


def stepper(batch: int) -> Callable[[], None]:
    """One training step of the hFedF network on a fixed batch."""
    net = build("hfedf-cnn", (3, 32, 32), 7)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(0, 7, (batch,))
    weights: list[Tensor] = list(net.parameters())

    def step() -> None:
        grads = torch.autograd.grad(F.cross_entropy(net(images), labels), weights)
        with torch.no_grad():
            torch._foreach_add_(weights, grads, alpha=-0.01)

    return step


def pillow(pictures: list[Image.Image], gen: torch.Generator) -> Tensor:
    """DomainBed's recipe on one picture after another."""
    dice = torch.rand(len(pictures), 28, generator=gen, dtype=torch.float64).numpy()
    boxes = crop_boxes(dice[:, :20], dice[:, 20:22], 32, 32, 0.7, 4 / 3)
    middle, std = (torch.tensor(v).view(3, 1, 1) for v in STATISTICS["imagenet"])
    done = []
    for picture, (top, left, high, wide), u in zip(pictures, boxes.tolist(), dice[:, 22:].tolist(), strict=True):
        picture = picture.crop((left, top, left + wide, top + high)).resize((32, 32), Image.Resampling.BILINEAR)
        if u[0] < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        picture = ImageEnhance.Brightness(picture).enhance(0.7 + 0.6 * u[1])
        picture = ImageEnhance.Contrast(picture).enhance(0.7 + 0.6 * u[2])
        picture = ImageEnhance.Color(picture).enhance(0.7 + 0.6 * u[3])
        hsv = np.array(picture.convert("HSV"))
        hsv[..., 0] += np.uint8(int(255 * 0.3 * (2 * u[4] - 1)) % 256)
        picture = Image.fromarray(hsv, "HSV").convert("RGB")
        if u[5] < 0.1:
            picture = picture.convert("L").convert("RGB")
        done.append((torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255 - middle) / std)
    return torch.stack(done)


def jobs(recipe: str, batch: int) -> Jobs:
    """The things compared; all but the first make one batch."""
    gen = torch.Generator().manual_seed(0)
    store = torch.randint(0, 256, (10_000, 3, 32, 32), dtype=torch.uint8, generator=gen)
    transform = Transform(RECIPES[recipe], torch.float32)
    table = transform.draw(gen, batch, 32, 32)

    def gather() -> Tensor:
        return store[torch.randint(0, len(store), (batch,), generator=gen)]

    images = gather()
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    found: Jobs = {
        "training step": stepper(batch),
        "gather and augment": lambda: transform.train(gather(), gen),
        "  gather": gather,
        "  draw": lambda: transform.draw(gen, batch, 32, 32),
        "  apply": lambda: transform.apply(images, table),
        "evaluation's transform": lambda: transform.test(images),
    }
    if recipe == "domainbed":
        found["Pillow, one by one"] = lambda: pillow(pictures, gen)
        if library := tv.transforms():
            chain = tv.domainbed(library, 32)
            found["torchvision, one by one"] = lambda: tv.one_by_one(chain, pictures)
    return found


def seconds(compared: Jobs, repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Wall and processor seconds of each job, in turn in every repetition: a busy machine slows all alike."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in compared}
    for repeat in range(repeats + 2):
        for name, job in compared.items():
            wall, processor = time.perf_counter(), time.process_time()
            job()
            if repeat > 1:
                times[name].append((time.perf_counter() - wall, time.process_time() - processor))
    return times


def added(step: Callable[[], object], feed: Callable[[], object], repeats: int) -> tuple[float, float]:
    """By how much feeding lengthens a loop of steps, in processor time, and the standard error of that.

    Alone, feeding may be charged for memory that the step has freed and malloc gives back to the system only then.
    """

    def loop(*jobs: Callable[[], object]) -> float:
        start = time.process_time()
        for job in 3 * jobs:
            job()
        return time.process_time() - start

    loop(feed, step)
    ratios = [2 * loop(feed, step) / (before + loop(step)) - 1 for before in (loop(step) for _ in range(repeats))]
    return mean(ratios), stdev(ratios) / repeats**0.5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=RECIPES, default="domainbed")
    for name, default in (("batch", 64), ("threads", 1), ("repeats", 40)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    compared = jobs(args.recipe, args.batch)
    times = seconds(compared, args.repeats)
    step = times["training step"]
    print(
        f"{args.recipe}, batches of {args.batch} pictures 3x32x32, {args.threads} threads, {args.repeats} repetitions"
    )
    print(f"{'':24}{'ms':>9}{'images/s':>10}{'of the step: time':>20}{'processor':>11}")
    for name, taken in times.items():
        wall = median(t for t, _ in taken)
        shares = (median(t[clock] / s[clock] for t, s in zip(taken, step, strict=True)) for clock in (0, 1))
        print(f"{name:24}{1e3 * wall:9.3f}{args.batch / wall:10.0f}{next(shares):20.2%}{next(shares):11.2%}")
    share, error = added(compared["training step"], compared["gather and augment"], args.repeats)
    print(f"a loop of steps takes {share:.2%} (standard error {error:.2%}) more processor time when it is fed")


if __name__ == "__main__":
    main()
