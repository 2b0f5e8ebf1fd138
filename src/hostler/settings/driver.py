"""Installed drivers: found by name, without the package naming one.

A driver is an object, its descriptor, to which an entry point of its distribution refers:

    [project.entry-points."hostler.machines"]
    NAME = "package.module:DESCRIPTOR"

Drivers of Hostler itself are also in `hostler.drivers.BUILT_IN`, and that table counts for them: it is part of the
code, while the metadata of a checkout is as old as its last installation. A driver that cannot be loaded is left out
with one line that says why; the others work.
"""

from __future__ import annotations

import difflib
from functools import cache, cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hostler.errors import Invalid
from hostler.settings.option import OPTIONS, STORAGE_OPTIONS, Option
from hostler.settings.value import COMMAND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hostler.model.lab import LabTemplate

MACHINES, STORES, TTL, POWER = GROUPS = ("hostler.machines", "hostler.stores", "hostler.ttl", "hostler.power")
"""The groups of entry points. Names: the kind of machines; the URL scheme of a store, a TTL storage, a power switch."""
OURS = "hostler"
"""The distribution whose drivers are in `BUILT_IN`."""
TO_ADD = "to add one, install its package where Hostler is installed (hostler config drivers)"
MOST = 200
"""Characters of a foreign error message that are repeated."""


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """The descriptor of a driver. Its module is imported often, so it must not import the driver itself."""

    about: str
    """What it is, in a few words; for help texts."""
    options: tuple[Option, ...] = ()
    """Its settings. Their values are in `Settings.driver_options`."""


class MachineDriverSettings(Driver, frozen=True, kw_only=True):
    """The part of the descriptor of a machine driver that settings and the lab catalogue use."""

    lab_refusal: Callable[[LabTemplate], str] | None = None
    """Return why machines cannot be created for labs of a template, "WHAT; ADVICE"; empty: they can."""


D = TypeVar("D", bound=Driver)


class Reference(msgspec.Struct, frozen=True):
    """Where a driver is, before it is loaded."""

    name: str
    value: str
    """`MODULE:ATTRIBUTE`."""
    distribution: str
    """`NAME VERSION`, for people."""


class Group:
    """The installed drivers of one group, by name. Each is loaded on first use."""

    def __init__(self, group: str, ours: Mapping[str, str]) -> None:
        self._group = group
        self._ours = {name: Reference(name, value, OURS) for name, value in ours.items()}
        self._loaded: dict[str, object] = {}
        self._broken: dict[str, str] = {}

    @cached_property
    def _references(self) -> Mapping[str, Reference]:
        found = dict(self._ours)
        foreign = sorted(_foreign(self._group), key=lambda reference: (reference.name, reference.distribution))
        for reference in foreign:
            first = found.setdefault(reference.name, reference)
            if first.value != reference.value and first.distribution == OURS:
                self._broken[f"{reference.name} of {reference.distribution}"] = f"the name is taken by {OURS}"
            elif first.value != reference.value:  # which one is meant must not depend on the order of a folder
                self._broken[reference.name] = f"{first.distribution} and {reference.distribution} both have this name"
        return found

    def _reference(self, name: str) -> Reference | None:
        """Return where a driver is. Other packages are looked through only for names that are not ours."""
        return self._ours.get(name) or self._references.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all drivers that are not known to be broken."""
        return tuple(name for name in self._references if name not in self._broken)

    @property
    def broken(self) -> Mapping[str, str]:
        """Return the drivers that cannot be used, as far as known, and why."""
        _ = self._references  # names that are taken twice
        return self._broken

    def has(self, name: str) -> bool:
        """Return whether a driver of that name is installed, usable or not."""
        return self._reference(name) is not None

    def distribution(self, name: str) -> str:
        """Return the distribution that a driver is from."""
        return self._references[name].distribution

    def get(self, name: str, kind: type[D], what: str) -> D:
        """Return the driver of that name. Invalid: there is none, or it cannot be used; `what` is the subject."""
        reference = self._reference(name)
        if reference is None:
            raise Invalid(f"{what} {name!r}: {self.unknown()}")
        found = self._load(reference, kind)
        if found is None:
            who = reference.distribution
            raise Invalid(
                f"{what} {name!r}: the driver of {who} cannot be used: {self._broken[name]}; repair or remove it"
            )
        return found

    def unknown(self) -> str:
        """Return the message about a name that is not installed: what is, and how to add one."""
        known = ", ".join(self.names)
        broken = "".join(f"; {name} is installed and cannot be used: {why}" for name, why in self._broken.items())
        return f"unknown; known are {known}{broken}; {TO_ADD}"

    def all(self, kind: type[D]) -> Iterator[tuple[str, D]]:
        """Return the drivers that can be used, those of Hostler first."""
        for name, reference in self._references.items():
            found = self._load(reference, kind)
            if found is not None:
                yield name, found

    def disable(self, name: str, why: str) -> None:
        """Leave a driver out."""
        self._broken[name] = why

    def _load(self, reference: Reference, kind: type[D]) -> D | None:
        name = reference.name
        if name in self._broken:
            return None
        try:
            found = self._loaded[name] = self._loaded.get(name) or _loaded(reference.value)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an import runs foreign code, which may raise anything
            self._broken[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:MOST]}"
            return None
        if not isinstance(found, kind):
            self._broken[name] = f"{reference.value} is a {type(found).__name__}, not the descriptor of such a driver"
            return None
        return found


def _loaded(value: str) -> object:
    module, _, attributes = value.partition(":")
    found: Any = import_module(module)
    for attribute in attributes.split("."):
        found = getattr(found, attribute)
    return found


@cache
def installed(group: str) -> Group:
    """Return the installed drivers of a group of `GROUPS`."""
    # By name, because drivers are above the settings: to find them is what entry points are for.
    return Group(group, import_module("hostler.drivers").BUILT_IN[group])


def forget() -> None:
    """Look for installed drivers again: for tests."""
    for cached in (installed, driver_options, _all_foreign):
        cached.cache_clear()


def _foreign(group: str) -> list[Reference]:
    return [reference for of, reference in _all_foreign() if of == group]


@cache
def _all_foreign() -> tuple[tuple[str, Reference], ...]:
    """Return the drivers of other distributions, each with its group."""
    from importlib import metadata  # slow to import, and not needed to open a store of ours

    found: dict[str, list[tuple[str, Reference]]] = {}
    for each in metadata.distributions():
        try:
            if "[hostler." not in (each.read_text("entry_points.txt") or "") or each.name in (OURS, *found):
                continue  # the first of two distributions of one name is the one that is imported
            who = f"{each.name} {each.version}"
            found[each.name] = [(one.group, Reference(one.name, one.value, who)) for one in each.entry_points]
        except Exception:  # noqa: BLE001, S112 - one package whose metadata is damaged must not hide the others
            continue
    return tuple(one for of_one in found.values() for one in of_one if one[0] in GROUPS)


@cache
def driver_options() -> tuple[Option, ...]:
    """Return the settings of all machine drivers. A driver whose settings have names of others is left out."""
    group = installed(MACHINES)
    found: list[Option] = []
    taken = {each for option in (*OPTIONS, *STORAGE_OPTIONS) for each in _names(option)}
    for name, driver in group.all(MachineDriverSettings):
        names = [each for option in driver.options for each in _names(option)]
        doubled = next((each for each in names if each in taken or names.count(each) > 1), None)
        if doubled is not None:
            group.disable(name, f"its setting {doubled} already exists")
            continue
        taken |= set(names)
        found += driver.options
    return tuple(found)


def _names(option: Option) -> list[str]:
    return list(dict.fromkeys((option.name, option.in_file, *option.variables)))


def all_options() -> tuple[Option, ...]:
    """Return all settings: those of Hostler, and those of the installed machine drivers."""
    return (*OPTIONS, *driver_options())


def power_urls() -> tuple[str, ...]:
    """Return how the URL of a power switch may begin."""
    return (*(f"{name}://" for name in installed(POWER).names), COMMAND)


def machine_kinds() -> tuple[str, ...]:
    """Return the names of the machine drivers."""
    driver_options()  # leaves those out whose settings cannot be
    return installed(MACHINES).names


def broken_drivers() -> list[str]:
    """Return a line about each installed driver that cannot be used, as far as known."""
    machine_kinds()
    return [
        f"driver {name} ({group}) is left out: {why}"
        for group in GROUPS
        for name, why in installed(group).broken.items()
    ]


def nearest_kind(name: str) -> str:
    """Return advice about a machine driver that is not installed: a similar one, or the known ones."""
    near = difflib.get_close_matches(name.lower(), machine_kinds(), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(machine_kinds())}; {TO_ADD}"


def lab_refusal(template: LabTemplate) -> str:
    """Return why the machine driver of a lab template cannot create machines for it; empty: it can, or may be any."""
    if not template.provider:
        return ""
    check = installed(MACHINES).get(template.provider, MachineDriverSettings, "machines").lab_refusal
    return "" if check is None else check(template)
