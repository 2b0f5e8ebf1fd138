"""Conformance suite of the slices port: what a driver must do, one claim at a time.

    from hostler.testing import SliceSetup, check_slices

    async def test_my_driver_runs_slices(tmp_path):
        await check_slices(lambda: MySlices(tmp_path), setup=SliceSetup(artifact="org:echo:1", other="org:echo:2"))

For a separate test of each claim, use `slice_claims()` as with the other suites. The driver runs real instances of the
artifacts that the setup names, a few at a time, and all are removed.
"""

from __future__ import annotations

from hostler.testing.slices.claim import (
    OpenSlices,
    SliceClaim,
    SliceSetup,
    SliceTrial,
    check_slices,
    slice_claims,
)

__all__ = ["OpenSlices", "SliceClaim", "SliceSetup", "SliceTrial", "check_slices", "slice_claims"]
