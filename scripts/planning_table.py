#!/usr/bin/env python3
"""Plan all instances and write the table of docs/planning.md.

    planning_table.py INSTANCES JUDGE [--bucketeer PATH] [--efforts low,default,high] [--caps normal,tight]
                      [--jobs N] [--only WORD] [--page docs/planning.md]

INSTANCES is a folder of training steps, each with graph.txt (or .gz), costs.json and baseline.json; JUDGE is a program
that replays a rewritten text by rules of its own (`JUDGE GRAPH COSTS --text TEXT --cap CAP`) and prints what it takes as
JSON. Every number of ours is the judge's, of the text that `bucketeer plan` wrote; a plan that the judge refuses, or that
is above its cap, ends the script. The lines between the marks of the page are replaced.
"""
import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- table: scripts/planning_table.py -->", "<!-- end of table -->"
# Our words for the caps of the instances.
MEMORY = {"normal": "normal", "tight": "same"}


def graph_of(folder):
    return next(folder / name for name in ("graph.txt", "graph.txt.gz") if (folder / name).exists())


def planned(options, folder, effort, cap, out):
    """Exposed nanoseconds, by the judge, and the seconds that the plan took."""
    graph, costs = graph_of(folder), folder / "costs.json"
    text = pathlib.Path(out) / f"{folder.name}.{effort}.{cap}.txt"
    begun = time.monotonic()
    command = [options.bucketeer, "plan", graph, "--costs", costs, "--effort", effort, "--memory", MEMORY[cap]]
    found = subprocess.run([*command, "--json", "-o", text], capture_output=True, text=True)
    seconds = time.monotonic() - begun
    if found.returncode != 0:
        sys.exit(f"{folder.name}, {effort}, {cap}: {found.stderr}")
    ours = json.loads(found.stdout)
    judged = subprocess.run(
        [sys.executable, options.judge, graph, costs, "--text", text, "--cap", cap], capture_output=True, text=True
    )
    if judged.returncode != 0:
        sys.exit(f"{folder.name}, {effort}, {cap}: the judge says {judged.stderr}")
    judged = json.loads(judged.stdout)
    if (judged["makespan_ns"], judged["peak_bytes"]) != (ours["planned"]["makespan_ns"], ours["planned"]["peak_bytes"]):
        sys.exit(f"{folder.name}, {effort}, {cap}: the judge says {judged}, the plan {ours['planned']}")
    return {"exposed": judged["exposed_ns"], "seconds": seconds, "bound": ours["bounds"][0], "kept": ours["bounds_as_written"][0]}


def ms(ns):
    return f"{ns / 1e6:.3f}"


def mean(ratios):
    product = 1.0
    for ratio in ratios:
        product *= ratio
    return product ** (1 / len(ratios))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("instances", type=pathlib.Path)
    parser.add_argument("judge", type=pathlib.Path)
    parser.add_argument("--bucketeer", default=ROOT / "target/release/bucketeer")
    parser.add_argument("--efforts", default="default", type=lambda text: text.split(","))
    parser.add_argument("--caps", default="normal,tight", type=lambda text: text.split(","))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--page", type=pathlib.Path)
    options = parser.parse_args()
    folders = sorted(path.parent for path in options.instances.glob("*/baseline.json") if options.only in path.parent.name)
    runs = [(effort, cap) for cap in options.caps for effort in options.efforts]
    with tempfile.TemporaryDirectory() as out, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        jobs = {
            (folder.name, run): pool.submit(planned, options, folder, *run, out) for folder in folders for run in runs
        }
        found = {key: job.result() for key, job in jobs.items()}
    heads = ["instance", "as it came", "PyTorch 2.15", "30 MiB, list", "DDP 25 MiB", "best known"]
    heads += [f"ours, {effort}, {cap}" for effort, cap in runs] + ["seconds", "bound", "by", "open", "bound, computation in the order it came in", "by"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    ratios = {run: [] for run in runs}
    for folder in folders:
        base = json.loads((folder / "baseline.json").read_text())
        compute = base["compute_ns"]

        def exposed(entry):
            return ms(entry["makespan_ns"] - compute) if entry else "-"

        best = base.get("exact_chain_optimum") or base["best_known"]
        cells = [folder.name, exposed(base["as_written"]), exposed(base["pytorch"]["best"]), exposed(base.get("combine30_list"))]
        cells += [exposed(base.get("ddp_25mib")), exposed(best)]
        cells += [ms(found[folder.name, run]["exposed"]) for run in runs]
        shortest = min((found[folder.name, run] for run in runs), key=lambda entry: entry["exposed"])
        cells.append("/".join(f"{found[folder.name, run]['seconds']:.1f}" for run in runs))
        bound = shortest["bound"]
        open_share = (compute + shortest["exposed"]) / bound["ns"] - 1
        cells += [ms(bound["ns"] - compute), bound["name"], f"{100 * open_share:.2f} %"]
        cells += [ms(shortest["kept"]["ns"] - compute), shortest["kept"]["name"]]
        lines.append("| " + " | ".join(cells) + " |")
        for run in runs:
            # A microsecond stands for nothing exposed.
            ratios[run].append(max(found[folder.name, run]["exposed"], 1000) / max(best["makespan_ns"] - compute, 1000))
    cells = ["geometric mean over best known"] + [""] * 5 + [f"{mean(ratios[run]):.3f}" for run in runs] + [""] * 6
    lines.append("| " + " | ".join(cells) + " |")
    table = "\n".join(lines)
    print(table)
    if options.page:
        page = options.page.read_text()
        before, rest = page.split(BEGIN)
        options.page.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
