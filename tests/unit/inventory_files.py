"""Inventories for tests: files, and values that hypothesis draws."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SMALL = """\
regions:
  - name: EU
    zones:
      - name: eu-1
        racks:
          - name: r1
            location: hall 2
            pdus: [{name: pdu1, ports: 10}, {name: pdu2, ports: 10}]
            tors: [{name: tor1, ports: 8}]
            blades: {count: 4, cpus: 16, memory: 64GiB, disk: 500GiB, labels: {disk: ssd}}
          - name: R2
            pdus: [{name: pdu1, ports: {1: a, 2: big, 3: tor1, 9: null}}]
            tors: [{name: tor1, ports: 3}]
            blades:
              - {name: a, cpus: 4, memory: 512MiB, condition: burn_in}
              - {name: big, cpus: 64, memory: 1TiB, network_mbps: 10000, enabled: false}
racks:
  - name: lone
    pdus: [{name: p, ports: 2}]
    tors: [{name: t, ports: 2}]
    blades: {count: 2, prefix: ""}
"""


def rack(name: str = "r1", **more: Any) -> dict[str, Any]:
    """A rack of two blades, as JSON."""
    return {
        "name": name,
        "pdus": [{"name": "pdu1", "ports": 4}],
        "tors": [{"name": "tor1", "ports": 4}],
        "blades": {"count": 2, "cpus": 8, "memory": "16GiB"},
        **more,
    }


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Documents that are right, and like each other: two of them share names."""
    names = iter(draw(st.permutations(["r1", "R2", "r3", "r10"])))
    some_racks = st.integers(0, 2)
    regions = [
        {
            **_own(draw, region),
            "zones": [
                {**_own(draw, zone), "racks": [_rack(draw, next(names)) for _ in range(draw(some_racks) // 2)]}
                for zone in draw(st.sampled_from([[], ["z1"], ["z1", "z2"]]))
            ],
        }
        for region in draw(st.sampled_from([[], ["eu"], ["eu", "us"]]))
    ][:2]
    return {"regions": regions, "racks": [_rack(draw, name) for name in list(names)[: draw(some_racks)]]}


def _own(draw: st.DrawFn, name: str) -> dict[str, Any]:
    standing = draw(
        st.sampled_from([{}, {}, {}, {"enabled": False}, {"condition": "retiring"}, {"condition": "operational"}])
    )
    return {"name": name, **standing}


def _rack(draw: st.DrawFn, name: str) -> dict[str, Any]:
    count = draw(st.integers(1, 4))
    ports = draw(st.integers(count, count + 3))
    explicit = {str(n): f"b{n}" for n in range(1, count + 1) if draw(st.booleans())} | {str(ports): None}
    feeds = [{**_own(draw, f"pdu{n}"), "ports": ports} for n in range(1, draw(st.integers(1, 2)) + 1)]
    tors = [{**_own(draw, "tor1"), "ports": draw(st.sampled_from([ports, explicit]))}]
    alike = {"count": count, "cpus": draw(st.integers(1, 3)), "memory": "1GiB", "labels": {"n": name}}
    single = [{**_own(draw, f"b{n}"), "cpus": n, "memory": f"{n}GiB", "disk": "10GiB"} for n in range(1, count + 1)]
    return {
        **_own(draw, name),
        "location": draw(st.sampled_from(["", "hall 2"])),
        "pdus": feeds,
        "tors": tors,
        "blades": draw(st.sampled_from([alike, single])),
    }
