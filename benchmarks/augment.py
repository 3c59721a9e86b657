"""What augmentation costs beside the training step it feeds: interleaved medians, as shares and images/s.

    python -m benchmarks.augment [--recipe hfedf] [--batch 64] [--threads 1] [--repeats 40] [--plain]

The step is the hFedF network's on the CPU: forward, backward and SGD on 3x32x32 pictures, laid out as the engine `fast`
has them, in a process that keeps its memory, as every run does. With `--plain` channels come first, as the other
engines have them, and glibc gives memory back to the system at any time, within the augmentation too.

The table shows one batch at a time. Beside it stands the same maths done with Pillow, one picture after another, and
torchvision's own transforms, where it is installed (`pip install --no-deps torchvision==0.28.0` is enough beside a CPU
build of torch). Training draws once for a round and prepares several small batches at once; the last lines time that:
a client's batches, each followed by its step.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import chain, count
from statistics import mean, median, stdev

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.nn import functional as F

from fedshift import keep_memory
from fedshift.core.task import Batch
from fedshift.data.augment import Transform, crop_boxes
from fedshift.data.batches import Budget, ClientData
from fedshift.data.pictures import Pictures
from fedshift.data.recipes import RECIPES, STATISTICS
from fedshift.models import build

from . import tv

Jobs = dict[str, Callable[[], object]]
Step = Callable[[Batch], None]
BAR = 0.03  # of the step's time


def stepper(form: torch.memory_format) -> Step:
    """One training step of the hFedF network."""
    net = build("hfedf-cnn", (3, 32, 32), 7)
    for p in net.parameters():
        p.data = p.data.contiguous(memory_format=form) if p.dim() == 4 else p.data
    weights: list[Tensor] = list(net.parameters())

    def step(batch: Batch) -> None:
        grads = torch.autograd.grad(F.cross_entropy(net(batch.x), batch.y), weights)
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


def client(recipe: str, batch: int, form: torch.memory_format) -> ClientData:
    """A site as large as PACS' are, of noise."""
    images = torch.randint(0, 256, (25 * batch, 3, 32, 32), dtype=torch.uint8)
    transform = Transform(RECIPES[recipe], torch.float32, form == torch.channels_last)
    labels = torch.randint(0, 7, (len(images),))
    return ClientData("noise", Pictures.of(images), labels, Budget(batch, 2, 0), transform)


def jobs(site: ClientData, step: Callable[[], None], recipe: str) -> Jobs:
    """The things compared; all but the first make one batch."""
    gen, batch, transform = torch.Generator().manual_seed(0), site.budget.batch, site.transform
    table = transform.draw(gen, batch, 32, 32)

    def gather() -> Tensor:
        return site.pictures.take(torch.randint(0, site.examples, (batch,), generator=gen))

    images = gather()
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    found: Jobs = {
        "training step": step,
        "gather and augment": lambda: transform.train(gather(), gen),
        "  gather": gather,
        "  draw": lambda: transform.draw(gen, batch, 32, 32),
        "  apply": lambda: transform.apply(images, table),
        "evaluation's transform": lambda: transform.test(images),
    }
    if recipe in ("domainbed", "hfedf"):
        found["Pillow, one by one"] = lambda: pillow(pictures, gen)
        if library := tv.transforms():
            theirs = tv.domainbed(library, 32)
            found["torchvision, one by one"] = lambda: tv.one_by_one(theirs, pictures)
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


def fed(step: Step, site: ClientData, repeats: int) -> Iterator[tuple[float, float, float]]:
    """Processor seconds of feeding 25 steps, of those steps, and of 25 between them on a batch already there."""
    batches, clock = chain.from_iterable(map(site.batches, count())), time.process_time
    batch = next(batches)
    for repeat in range(repeats + 1):
        feeding = stepping = bare = 0.0
        for _ in range(25):
            start = clock()
            step(batch)
            again = clock()
            batch = next(batches)
            ready = clock()
            step(batch)
            bare, feeding, stepping = bare + again - start, feeding + ready - again, stepping + clock() - ready
        if repeat:
            yield feeding, stepping, bare


def verdict(share: float, error: float) -> str:
    """Whether the bar is met, where two standard errors allow to say so."""
    return (
        "met" if share + 2 * error <= BAR else "missed" if share - 2 * error > BAR else "undecided: repeat more often"
    )


def report(times: dict[str, list[tuple[float, float]]], batch: int) -> None:
    """A line for each job."""
    step = times["training step"]
    print(f"{'':24}{'ms':>9}{'images/s':>10}{'of the step: time':>20}{'processor':>11}")
    for name, taken in times.items():
        wall = median(t for t, _ in taken)
        shares = (median(t[clock] / s[clock] for t, s in zip(taken, step, strict=True)) for clock in (0, 1))
        print(f"{name:24}{1e3 * wall:9.3f}{batch / wall:10.0f}{next(shares):20.2%}{next(shares):11.2%}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=RECIPES, default="hfedf")
    for name, default in (("batch", 64), ("threads", 1), ("repeats", 40)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--plain", action="store_true", help="channels first, and glibc's own habits")
    args = parser.parse_args()
    if not args.plain:
        keep_memory()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    form = torch.contiguous_format if args.plain else torch.channels_last
    site, step = client(args.recipe, args.batch, form), stepper(form)
    same = next(site.batches(0))
    print(
        f"{args.recipe}, batches of {args.batch} pictures 3x32x32, {'plain' if args.plain else 'channels last'}, ",
        end="",
    )
    print(f"{args.threads} threads, {args.repeats} repetitions")
    report(seconds(jobs(site, lambda: step(same), args.recipe), args.repeats), args.batch)
    loops = list(fed(step, site, max(4, args.repeats // 4)))
    feeding, stepping, bare = (1e3 * mean(loop[k] for loop in loops) / 25 for k in range(3))
    share, error = mean(f / s for f, s, _ in loops), stdev(f / s for f, s, _ in loops) / len(loops) ** 0.5
    print(
        f"as in training: {feeding:.2f} ms of processor time a batch, {stepping:.2f} its step, {bare:.2f} when not fed"
    )
    print(
        f"that is {share:.2%} (standard error {error:.2%}) of the step; the bar of {BAR:.0%}: {verdict(share, error)}"
    )


if __name__ == "__main__":
    main()
