"""The example of docs/leadership.md does what the page says."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from troupe import START, until
from up_process import ForkedServer

from hostler.wiring import open_store

PAGE = Path(__file__).parents[3] / "docs" / "leadership.md"


async def test_the_example_counts_on_without_a_gap_over_stops_and_kills(tmp_path: Path) -> None:
    [program] = [text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "main(" in text]
    script = tmp_path / "counter.py"
    script.write_text(program)
    url = f"sqlite://{tmp_path}/store.db"
    processes: list[ForkedServer] = []

    def start(name: str) -> ForkedServer:
        processes.append(ForkedServer([url, name, "2"], tmp_path / f"{name}.log", script=script))
        return processes[-1]

    def leads(process: ForkedServer) -> bool:
        return "under fence" in process.log.read_text()

    try:
        first = start("first")
        await until(lambda: leads(first), START, "the first counts")
        second = start("second")
        third = start("third")
        first.signal(signal.SIGTERM)
        await until(lambda: not first.running, START, "the first has stopped")
        await until(lambda: leads(second) or leads(third), START, "another counts")
        leader, last = (second, third) if leads(second) else (third, second)
        leader.kill()
        await until(lambda: leads(last), START, "the last one counts")
        last.signal(signal.SIGINT)
        await until(lambda: not last.running, START, "the last one has stopped")
    finally:
        for process in processes:
            process.kill()
    said = "".join(process.log.read_text() for process in processes)
    told = sorted((int(fence), int(count)) for count, fence in re.findall(r"(?m)^(\d+) under fence (\d+)$", said))
    async with open_store(url) as store:
        kept = await store.get("/example/counter")
    assert kept is not None
    assert int(kept.value) == kept.version, "each write counted one more"
    assert len({fence for fence, _ in told}) == 3
    counts = [count for _, count in told]
    assert counts == sorted(set(counts)), f"counted twice, or by an older leader: {said}"
    # Who ends between writing and saying so, killed or asked to, leaves out its last one.
    last = {max(count for fence, count in told if fence == led) for led, _ in told}
    assert set(range(1, kept.version + 1)) - set(counts) <= {count + 1 for count in last}, said
