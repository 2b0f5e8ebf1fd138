"""The parent class of all records: JSON encoding, decoding errors, and preservation of unknown data.

A record is a frozen value. Its JSON uses the names of the contracts. Decoding and encoding a record loses nothing:
fields that this release does not know are preserved at every depth, byte for byte, and so are unknown values of its
enums (`OpenEnum`).

Implementation: a typed decoder that rejects unknown fields decodes the usual record in one pass. Only if that fails are
the unknown fields moved, level by level, into one separate field (`unknown`), and the same decoder reads the result.
"""

from __future__ import annotations

import enum
import functools
import re
import types
from contextvars import ContextVar
from typing import Annotated, Any, ClassVar, Self, TypeAlias, Union, get_args, get_origin

import msgspec

from hostler.errors import Damaged, Invalid

_UNKNOWN = "hostler:unknown"
_MARK = _UNKNOWN.encode()
_ESCAPE = b"\\u"

Fields: TypeAlias = dict[str, msgspec.Raw]
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
_accepts_unknown: ContextVar[bool] = ContextVar("accepts unknown values", default=False)
"""Whether the running decoder accepts enum values that this release does not know."""


class OpenEnum(enum.StrEnum):
    """The parent of every enum in a record: a set of values that a later release may extend.

    `Record.decode` (unless strict) accepts a value that this release does not know. The value is then an instance of
    the enum that is none of its members (`is_known`), equals its text, and is written back as that text. Code compares
    with the members that it knows and treats every other value in the cautious way specified by decision 10
    (`docs/decisions`). Calling the enum with an unknown text raises ValueError, as usual.
    """

    @property
    def is_known(self) -> bool:
        return self._value_ in type(self)._value2member_map_

    @property
    def words(self) -> str:
        """Return the text for display; an unknown value is marked as unknown."""
        text = self._value_.lower().replace("_", " ")
        return text if self.is_known else f"unknown ({text})"

    @classmethod
    def _missing_(cls, value: object) -> OpenEnum | None:
        if not (_accepts_unknown.get() and isinstance(value, str) and _WORD.fullmatch(value)):
            return None
        unknown = str.__new__(cls, value)
        unknown._name_ = unknown._value_ = value
        return unknown


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The parent of every stored value. Records hold no cycles, so the garbage collector does not track them.

    A field added in a later release has a default, so that older JSON stays readable. If that is not enough, the record
    overrides `lift`. A field that a contract allows to be absent is `UNSET` while absent, and is then not written.
    """

    unknown: Fields | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name=_UNKNOWN)
    """Unknown fields of the JSON, unchanged. A modified copy (`msgspec.structs.replace`) keeps them."""

    kind: ClassVar[str] = ""
    """Name used in error messages; the class name if empty."""

    concealed: ClassVar[frozenset[str]] = frozenset()
    """Secret fields: `repr` hides their values, and therefore so do messages and logs."""

    def __repr__(self) -> str:
        if not self.concealed:
            return super().__repr__()
        shown = (
            f"{name}={'…' if name in self.concealed and value else repr(value)}"
            for name, value in ((name, getattr(self, name)) for name in self.__struct_fields__)
        )
        return f"{type(self).__name__}({', '.join(shown)})"

    def encode(self) -> bytes:
        """Return compact JSON. Raise Invalid if decoding it would not return an equal record."""
        try:
            plain = msgspec.json.encode(self)
        except (TypeError, ValueError, RecursionError) as error:
            raise Invalid(f"{_name(type(self))}: cannot be written as JSON: {error}; correct the record") from None
        data = plain
        if _MARK in plain:
            data = bytes(_scatter(type(self), msgspec.Raw(plain)))
        if type(self).decode(data) != self:
            raise Invalid(
                f"{_name(type(self))}: its JSON would be read back as another value; give each field a value of its"
                f" type: {self!r}"
            )
        return data

    @classmethod
    def decode(cls, data: bytes, *, strict: bool = False) -> Self:
        """Return the record in `data`. With `strict` (for user input), an unknown field or value is an error.

        Raise Invalid if `data` is not such a record. The message names the record kind, the JSON path and what was
        expected.
        """
        fault = None
        if _MARK not in data and _ESCAPE not in data:  # an escape could spell the name of the field for unknown data
            try:
                return _decoder(cls).decode(data)  # type: ignore[no-any-return]
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                fault = error
        if strict and isinstance(fault, msgspec.ValidationError):
            raise _refusal(cls, fault)
        accepts = _accepts_unknown.set(not strict)
        try:
            data.decode()  # preserved values are not parsed, but must be UTF-8 too
            record: Self = _decoder(cls).decode(_gather(cls, msgspec.Raw(data)))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _refusal(cls, error) from None
        finally:
            _accepts_unknown.reset(accepts)
        if strict:
            _refuse_unknown(cls, data)
        return record

    @classmethod
    def stored(cls, data: bytes, *, where: str) -> Self:
        """Return the record stored at `where`. Raise Damaged if the stored value is not such a record."""
        try:
            return cls.decode(data)
        except Invalid as error:
            raise Damaged(f"{where}: {error}; correct the value or delete the key") from None

    @classmethod
    def lift(cls, fields: Fields) -> Fields:
        """Convert the fields of an older schema to the current one. Fields of the current schema must pass unchanged.

        Called only for JSON that does not decode as the current schema, so a change of meaning needs a new field name.
        """
        return fields


@functools.cache
def _decoder(cls: type[Record]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(cls)


_fields_of = msgspec.json.Decoder(Fields)
_items_of = msgspec.json.Decoder(list[msgspec.Raw])


def _name(cls: type[Record]) -> str:
    return cls.kind or cls.__name__


SAYS: dict[str, str] = {}
"""Human-readable meanings of patterns, for error messages. Models register their patterns here."""


def _refusal(cls: type[Record], error: Exception) -> Invalid:
    what, _, path = str(error).partition(" - at ")
    for pattern, meaning in SAYS.items():
        what = what.replace(f"matching regex {pattern!r}", meaning)
    path = path.replace(f"{_UNKNOWN}.", "").replace("`", "") or "$"
    if isinstance(error, RecursionError):
        what = "nested too deeply"
    what = what.replace("`", "")
    first = what[:1] if what[1:2].isupper() else what[:1].lower()  # keep "JSON" in capitals
    return Invalid(f"{_name(cls)} at {path}: {first}{what[1:]}")


def _refuse_unknown(cls: type[Record], data: bytes) -> None:
    """Raise Invalid if there are unknown fields. Used for JSON with escapes, which the plain decoder does not see."""
    plain = msgspec.json.encode(msgspec.json.decode(data))
    try:
        _decoder(cls).decode(plain)
    except msgspec.ValidationError as error:
        raise _refusal(cls, error) from None
    if _MARK in plain and _UNKNOWN in msgspec.json.decode(data):
        raise Invalid(f"{_name(cls)} at $: object contains unknown field {_UNKNOWN}")


# Records nested in records. A shape is a record class, a list or dict of shapes, or None (no record inside).

_Shape: TypeAlias = type[Record] | tuple[str, Any] | None


@functools.cache
def _shapes(cls: type[Record]) -> tuple[frozenset[str], dict[str, _Shape]]:
    """Return the field names of a record, and the shapes of those fields that contain records."""
    infos = [info for info in msgspec.structs.fields(cls) if info.encode_name != _UNKNOWN]
    shapes = {info.encode_name: _shape(info.type) for info in infos}
    return frozenset(shapes), {name: shape for name, shape in shapes.items() if shape is not None}


def _shape(type_: Any) -> _Shape:
    if isinstance(type_, type) and issubclass(type_, Record):
        return type_
    origin, inside = get_origin(type_), get_args(type_)
    if origin is Annotated:
        return _shape(inside[0])
    if origin in (Union, types.UnionType):
        found = [shape for shape in map(_shape, inside) if shape is not None]
        if len(found) > 1:
            raise TypeError(f"{type_}: a field holds one kind of record")
        return found[0] if found else None
    if origin in (list, tuple):
        inner = _shape(inside[0])
        return ("list", inner) if inner is not None else None
    if origin is dict:
        inner = _shape(inside[1])
        return ("dict", inner) if inner is not None else None
    return None


def _walk(shape: _Shape, raw: msgspec.Raw, visit: Any) -> msgspec.Raw:
    """Return `raw` with every nested record passed through `visit`. A value of another shape is returned unchanged."""
    try:
        if isinstance(shape, type):
            return visit(shape, raw)  # type: ignore[no-any-return]
        if isinstance(shape, tuple) and shape[0] == "list":
            return _join([_walk(shape[1], item, visit) for item in _items_of.decode(raw)])
        if isinstance(shape, tuple):
            return _join({name: _walk(shape[1], item, visit) for name, item in _fields_of.decode(raw).items()})
    except msgspec.ValidationError:  # not an object or array: the typed decoder reports it
        return raw
    return raw


def _join(parts: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(parts))


def _gather(cls: type[Record], raw: msgspec.Raw) -> msgspec.Raw:
    """Move the fields that `cls` does not know into one separate field, also in nested records."""
    known, shapes = _shapes(cls)
    fields: Fields = {}
    unknown: Fields = {}
    for name, value in cls.lift(_fields_of.decode(raw)).items():
        if name in known:
            fields[name] = _walk(shapes.get(name), value, _gather)
        else:
            unknown[name] = value
    if unknown:
        fields[_UNKNOWN] = _join(unknown)
    return _join(fields)


def _scatter(cls: type[Record], raw: msgspec.Raw) -> msgspec.Raw:
    """Undo `_gather`."""
    _, shapes = _shapes(cls)
    fields = _fields_of.decode(raw)
    unknown = fields.pop(_UNKNOWN, None)
    whole = {name: _walk(shapes.get(name), value, _scatter) for name, value in fields.items()}
    if unknown is not None:
        whole |= {name: value for name, value in _fields_of.decode(unknown).items() if name not in whole}
    return _join(whole)
