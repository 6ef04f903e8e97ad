"""Names for classes that saved models and settings refer to: ours, and a user's."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from stakes.errors import StakesError, listing

T = TypeVar("T")


class Registry(Generic[T]):
    """Classes by name, open to users.

    >>> shapes = Registry("shape")
    >>> @shapes.register("circle")
    ... class Circle: ...
    >>> shapes["circle"].__name__
    'Circle'
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._classes: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """A class decorator; a name that is taken is refused, unless the class is the same one defined again."""

        def add(registered: type[T]) -> type[T]:
            known = self._classes.get(name)
            if known is not None and known.__qualname__ != registered.__qualname__:
                raise StakesError(f"the {self.what} {name!r} is registered already, as {known.__qualname__}")
            self._classes[name] = registered
            return registered

        return add

    def __getitem__(self, name: object) -> type[T]:
        if name not in self._classes:
            raise StakesError(
                f"expected a {self.what} of {listing(self)}, but got {name!r}; if it is your own, import the module "
                "that registers it first"
            )
        return self._classes[str(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    @property
    def classes(self) -> tuple[type[T], ...]:
        return tuple(self._classes.values())

    def name_of(self, registered: type) -> str:
        """The name that a class is registered by."""
        for name, known in self._classes.items():
            if known is registered:
                return name
        raise StakesError(
            f"{registered.__qualname__} is no registered {self.what}: give it a name with the decorator `register`"
        )
