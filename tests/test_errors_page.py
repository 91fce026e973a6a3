"""The page of errors is what the source says."""

import ast

import pytest

import errors_page


def test_the_page_is_up_to_date():
    """If it fails: python benchmarks/errors_page.py"""
    assert errors_page.PAGE.read_text("utf-8") == errors_page.page()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise ValueError(f'a must be b; got {x!r}')", [("ValueError", "a must be b; got {…}")]),
        ("warnings.warn('a b ' 'c d', stacklevel=2)", [("warning", "a b c d")]),
        ("raise TypeError('a b c' + name)", [("TypeError", "a b c{…}")]),
        ("raise ValueError(message)", []),
        ("raise StopIteration", []),
    ],
)  # fmt: skip
def test_what_is_said(code, expected):
    assert errors_page.said(ast.parse(code)) == expected
