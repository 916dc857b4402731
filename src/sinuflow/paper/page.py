"""All results on one page, ours beside the paper's.

    python -m sinuflow.paper.page FOLDER

writes FOLDER/README.md from the records that are there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ..files import write_atomically
from . import images_table, runtime_table, tabular_table
from .items import ITEMS, Item
from .record import read_record

#: What is other than in the paper, item by item.
DIFFERENCES = {
    "transformer": "The curve is that of a `SinusoidalScale` whose free parameters are solved for, not of the formula.",
    "gaussians": """The paper shows a picture and gives neither the means nor the settings. Here the means are evenly
spaced over ±40 and the widths are 1. KL is an integral on a grid; the transformation is compared where the true one is
inside ±3. In one dimension an MAF has no other feature to look at: it can only shift and scale, and is trained for
2,000 steps instead of 20,000, because that is soon learned.""",
    "shapes": """The paper shows a picture. The architecture is the paper's (16 blocks, one hidden layer of 100 units)
and so is the number of steps. Batches are of 512 rows instead of 128, the learning rate begins at 2e-3 instead of 1e-3
and falls to 0, and weights are averaged (`today` in the recipe; `--model paper` runs the paper's own). KL is the mean
of log p - log q over 50,000 fresh rows, with p in closed form or by quadrature. The pinwheel's density is not known, so
it has no KL, and its true picture is a histogram.""",
    "tabular": """What `fit` adds to every recipe, also to the paper's: a warm-up of 500 steps, gradients clipped at a
norm of 5, and the weights that do best on the validation rows. `today` is the paper's architecture, on POWER's
published split for a third of the paper's steps and on BSDS300 (with the paper's dropout) for three tenths of them,
with batches of 1,024 rows instead of 512, a learning rate of 7e-4 instead of 5e-4, and averaged weights. Noise is
also added to the minute of the day, as the data's authors write; their code may not, and it would change the NLL.
The paper's own recipe, one seed, gave -0.588 in 517 seconds ([record](power_training.json)); the paper's figures are
of five seeds. On the small sets, flows can be compared with each other only. Ours was chosen on validation rows,
dropout included; zuko's flows have the settings of the same loop, no dropout, and stop early. MAF's mean is what
single rows far from the data make of it. On BSDS300, zuko's NSF has five transforms with the hidden layers of ours
and was trained by the same loop for as long; its step takes nine times as long, so it was 14,832 steps, and its
validation was still falling. The `best` recipes let every wave depend on the features before (POWER: ten blocks, no
dropout; BSDS300: eight blocks, a dropout of 0.2), and both overfit after a quarter to a half of their steps. Who has
the files can run GAS, HEPMASS and MINIBOONE.""",
    "ldu": "Drawn by `flow.draw()` from the flow of POWER's recipe, with the masks that it has.",
    "contraction": """The paper proves it; these are measurements on flows that were trained for 3,000 steps at ten
times the paper's learning rate, so that the waves become strong. G is that of each scale, which is what Proposition 1
is about; the four scales of a block together are often no contraction. Its constant is the largest slope on a grid over
the range of the data. Iterations are evaluations of the transformer, for a tolerance that each solver can keep in
float64.""",
    "images": """What `fit` adds to every recipe, also to the paper's: a warm-up of 500 steps, the likelihood's
gradient clipped at a norm of 5 (10,000 for the paper's MNIST, whose weight decay would outweigh it), and the weights
that do best on the images that validate: the last 10,000 (MNIST) and 5,000 (CIFAR-10) of those to train on. Nothing
was chosen on test images, but for what is said of `stable`; that its earlier versions were not good enough was also
seen by their errors. `today` is the paper's architecture with averaged weights, 30,000 steps (MNIST) and 32,000
(CIFAR-10) of 128 images instead of 200,000 and 140,000, a learning rate that falls to 0 from 8e-3 and 5e-3 instead of
1e-3 and 5e-4, and AdamW with a weight decay of 1e-2. The learning rate of MNIST comes from runs of 4,000 steps, of
which no record was kept, with validation bits per dimension of 1.131 (2e-3), 1.090 (5e-3) and 1.082 (1e-2); that of
CIFAR-10 was not searched. `affine` is the same flow, with networks that compute a log-scale beside each shift
(`conditioning="affine"`), trained for 45,000 and 64,000 steps, from 5e-3; its settings were not searched. The flows of
the `best` recipes are larger: networks of 64 maps instead of 16 and of four residual blocks instead of two, which
compute scales, too, in six blocks instead of twelve; MNIST's have eight transformers in each instead of four. They
were trained for 80,000 steps (CIFAR-10) and 60,000 (MNIST) of 64 images. Short runs came before, one seed each, on
2,000 validation images ([record](image_pilots.json)). On 22,000 images of CIFAR-10, 5,000 steps gave 3.396 at a
learning rate of 8e-3, 3.395 at 4e-3, and 3.408 with twelve blocks of two residual blocks; 6e-3 was not tried, but
taken as between the two. The same networks without scales had 3.430 after 9,500 steps on all 45,000. MNIST's flow had
1.067 after 3,500 steps of 64 images, networks of 32 maps 1.056 after 4,000 of 128, on 20,000 images, and shifts alone
1.064 after 4,000 of 128; because steps and batches differ, that decides nothing, and the flow was taken from
CIFAR-10's. In the run of the table, MNIST's loss diverged at step 603; `fit` went back to the last good weights, and
on with 0.3 of the learning rate, so that it was 1.8e-3. What scales bring by themselves was also measured with small
flows ([record](image_conditioning.json)). How exactly these flows bring images back is
[elsewhere](../numerics.md#float32-and-float64): those of CIFAR-10 well, in float32 those of MNIST not. Rows of `today`
and `affine` are of revision b25bdd2. There CIFAR-10's `today` gave the same figure as an earlier training with the
same seed, and MNIST's, which had 1.027 by the kernels of an earlier revision, 1.029. `stable` is `today` with `fit`'s
penalty on errors that grow on the way back from noise (`stability`); its form comes from runs of 4,000 steps
([record](stability_pilots.json)), and its weight, 500, was guessed from those and from earlier runs of the recipe,
their bits of test images among what was known. Bytes get new noise at every look, and CIFAR-10 is flipped by chance,
where Papamakarios et al. (2017) prepare both once. Bits per dimension are those of the exact density of pixels, with
one draw of noise for every test image: on average, no less than the bits of the bytes themselves.""",
    "samples": """The paper shows no samples. These are the first ones of a seed, at temperature 1, beside the first
test images; none is left out. What lies beyond black or white is shown as these. Those of `best` were drawn on a CPU,
by the flows that were trained on an H200.""",
    "reconstruction": """The paper shows a picture, and does not say in which unit its error is. Here it is the root of
the sum of squares over an image, its pixels between 0 and 1, on average over test images. Iterations are those that
each transformer and each shift may take, four and two in a block; the paper counts by block. Algorithm 1 has tolerance
0, and so takes all of them. An image looks the same if no byte is off by more than one. Largest errors are in logits,
in which the flow works, or of pixels between 0 and 1. All of it is in float32, unless it says float64. Algorithm 1 has
128 images, and the certified solver all 10,000. In float32, MNIST's flow by `today` cannot give back every logit: of
its 100 worst test images, even the exact inverse of their exact noise, rounded to float32, is off by up to 0.08
([record](round_trip.json)). `stable` was trained not to magnify errors, and brings all images back ([why, and more
figures](../numerics.md#float32-and-float64)); after 20 iterations of Algorithm 1 its error is 0.01 instead of 4.7.
Revisions: b25bdd2 (`today`) and c52e524 (`stable`), with float64 between the layers of the certified solver.""",
    "runtime": """The paper shows a picture, and says neither how many images nor on which hardware. Tolerance is both
rtol and atol of Algorithm 1, which hold for each layer and not for the whole flow. The certified solver has none to
choose: it solves to working precision, or says that it could not. Its time is a median, Algorithm 1 is timed once; both
in float32, with one pass through the flow to see what the answer is worth. The error of a reconstruction is the
distance from the image, that of a sample from the certified answer in float64. The record is of revision b25bdd2, with
float64 between the layers of the certified solver.""",
}
#: Items with so many figures that only some are shown here.
_SHOWN = {
    "contraction": (
        "Lipschitz constant of G, largest over blocks",
        "iterations of Algorithm 1, mean",
        "iterations of Algorithm 1, largest",
        "iterations of the certified solver, mean",
        "samples wrong after 100 iterations of Algorithm 1, percent",
    ),
    "reconstruction": (
        "l2 error, iterations of Algorithm 1: 10",
        "l2 error, iterations of Algorithm 1: 70",
        "l2 error, iterations of Algorithm 1: 100",
        "l2 error of the certified solver",
        "images that look the same, iterations of Algorithm 1: 70, percent",
        "images that look the same by the certified solver, percent",
        "images that the certified solver vouches for, percent",
        "largest error of the certified solver in float32, 10,000 images",
        "largest error of the certified solver in float32, 10,000 images, pixels",
        "largest error of the certified solver in float64, 1,000 images",
    ),
}
#: Items with a table of their own.
_TABLES = {"tabular": tabular_table.table, "images": images_table.table, "runtime": runtime_table.table}


def page(folder: Path) -> str:
    """The page, in Markdown."""
    records = {name: read_record(folder / f"{name}.json") for name in ITEMS}
    missing = [name for name, figures in records.items() if not figures]
    begin = (
        "The figures and tables of *Sinusoidal Flow: A Fast Invertible Autoregressive Flow* (Wei, ACML 2021), as "
        "`sinuflow reproduce` runs them, with a record of the command, seeds, hardware, versions and time beside each."
    )
    parts = ["# The paper, run again", begin + (f" Still to be run: {', '.join(missing)}." if missing else "")]
    for item in ITEMS.values():
        if records[item.name]:
            parts += _section(item, records[item.name], folder)
    return "\n\n".join(parts) + "\n"


def _section(item: Item, figures: list[dict[str, Any]], folder: Path) -> list[str]:
    parts = [f"## {item.name}", f"{item.paper}: {item.shows}. [Record]({item.name}.json)."]
    drawn = [name for name in (f"{item.name}.png", f"{item.name}.svg") if (folder / name).exists()]
    parts += [f"![{item.shows}]({name})" for name in drawn]
    for path in sorted(folder.glob(f"{item.name}-*.png")):  # of other models, or sets
        what = path.stem.removeprefix(f"{item.name}-")
        parts += [f"The same, `{what}`:", f"![{item.shows}: {what}]({path.name})"]
    parts.append(_TABLES[item.name](figures).strip() if item.name in _TABLES else _table(item, figures))
    parts.append(DIFFERENCES[item.name])
    return parts


def _table(item: Item, figures: list[dict[str, Any]]) -> str:
    shown = [f for f in figures if f["metric"] in _SHOWN.get(item.name, (f["metric"],))]
    lines = ["| set | model | figure | ours | seeds | paper | hardware |", "|---|---|---|---|---|---|---|"]
    for figure in shown:
        # Of percentages, whether it is all or almost all must be seen.
        digits = 4 if figure["metric"].endswith("percent") else 3
        value = "not a number" if figure["value"] is None else f"{figure['value']:,.{digits}g}"
        spread = "" if figure["spread"] is None else f" ± {figure['spread']:.2g}"
        paper = "" if figure["paper"] is None else f"{figure['paper']:g}"
        seeds = str(len(figure["seeds"]) or "")
        cells = [figure["set"], figure["model"], figure["metric"], value + spread, seeds, paper, figure["hardware"]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write_atomically(target / "README.md", page(target).encode())
