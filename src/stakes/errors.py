"""The one exception, and the one warning, that stakes raises on purpose; and what their messages are made of."""

import reprlib
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class StakesError(ValueError):
    """Something the user gave cannot be used.

    The message says what was expected, what came instead, where, and what to do about it, in one
    line: the command line prints it as it is.
    """


class StakesWarning(UserWarning):
    """Something the user gave can be used, but is probably not what was meant."""


class _ColumnsError(StakesError):
    """The errors of several columns, which stay apart when they are gathered once more."""

    def __init__(self, messages: list[str]) -> None:
        shown = [f"({number}) {message.removeprefix('column ')}" for number, message in enumerate(messages, 1)]
        super().__init__(f"{len(shown)} columns cannot be used: {' '.join(shown)}")
        self.messages = messages


class Refusals:
    """What is wrong with several columns, gathered and then refused at once: one run shows all of it."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    @contextmanager
    def gather(self) -> Iterator[None]:
        """Keep the message of a `StakesError` and go on after the block."""
        try:
            yield
        except _ColumnsError as error:
            self.messages += error.messages
        except StakesError as error:
            self.messages.append(str(error))

    def refuse(self) -> None:
        """Raise one error for all of them, if there are any."""
        if self.messages:
            raise StakesError(self.messages[0]) if len(self.messages) == 1 else _ColumnsError(self.messages)


_REPR = reprlib.Repr()
_REPR.maxstring = 200


def quoted(value: object) -> str:
    """A value of a user's in quotation marks, for an error message; a long text with its middle left out."""
    return _REPR.repr(value) if isinstance(value, str) else repr(value)


def listing(names: object, limit: int = 8) -> str:
    """``a, b, c``: a few names for an error message, with the number left out if there are many."""
    shown = [quoted(name) for name in names]  # type: ignore[attr-defined]
    if len(shown) > limit + 1:  # one more takes no more room than saying so
        shown = [*shown[:limit], f"and {len(shown) - limit} more"]
    return ", ".join(shown)


def joined_names(names: Iterable[object]) -> str:
    """``a,b`` for an option that takes several names, with quotation marks around one that has a comma in it."""
    texts = map(str, names)
    return ",".join('"' + text.replace('"', '""') + '"' if set(text) & set(',"') else text for text in texts)


def typed(option: str, *names: object) -> str:
    """``--drop 'Patient ID'``: an option that takes several names, as it is typed in a shell."""
    return f"{option} {shlex.quote(joined_names(names))}"
