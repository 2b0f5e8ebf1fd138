"""Deployments: blueprints, slices, endpoints. The decision is the command; there is no allocations key."""

from __future__ import annotations

from hostler.keys.key import Key
from hostler.model.deployment import Blueprint, Endpoint, SliceRecord

BLUEPRINT = Key("blueprints/{blueprint}", Blueprint)
SLICE = Key("slices/{node:name}/{artifact:artifact}", SliceRecord)
ENDPOINT = Key("endpoints/{artifact:artifact}/{method}:{instance:int}", Endpoint)
