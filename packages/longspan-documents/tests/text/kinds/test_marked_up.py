"""LaTeX, reStructuredText, manual pages, rich text and saved pages: their structure, and nothing of their marks."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from longspan.errors import InputError
from longspan_documents.text.kinds import latex, restructured, rich_text
from longspan_documents.text.reading import read


def blocks(path: Path, text: str) -> list[tuple[str, str]]:
    path.write_text(text, encoding="utf-8")
    return [(block.kind, block.text) for block in read(path).blocks]


TEX = r"""% a comment
\documentclass[a4paper]{article}
\usepackage{amsmath}
\newcommand{\sys}{Longspan}
\title{On Weirs}
\author{Ada Example}
\begin{document}
\maketitle
\begin{abstract}
We measure weirs~\cite{a,b} with \sys{}.
\end{abstract}
\section{The \emph{gate}}\label{sec:gate}
A weir raises $x^2 \le 5$ metres\footnote{In May.} of water. It is 92.3\% full.

By \sys, with \textbf{bold} \& ``quotes'' % hidden
it goes on.
\begin{itemize}
\item One is here.
\item[Two] is there.
\end{itemize}
\begin{verbatim}
x = 1 % \cite{a}
\end{verbatim}
\begin{figure}\includegraphics[width=1cm]{a.png}\caption{A gate.}\label{f}\end{figure}
\begin{tabular}{l|r}\hline Rye & 4 \\ Oats \& rye & 3\\ \hline\end{tabular}
\begin{thebibliography}{9}\bibitem{a} A. Author. A paper. \end{thebibliography}
\end{document}
"""


@pytest.mark.parametrize("name", ["a.tex", "a", "a.txt"])
def test_latex(tmp_path: Path, name: str) -> None:
    assert blocks(tmp_path / name, TEX) == [
        ("heading", "On Weirs"),
        ("heading", "Abstract"),
        ("paragraph", "We measure weirs with Longspan."),
        ("heading", "The gate"),
        ("paragraph", "A weir raises x^2 ≤ 5 metres of water. It is 92.3% full."),
        ("note", "In May."),
        ("paragraph", "By Longspan, with bold & “quotes” it goes on."),
        ("item", "One is here."),
        ("item", "Two: is there."),
        ("code", "x = 1 % \\cite{a}"),
        ("caption", "A gate."),
        ("table", "| Rye | 4 |\n| Oats & rye | 3 |"),
        ("heading", "References"),
        ("references", "A. Author. A paper."),
    ]
    assert read(tmp_path / name).title == "On Weirs"


def test_a_chapter_without_preamble(tmp_path: Path) -> None:
    found = blocks(tmp_path / "a.tex", "\\chapter{Weirs}\nThe gate is open.\n\nIt is \\unknown{old}.\n")
    assert found == [("heading", "Weirs"), ("paragraph", "The gate is open."), ("paragraph", "It is old.")]


RST = """Weirs
=====

:Author: Ada

A weir raises the level. See :ref:`gates`, :ref:`the mill <mill>`, :class:`~a.Weir` and ``code`` [1]_.

.. a comment

.. toctree::
   :maxdepth: 2

   other

.. note::

   The gate must be closed at night.

.. versionadded:: 2.1
   It was built of granite.

.. code-block:: python
   :linenos:

   x = 1

.. literalinclude:: /etc/passwd

.. include:: /etc/passwd

Gates
-----

* First item is here.

term
   What it means.

===== =====
Grain Price
===== =====
Rye   4
===== =====

.. [1] From the accounts.
"""


def test_restructured_text(tmp_path: Path) -> None:
    assert blocks(tmp_path / "a.rst", RST) == [
        ("heading", "Weirs"),
        ("boilerplate", "Ada"),
        ("paragraph", "A weir raises the level. See gates, the mill, a.Weir and code 1."),
        ("paragraph", "The gate must be closed at night."),
        ("paragraph", "2.1 It was built of granite."),
        ("code", "x = 1"),
        ("heading", "Gates"),
        ("item", "First item is here."),
        ("item", "term: What it means."),
        ("table", "| Grain | Price |\n| Rye | 4 |"),
        ("note", "From the accounts."),
    ]


MAN = r""".\" comment
.
.TH LS "1" "May 2021" "GNU"
.SH NAME
ls \- list directory contents
.SH SYNOPSIS
.B ls
[\fI\,OPTION\/\fR]...
.SH DESCRIPTION
.PP
List information about the FILEs
(the current directory by default).
.TP
\fB\-a\fR, \fB\-\-all\fR
do not ignore entries starting with .
.TP
.BR \-A ", " \-\-almost-all
do not list implied \(lq.\(rq
.SS "More of it"
.nf
ls \-l
.fi
See
.BR cat (1).
"""
MDOC = """.Dd May 3, 2021
.Dt CAT 1
.Os
.Sh NAME
.Nm cat
.Nd concatenate files
.Sh DESCRIPTION
The
.Nm
utility reads
.Ar file ,
as in
.Xr head 1 .
.Bl -tag -width indent
.It Fl b
Number the lines.
.El
"""


@pytest.mark.parametrize("name", ["ls.1", "ls", "ls.man"])
def test_a_manual_page(tmp_path: Path, name: str) -> None:
    found = blocks(tmp_path / name, MAN)
    assert [one for one in found if "SYNOPSIS" not in one[1] and "OPTION" not in one[1]] == [
        ("heading", "NAME"),
        ("paragraph", "ls - list directory contents."),
        ("heading", "DESCRIPTION"),
        ("paragraph", "List information about the FILEs (the current directory by default)."),
        ("item", "-a, --all — do not ignore entries starting with ."),
        ("item", "-A, --almost-all — do not list implied “.”"),
        ("heading", "More of it"),
        ("code", "ls -l"),
        ("paragraph", "See cat(1)."),
    ]
    assert read(tmp_path / name).title == "ls(1)"


def test_a_manual_page_of_bsd(tmp_path: Path) -> None:
    assert blocks(tmp_path / "cat.1", MDOC) == [
        ("heading", "NAME"),
        ("paragraph", "cat — concatenate files."),
        ("heading", "DESCRIPTION"),
        ("paragraph", "The cat utility reads file, as in head(1)."),
        ("item", "-b Number the lines."),
    ]


def test_another_file_that_ends_in_a_digit_is_text(tmp_path: Path) -> None:
    assert blocks(tmp_path / "notes.1", "The gate is open.\n") == [("paragraph", "The gate is open.")]


RTF = (  # the last line is a picture
    r"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Times;}}{\info{\title T}}\pard\b The gate\b0\par Ren\'e9 opened it \u8211? "
    r"at noon.{\*\comment secret}{\v hidden}\par\pard{\pict\pngblip " + "0a" * 600 + r"}It is closed.\par}"
)


@pytest.mark.parametrize("name", ["a.rtf", "a.txt", "a"])
def test_rich_text(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(RTF.encode("ascii"))
    words = " ".join(block.text for block in read(tmp_path / name).blocks)
    assert words == "The gate René opened it – at noon. It is closed."


MHTML = """From: <Saved by Blink>
Snapshot-Content-Location: https://example.org/
MIME-Version: 1.0
Content-Type: multipart/related; type="text/html"; boundary="b"

--b
Content-Type: text/html; charset=utf-8
Content-Transfer-Encoding: quoted-printable

<html><body><h1>The gate</h1><p>Ren=C3=A9 opened it =E2=80=93 at noon.</p></body></html>
--b
Content-Type: image/png
Content-Transfer-Encoding: base64

AAAA
--b--
"""


@pytest.mark.parametrize("name", ["a.mhtml", "a.mht", "a"])
def test_a_saved_page(tmp_path: Path, name: str) -> None:
    assert blocks(tmp_path / name, MHTML) == [("heading", "The gate"), ("paragraph", "René opened it – at noon.")]


HOSTILE = {
    "a.tex": "{" * 20_000,
    "b.tex": "\\begin{itemize}\\item a" * 3_000,
    "c.tex": "\\newcommand{\\a}{aa}\\newcommand{\\b}{\\a\\a}" + "\\b" * 3_000,
    "d.tex": "$" * 1_001,
    "a.rst": "* " * 5_000 + "a",
    "b.rst": ".. |a| replace:: |a|\n\n|a|\n",
    "c.rst": ".. note::\n" * 300,
    "d.rst": "=" * 5_000,
    "a.man": ".TH A 1\n" + ".de X\n" * 1_000,
    "b.man": ".TH A 1\n" + "\\f" * 5_000,
    "a.rtf": "{\\rtf1 " + "{" * 50_000,
    "b.rtf": "{\\rtf1 \\u99999999999999999999? \\'zz }",
    "a.mht": "Content-Type: multipart/related; boundary=b\n\n" + "--b\n\n" * 10_000,
    "b.mht": "Content-Type: text/plain\n\nNo page.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(HOSTILE[name])
    with suppress(InputError):  # any other error fails
        assert read(tmp_path / name).blocks


@pytest.mark.parametrize(
    ("module", "name", "text"), [(latex, "a.tex", TEX), (restructured, "a.rst", RST), (rich_text, "a.rtf", RTF)]
)
def test_longer_files_than_bearable_are_refused(
    module: object, name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGEST", 100)
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=rf"{name} (is longer|holds more) than"):
        read(tmp_path / name)


@pytest.mark.parametrize("unit", [" ", "\n", " \n", "\t\n% a\n", ".\n"])
@pytest.mark.parametrize("name", ["a", "a.tex", "a.1"])
def test_signatures_read_white_space_and_comments_once(tmp_path: Path, name: str, unit: str) -> None:
    """Expressions that could divide them in several ways would never end."""
    path = tmp_path / name
    path.write_text(unit * 3_000 + "A weir raises the level.\n", encoding="utf-8")
    with suppress(InputError):  # of LaTeX by its name alone
        assert "A weir raises the level." in read(path).text


def test_a_line_of_restructured_text_that_would_take_minutes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.rst"
    path.write_text("A weir.\n\n" + "a:" * 6_000 + "\n", encoding="utf-8")
    with pytest.raises(
        InputError, match=r"a\.rst has a line of 12,000 characters, .* break the line, or save it as \.txt"
    ):
        read(path)


NUMBERED = r"""\documentclass{article}
\newtheorem{definition}{Definition}
\newtheorem{lemma}[definition]{Lemma}
\begin{document}
\title{On Snails}\maketitle
\section{Introduction}\label{sec:intro}
We measure snails, see Sect.~\ref{sec:method}. They are slow (see Fig.~\ref{fig:none}). As Fig.~\ref{fig:speed}
and Eq.~\eqref{eq:speed} show, they rest. More is in Sect.~\ref{sec:elsewhere}.
\section{Method}\label{sec:method}
\subsection{Garden}\label{sec:garden}
The garden of Section~\ref{sec:garden} is small, as \Cref{sec:intro,sec:method} and Table~\ref{tab:a} say. See
\autoref{eq:b}, Lemma~\ref{lem:x} and Appendix~\ref{app:a}.
\begin{figure}\caption{The speed}\label{fig:speed}\end{figure}
\begin{table}\caption{A table}\label{tab:a}\end{table}
\begin{equation}v = s/t\label{eq:speed}\end{equation}
\begin{align} a &= b \\ c &= d \label{eq:b}\end{align}
\begin{definition}[Foo] Let all snails be slow. Then they rest.\end{definition}
\begin{lemma}\label{lem:x} All snails rest. They do.\end{lemma}
\appendix
\section{More}\label{app:a}
The end is here.
\end{document}
"""
"""The numbers below are those that LaTeX prints: article class, `align` has a number for each row, lemmas are counted
with definitions, the first appendix is A."""


def test_references_of_latex_have_the_numbers_that_are_printed(tmp_path: Path) -> None:
    path = tmp_path / "snails.tex"
    path.write_text(NUMBERED, encoding="utf-8")
    document = read(path)
    told = [block.text for block in document.blocks if block.kind == "paragraph"]
    assert told == [
        "We measure snails, see Sect. 2. They are slow. As Fig. 1 and Eq. (1) show, they rest. More is in Sect.",
        "The garden of Section 2.1 is small, as Sections 1 and 2 and Table 1 say. "
        "See equation 3, Lemma 2 and Appendix A.",
        "Let all snails be slow. Then they rest.",
        "All snails rest. They do.",
        "The end is here.",
    ]
    headings = [block.text for block in document.blocks if block.kind == "heading"]
    assert headings == ["On Snails", "Introduction", "Method", "Garden", "Definition (Foo)", "Lemma", "More"]


def test_numbers_of_a_book_in_latex(tmp_path: Path) -> None:
    path = tmp_path / "book.tex"
    path.write_text(
        r"\documentclass{book}\begin{document}\chapter{One}\begin{equation}x\end{equation}\chapter{Two}\label{two}"
        r"\section{Snails}\label{snails} See \ref{snails} of \ref{two}, and \eqref{speed}."
        r"\begin{equation}v\label{speed}\end{equation}\end{document}",
        encoding="utf-8",
    )
    assert [one.text for one in read(path).blocks if one.kind == "paragraph"] == ["See 2.1 of 2, and (2.1)."]


STYLED = r"""{\rtf1\ansi\ansicpg1252\deff0{\fonttbl{\f0\froman\fcharset0 Times;}}
{\stylesheet{\ql \f0\fs24 \snext0 Normal;}{\s1\ql\keepn \outlinelevel0\b\fs32 \sbasedon0 \snext0 heading 1;}
{\s2\b \sbasedon0 heading 2;}{\s15\sbasedon2 \i House style;}{\s16 Title;}{\*\cs17 \additive heading 1;}
{\s18\outlinelevel3 Eigene;}{\s19\sbasedon1\outlinelevel9 No heading;}}
\pard\plain \s16 {\fs40 The Keeper\par}
\pard\plain \s1\ql {\b The gate\line of the mill}\par
\pard\plain \ql {\f0 It is opened at noon, 4 \'80 each.}\par
\pard\plain \s15 At night\par \pard\plain \s18 Lamps\par
\pard\plain\s19 It is closed\par
\pard\plain\outlinelevel1 By itself\par \pard\plain\cs17 The end of it.\par
{\pard\s1 In a group\par}Behind the group.\par
\pard\bullet\tab a lamp\par\bullet\tab oil\par}"""


def test_headings_of_rich_text_are_those_of_its_styles(tmp_path: Path) -> None:
    """By outline level, by name, by the style below, in a group; a title; a character style and level 9 are none."""
    (tmp_path / "a.rtf").write_bytes(STYLED.encode("latin-1"))
    assert [(block.kind, block.level, block.text) for block in read(tmp_path / "a.rtf").blocks] == [
        ("heading", 1, "The Keeper"),
        ("heading", 1, "The gate of the mill"),
        ("paragraph", 0, "It is opened at noon, 4 € each."),
        ("heading", 2, "At night"),
        ("heading", 4, "Lamps"),
        ("paragraph", 0, "It is closed"),
        ("heading", 2, "By itself"),
        ("paragraph", 0, "The end of it."),
        ("heading", 1, "In a group"),
        ("paragraph", 0, "Behind the group."),
        ("item", 1, "a lamp"),
        ("item", 1, "oil"),
    ]
