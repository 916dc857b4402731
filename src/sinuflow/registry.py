"""Components that describe themselves as plain data, and the names under which they are rebuilt."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from .errors import ArgumentError, StorageError

Class = TypeVar("Class", bound=type)

_CLASSES: dict[str, type[Component]] = {}


@dataclass(frozen=True)
class Spec:
    """A component as plain data: the name of its class, and the constructor's arguments with defaults filled in.

    Arguments are numbers, strings, booleans, None, lists and dictionaries of these, and further specs.

    Example:
        >>> from sinuflow.bijections import ElementwiseAffine
        >>> ElementwiseAffine(2).spec()
        Spec(name='ElementwiseAffine', arguments={'features': 2})
        >>> print(ElementwiseAffine(2).spec())
        ElementwiseAffine(features=2)
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={_text(value)}' for name, value in self.arguments.items())})"

    def to_json(self) -> dict[str, Any]:
        """The spec as data for JSON; the inverse of :meth:`from_json`."""
        arguments = {name: _to_json(value, f"{name!r} of {self.name}") for name, value in self.arguments.items()}
        return {"class": self.name, "arguments": arguments}

    @classmethod
    def from_json(cls, data: Any) -> Spec:
        """Read :meth:`to_json`'s data, or raise a :class:`ValueError`."""
        if not isinstance(data, dict) or data.keys() != {"class", "arguments"}:
            raise ValueError("a spec must have the keys class and arguments")
        if not isinstance(data["class"], str) or not isinstance(data["arguments"], dict):
            raise ValueError("a spec's class must be a string, and its arguments a dictionary")
        return cls(data["class"], {name: _from_json(value) for name, value in data["arguments"].items()})

    def walk(self) -> Iterator[Spec]:
        """This spec, and those inside of it."""
        yield self
        for value in leaves(self.arguments):
            if isinstance(value, Spec):
                yield from value.walk()

    @property
    def is_registered(self) -> bool:
        """Whether a class is registered under this name."""
        return self.name in _CLASSES

    @property
    def is_own(self) -> bool:
        """Whether the class is one of Sinuflow's, and not a user's."""
        return self.is_registered and _CLASSES[self.name].__module__.startswith(f"{__package__}.")


def _text(value: Any) -> str:
    """An argument as in a call."""
    if isinstance(value, Spec):
        return str(value)
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, list) else repr(value)


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """A copy of lists and dictionaries, in which all that is in them is changed."""
    if isinstance(value, (list, tuple)):
        return [_mapped(change, each) for each in value]
    if isinstance(value, Mapping):
        return {name: _mapped(change, each) for name, each in value.items()}
    return change(value)


def leaves(value: Any) -> Iterator[Any]:
    """All that is in lists and dictionaries."""
    if isinstance(value, (list, Mapping)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from leaves(each)
    else:
        yield value


class Component:
    """A class whose instances know the arguments that they were constructed with.

    Bijections, transformers, conditioners and base distributions are components. A subclass needs nothing but a
    constructor whose arguments are plain data or components.
    """

    #: The arguments as they were passed, components included.
    _spec: Spec
    _recorded_parts: list[tuple[str, Component]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in cls.__dict__:
            cls.__init__ = _recording(cls.__init__)  # type: ignore[method-assign]

    def spec(self) -> Spec:
        """The component's class and arguments, as plain data."""
        recorded = self._recorded_spec()
        return Spec(recorded.name, _mapped(_described, recorded.arguments))

    def check_parts(self) -> None:
        """Raise a :class:`~sinuflow.StorageError` if the components inside of this one were replaced.

        :meth:`spec` would not describe them: it describes the constructor's arguments as they are at present.
        """
        if "_recorded_parts" in self.__dict__ and self._current_parts() != self._recorded_parts:
            raise StorageError(f"the components of a {type(self).__name__} were replaced: construct a new one of them")

    def _current_parts(self: Any) -> list[tuple[str, Component]]:
        """The components inside of this one by name, without those inside of its arguments."""
        arguments: list[Any] = [value for value in leaves(self._spec.arguments) if isinstance(value, Component)]
        inside = {id(module) for argument in arguments for module in argument.modules() if module is not argument}
        named = [(name, module) for name, module in self.named_modules() if isinstance(module, Component)]
        return [(name, module) for name, module in named if module is not self and id(module) not in inside]

    def _recorded_spec(self) -> Spec:
        """The name and the arguments as they were passed, with components themselves."""
        if "_spec" in self.__dict__:
            return self._spec
        cls = type(self)
        if cls.__init__ is not super(Component, cls).__init__ and len(inspect.signature(cls.__init__).parameters) > 1:
            raise StorageError(
                f"the arguments of a {cls.__name__} are not known: define __init__ in the class itself, not in a mixin "
                "or decorator, with arguments that can be passed by name"
            )
        return Spec(_name(cls))


def _recording(constructor: Callable[..., None]) -> Callable[..., None]:
    """A constructor that also stores its arguments, unless a subclass's constructor calls it.

    Nothing is stored of arguments without names, from which no component can be built.
    """
    signature = inspect.signature(constructor)
    parameters = list(signature.parameters.values())[1:]
    named = not any(p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY) for p in parameters)

    @functools.wraps(constructor)
    def construct(self: Component, *args: Any, **kwargs: Any) -> None:
        constructor(self, *args, **kwargs)
        if named and type(self).__init__ is construct:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            arguments: dict[str, Any] = {}
            for parameter in parameters:
                value = bound.arguments[parameter.name]
                arguments.update(value if parameter.kind is parameter.VAR_KEYWORD else {parameter.name: value})
            object.__setattr__(self, "_spec", Spec(_name(type(self)), _mapped(_copyable, arguments)))
            object.__setattr__(self, "_recorded_parts", self._current_parts())

    return construct


def _copyable(value: Any) -> Any:
    """An argument, or its class if it is a generator: it is exhausted, and could not be copied with the component."""
    return type(value) if isinstance(value, Iterator) else value


def _described(value: Any) -> Any:
    return value.spec() if isinstance(value, Component) else value


def _name(cls: type) -> str:
    """The name under which the class is registered, or its qualified name, which no registered class has."""
    return next((name for name, known in _CLASSES.items() if known is cls), f"{cls.__module__}.{cls.__qualname__}")


def _to_json(value: Any, place: str) -> Any:
    if isinstance(value, Spec):
        return value.to_json()
    if isinstance(value, list):
        return [_to_json(each, place) for each in value]
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise StorageError(f"{place} has a dictionary with keys that are not strings, which no file can hold")
        return {"mapping": {name: _to_json(each, place) for name, each in value.items()}}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, numbers.Real):  # NumPy's
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    raise StorageError(
        f"{place} is an argument of type {type(value).__name__}, which no file can hold: "
        "use numbers, strings, lists, dictionaries and registered components"
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(each) for each in value]
    if isinstance(value, dict):
        if value.keys() == {"mapping"} and isinstance(value["mapping"], dict):
            return {name: _from_json(each) for name, each in value["mapping"].items()}
        return Spec.from_json(value)
    return value


@overload
def register(cls: Class, *, name: str | None = None) -> Class: ...
@overload
def register(cls: None = None, *, name: str | None = None) -> Callable[[Class], Class]: ...
def register(cls: Any = None, *, name: str | None = None) -> Any:
    """Register a component's class, so that flows that contain it can be saved and loaded.

    Used as a decorator, ``@register`` or ``@register(name="mylab.Spline")``. A name belongs to one class; defining the
    same class again, as notebooks do, replaces it.

    Example:
        >>> from sinuflow.bijections import Bijection
        >>> @register
        ... class Reversal(Bijection):
        ...     def transform(self, x, context):
        ...         return x.flip(0), x.new_zeros(x.shape[-1])
    """
    if cls is None:
        return functools.partial(register, name=name)
    if isinstance(cls, str):
        raise ArgumentError(f"pass the name by keyword: @sinuflow.register(name={cls!r})")
    if not (isinstance(cls, type) and issubclass(cls, Component)):
        raise ArgumentError("only classes of bijections, transformers, conditioners and bases can be registered")
    key = cls.__name__ if name is None else name
    known = _CLASSES.get(key)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ArgumentError(f"{key!r} is the name of {known.__module__}.{known.__qualname__}: pass another name")
    _CLASSES[key] = cls
    return cls


def registered(name: str) -> type[Component]:
    """The class that is registered under a name; nothing is imported by name."""
    if name not in _CLASSES:
        raise StorageError(
            f"the class {name[:100]!r} is not registered: import the module that defines it, with "
            "@sinuflow.register before the class"
        )
    return _CLASSES[name]


def build(spec: Spec) -> Component:
    """Construct the component that a spec describes, from registered classes alone."""
    arguments = _mapped(lambda value: build(value) if isinstance(value, Spec) else value, spec.arguments)
    return registered(spec.name)(**arguments)
