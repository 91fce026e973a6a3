"""Every place in the paper is said in words, and counted as LaTeX counts."""

import ast
import re
from importlib.resources import files

import pytest

from antipgd.paper.coverage import paper_claims, paper_figures
from antipgd.paper.errata import SLIPS
from antipgd.paper.experiments import EXPERIMENTS, about, title_of
from antipgd.paper.references import counted, in_words, main, places

LABEL = re.compile(r"\b(?:fig|thm|sec|subsec|eq|def|cor|corollary|prop|lemma|rmk|app):\w", re.I)
SOURCE = r"""
\section{One}\label{sec:one}
\begin{equation}\label{eq:a} x \end{equation} % \label{eq:comment}
\begin{align*} y \\ z \end{align*}
\begin{align} y \label{eq:b} \\ z \nonumber \\ t \label{eq:c} \end{align}
\subsection{Inner} \label{sec:inner}
\begin{restatable}[Name]{thm}{again}
\begin{equation} u \end{equation} \label{thm:first}
\end{restatable}
\begin{lemma} \label{lem:first} \end{lemma}
\begin{corollary} \label{cor:second} \end{corollary}
\begin{figure*} \caption{C} \label{fig:first} \end{figure*}
\section*{Thanks}
\appendix
\section{Proofs} \label{app:proofs}
\begin{figure} \caption{D} \label{fig:second} \end{figure}
\begin{lemma} \label{lem:third} \end{lemma}
\subsection{More} \label{app:more}
"""


def test_labels_are_counted_as_latex_counts():
    assert counted(SOURCE) == {
        "sec:one": "Section 1", "eq:a": "Equation 1", "eq:b": "Equation 2", "eq:c": "Equation 3",
        "sec:inner": "Section 1.1", "thm:first": "Theorem 1.1", "lem:first": "Lemma 1.1",
        "cor:second": "Corollary 1.2", "fig:first": "Figure 1", "app:proofs": "Appendix A",
        "fig:second": "Figure 2", "lem:third": "Lemma A.1", "app:more": "Appendix A.1",
    }  # fmt: skip


def test_the_script_prints_the_file(tmp_path, capsys):
    (tmp_path / "paper.tex").write_text(SOURCE)
    main([str(tmp_path / "paper.tex")])
    printed = capsys.readouterr().out
    assert '"thm:first" = "Theorem 1.1"\n' in printed
    kept = files("antipgd.paper").joinpath("references.toml").read_text("utf-8")
    assert kept.splitlines()[0] == printed.splitlines()[0]


def test_figures_have_the_numbers_of_their_order():
    """`coverage.toml` lists the paper's figures in its order, also those without a label."""
    for number, figure in enumerate(paper_figures(), 1):
        if figure.label in places():
            assert places()[figure.label] == f"Figure {number}"


@pytest.mark.parametrize("claim", paper_claims(), ids=lambda claim: claim.id)
def test_every_reference_of_a_row_is_in_words(claim):
    for words in (claim.reference, claim.says, claim.title, claim.quote):
        assert not LABEL.search(in_words(words))
        assert "§" not in in_words(words)
    assert in_words(claim.reference) != claim.reference or claim.reference[:1] not in "§fdteca"


def test_every_slip_is_in_words():
    for slip in SLIPS:
        assert not LABEL.search(in_words(f"{slip.where} {slip.printed} {slip.right}"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_text_of_an_experiment_is_in_words(name):
    assert not LABEL.search(in_words(f"{title_of(name)} {about(name)}"))
    tree = ast.parse(files("antipgd.paper.experiments").joinpath(f"{name}.py").read_text("utf-8"))
    whole = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
             for part in node.values}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            left = LABEL.search(in_words(node.value))
            if left and id(node) in whole:  # the beginning of a label: one of those there are
                left = not any(label.startswith(node.value.split()[-1]) for label in places())
            assert not left, node.value


def test_panels_and_several_figures():
    assert in_words("caption of fig:front_experiments") == "caption of Figure 2"
    assert in_words("fig:front_experiments (1st column)") == "Figure 2, first column"
    assert in_words("fig:sensing_tuning_*") == "Figures 12 to 14"
    assert in_words("rmk:reversed trend, thm:main_tube") == "Remark C.6, Theorem 3.1"
    assert in_words("no label: at all") == "no label: at all"
