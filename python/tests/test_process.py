"""The package in processes and threads, and the command line that it brings."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

import bucketeer
from test_text import SMALL

COMMAND = [sys.executable, "-m", "bucketeer"]


def rewritten(text: str) -> str:
    return bucketeer.rewrite(text, all_reduce="1KiB").text


def test_the_import_is_light_and_needs_no_framework() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import bucketeer; end = time.perf_counter()\n"
        "heavy = {'json', 'dataclasses', 'inspect', 'typing', 'bucketeer._native', 'torch', 'jax', 'numpy'} & sys.modules.keys()\n"
        "print(f'{(end - start) * 1e3:.1f}', sorted(heavy))\n"
        "bucketeer.rewrite(sys.argv[1])\n"
        "print(sorted({'torch', 'jax', 'numpy'} & sys.modules.keys()))\n"
    )
    # Without the modules of packages that are installed, some of which load others at each start.
    folder = str(pathlib.Path(bucketeer.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code, SMALL], capture_output=True, text=True, check=True, env={"PYTHONPATH": folder}
    )
    first, second = ran.stdout.splitlines()
    print(f"import bucketeer: {first.split()[0]} ms")
    assert first.split(maxsplit=1)[1] == "[]" and second == "[]"


def test_what_is_listed_is_there_and_nothing_else() -> None:
    for name in bucketeer.__all__:
        assert getattr(bucketeer, name) is not None and name in dir(bucketeer)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        bucketeer.nothing  # type: ignore[attr-defined]
    assert subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True).stdout.startswith(
        f"bucketeer {bucketeer.__version__}"
    )


def test_other_threads_go_on_meanwhile(fixtures: pathlib.Path) -> None:
    folder = fixtures / "plan/llama8b_l4_n8_t2048"
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.005)

    ticking = threading.Thread(target=tick)
    ticking.start()
    start = time.monotonic()
    bucketeer.plan(folder / "graph.txt", costs=folder / "costs.json")
    end = time.monotonic()
    done.set()
    ticking.join()
    meanwhile = [at for at in ticks if start < at < end]
    # If the interpreter were held, there would be one at either end at most.
    assert len(meanwhile) > 10, f"{len(meanwhile)} in {end - start:.3f} s"


def test_threads_do_not_hear_one_another(fx: str) -> None:
    wanted = {"quiet": bucketeer.rewrite(SMALL, all_reduce="1KiB", quiet=True), "loud": bucketeer.rewrite(fx, explain=True)}
    found: list[tuple[str, object]] = []

    def work(name: str) -> None:
        for _ in range(10):
            done = bucketeer.rewrite(SMALL, all_reduce="1KiB", quiet=True) if name == "quiet" else bucketeer.rewrite(fx, explain=True)
            found.append((name, (done.text, done.said, done.json)))

    threads = [threading.Thread(target=work, args=(name,)) for name in ("quiet", "loud") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    for name, done in found:
        assert done == (wanted[name].text, wanted[name].said, wanted[name].json)
    assert wanted["quiet"].said == () and len(wanted["loud"].said) > 20


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_processes_that_are_forked_or_spawned_work(method: str) -> None:
    before = rewritten(SMALL)
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(rewritten, [SMALL] * 4) == [before] * 4


def test_the_command_line_takes_pipes_and_says_what_it_says(fx: str) -> None:
    ran = subprocess.run([*COMMAND, "rewrite", "-"], input=fx, capture_output=True, text=True, check=True)
    assert ran.stdout == bucketeer.rewrite(fx).text and "proven equal" in ran.stderr
    for words, code in ((["rewrite", "--no-such"], 2), (["--help"], 0), (["inspect", "missing.txt"], 2), ([], 2)):
        assert subprocess.run([*COMMAND, *words], capture_output=True, check=False).returncode == code, words
    assert subprocess.run([*COMMAND, "inspect", "-"], input=b"x = ", capture_output=True, check=False).returncode == 1


def test_whoever_reads_no_further_is_no_fault(fx: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run([*COMMAND, "rewrite", "-"], input=fx.encode(), stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert ran.returncode == 0 and b"error" not in ran.stderr


def test_the_console_script_is_the_same_command_line() -> None:
    script = pathlib.Path(sys.executable).parent / "bucketeer"
    ran = subprocess.run([script, "rewrite", "-", "--all-reduce=1KiB"], input=SMALL, capture_output=True, text=True, check=True)
    assert ran.stdout == rewritten(SMALL)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_an_interrupt_stops_the_command_line() -> None:
    # It waits for a graph that never comes.
    running = subprocess.Popen([*COMMAND, "rewrite", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    waited_for = time.monotonic() + 30
    status = pathlib.Path(f"/proc/{running.pid}/status")
    # Until the default is back: Python catches interrupts from its start on.
    while time.monotonic() < waited_for and not is_stopped_by_interrupts(status):
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=10) == -signal.SIGINT
    assert running.communicate()[1] == b""


def is_stopped_by_interrupts(status: pathlib.Path) -> bool:
    """Whether a process that runs the command line neither catches nor ignores interrupts."""
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    caught, ignored = (int(lines[name], 16) for name in ("SigCgt", "SigIgn"))
    bit = 1 << (signal.SIGINT - 1)
    # Python ignores closed pipes early, before it catches interrupts.
    started = ignored & (1 << (signal.SIGPIPE - 1))
    command = "bucketeer" in (status.parent / "maps").read_text()
    return bool(started and command) and not (caught | ignored) & bit


@pytest.mark.skipif(sys.platform == "win32", reason="processes of Unix")
def test_ranks_are_launched_by_the_command_line_that_is_there() -> None:
    ranks = subprocess.run([*COMMAND, "launch", "--nproc", "2", "--", "--version"], capture_output=True, text=True, check=True)
    assert ranks.stdout.startswith(f"bucketeer {bucketeer.__version__}")
    assert "[rank 1] bucketeer" in ranks.stderr
    code = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
    words = ["launch", "--nproc", "2", "--", "exec", sys.executable, "-c", code]
    own = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=True)
    assert own.stdout == "rank 0 of 2\n" and "[rank 1] rank 1 of 2" in own.stderr
