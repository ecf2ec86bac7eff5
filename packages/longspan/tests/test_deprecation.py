"""What is deprecated works, warns where it is called, and names what to use instead."""

from __future__ import annotations

import inspect
import warnings

import pytest

from longspan.deprecation import deprecated, renamed_parameter
from longspan.errors import InputError


@deprecated(since="1.1", removed_in="2.0", use="longspan.new")
def old(number: int) -> int:
    """Doubles."""
    return 2 * number


@deprecated(since="1.1", removed_in="2.0", use="longspan.New")
class Old:
    def __init__(self, size: int = 3) -> None:
        self.size = size


@renamed_parameter("tokens", "max_tokens", since="1.2", removed_in="3.0")
def renamed(text: str, *, max_tokens: int = 5) -> tuple[str, int]:
    return text, max_tokens


def test_a_function_works_and_warns_with_the_line_of_its_caller() -> None:
    message = r"^old is deprecated since Longspan 1\.1 and will be removed in 2\.0; use longspan\.new$"
    with pytest.warns(FutureWarning, match=message) as caught:
        assert old(4) == 8
    assert caught[0].filename == __file__
    assert old.__doc__ == "Doubles."
    assert str(inspect.signature(old)) == "(number: 'int') -> 'int'"


def test_an_instance_and_a_subclass_warn_and_the_class_stays_one() -> None:
    with pytest.warns(FutureWarning, match=r"^Old is deprecated .*; use longspan\.New$"):
        made = Old(size=7)
    assert made.size == 7
    assert isinstance(made, Old)
    with pytest.warns(FutureWarning, match="Old is deprecated"):

        class Older(Old):
            pass


def test_a_parameter_is_taken_by_both_names() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert renamed("a", max_tokens=7) == ("a", 7)
        assert renamed("a") == ("a", 5)
    message = r"^tokens= of renamed is deprecated since Longspan 1\.2 and will be removed in 3\.0; use max_tokens=$"
    with pytest.warns(FutureWarning, match=message) as caught:
        assert renamed("a", tokens=7) == ("a", 7)
    assert caught[0].filename == __file__
    assert list(inspect.signature(renamed).parameters) == ["text", "max_tokens"]
    with pytest.raises(InputError, match="tokens= is the earlier name of max_tokens=; give max_tokens= only"):
        renamed("a", tokens=7, max_tokens=8)
    with pytest.raises(TypeError, match="token"):
        renamed("a", token=7)


def test_a_line_that_calls_twice_warns_once() -> None:
    """By Python's default filter; what users see."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            old(1)
            renamed("a", tokens=1)
    assert len(caught) == 2
