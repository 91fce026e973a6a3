"""The first screen: what the method is, one picture, what came out."""

from collections.abc import Mapping, Sequence

from antipgd.paper.references import PAPER
from antipgd.paper.report.content import Item
from antipgd.paper.report.markup import text
from antipgd.paper.report.pictures import figure

TITLE = "Anticorrelated noise, the paper run anew"
METHOD = (
    "<b>Anti-PGD</b> is gradient descent that adds noise to the weights and takes it back one step "
    "later, so that successive perturbations are anticorrelated. With small steps it descends, on "
    "average, the loss plus <i>σ</i>²/2 times the trace of the Hessian: it drifts to flat minima."
)
FORMULA = (
    "<i>w</i> ← <i>w</i> − <i>η</i>∇<i>L</i>(<i>w</i>) + "
    "(<i>ξ</i><sub><i>n</i>+1</sub> − <i>ξ</i><sub><i>n</i></sub>)"
)
LETTERS = (
    "weights <i>w</i>, learning rate <i>η</i>, loss <i>L</i>, fresh noise <i>ξ</i> of standard "
    "deviation <i>σ</i>"
)
CODE = "noise = antipgd.torch.perturb(model, optimizer, sigma=0.3, relative=True)"
SOURCE = (
    "From A. Orvieto, H. Kersting, F. Proske, F. Bach and A. Lucchi, "
    f'<cite><a href="{PAPER}">Anticorrelated Noise Injection for Improved Generalization</a></cite>'
    " (ICML 2022): which of its claims hold, which do not, and by how much."
)
FIRST = "regression"  # whose figure shows what the method does
ARMS = " GD has no noise, PGD independent noise, SGD that of mini-batches. A small problem."


def opening(items: Sequence[Item], sentences: Mapping[str, str]) -> str:
    """Title, method, formula, the line of code, a picture, and the sentences."""
    first = next((item for item in items if item.name == FIRST), None)
    came = "\n".join(f"<li><b>{about}.</b> {text(said)}</li>" for about, said in sentences.items())
    return "\n".join(
        [
            f'<header id="method">\n<h1>{TITLE}</h1>',
            f'<p class="lead">{METHOD}</p>',
            f'<p class="formula">{FORMULA}</p>\n<p class="letters">{LETTERS}</p>',
            f'<p class="start">In PyTorch it is one line before an unchanged training loop:</p>'
            f"\n<pre><code>{CODE}</code></pre>",
            figure(first, first.title.partition(":")[0], first.caption + ARMS) if first else "",
            f'<p class="source">{SOURCE}</p>\n</header>',
            f'<section id="outcome">\n<h2>What came out</h2>\n<ul class="outcome">\n{came}\n</ul>'
            "\n</section>"
            if came
            else "",
        ]
    )
