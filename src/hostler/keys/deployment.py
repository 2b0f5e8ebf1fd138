"""Deployments: blueprints, slices, endpoints. The slice record is the command; there is no allocations key.

Records that the contract does not name are under `/hostler/v1/`: history, owners, rollout progress, retries, reasons.
"""

from __future__ import annotations

from hostler.keys.key import Key
from hostler.model.deployment import Blueprint, Endpoint, SliceRecord
from hostler.model.rollout import (
    Alert,
    ArtifactRecord,
    BlueprintRevision,
    Deployment,
    Retries,
    RouterRecord,
    SliceDecision,
    SliceOwner,
)

BLUEPRINT = Key("blueprints/{blueprint:name}", Blueprint)
SLICE = Key("slices/{node:name}/{artifact:artifact}", SliceRecord)
ENDPOINT = Key("endpoints/{artifact:artifact}/{method}:{instance:int}", Endpoint)
"""The keys of all versions of a slice begin with `endpoints_of(base)`."""

BLUEPRINT_HISTORY = Key("/hostler/v1/blueprint-history/{blueprint:name}/{number:int}", BlueprintRevision)
SLICE_OWNER = Key("/hostler/v1/slice-owners/{base:base}", SliceOwner)
DEPLOYMENT = Key("/hostler/v1/deployments/{base:base}", Deployment)
RETRIES = Key("/hostler/v1/slice-retries/{artifact:artifact}", Retries)
SLICE_DECISION = Key("/hostler/v1/slice-decisions/{artifact:artifact}", SliceDecision)
ALERT = Key("/hostler/v1/alerts/{base:base}/{alert}", Alert)
ARTIFACT = Key("/hostler/v1/artifacts/{artifact:artifact}", ArtifactRecord)
"""Published artifacts, wherever their files are. Written by the replica that received the file."""
ROUTER = Key("/hostler/v1/routers/{router}", RouterRecord)
"""Attached to the lease of the process."""


def endpoints_of(base: str) -> str:
    """Return the common prefix of the endpoint keys of all versions of `group:name`."""
    return f"{ENDPOINT.prefix()}{base}:"
