//! All instances, judged by the shared tools' own reading of the text that is written.

use super::{Effort, normal_cap, options, planned, read};
use kit::files;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

fn instances() -> PathBuf {
    files::shared().with_file_name("instances")
}

/// What the judge says of a graph, or of a text that it was rewritten to.
fn judge(name: &str, text: Option<&PathBuf>) -> Value {
    let folder = instances().join(name);
    let graph =
        ["graph.txt", "graph.txt.gz"].map(|file| folder.join(file)).into_iter().find(|path| path.exists()).unwrap();
    let mut command = Command::new("python3");
    command.arg(files::shared().with_file_name("tools/replay.py")).arg(graph).arg(folder.join("costs.json"));
    if let Some(text) = text {
        command.arg("--text").arg(text).args(["--cap", "normal"]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
#[ignore = "needs BUCKETEER_SHARED"]
fn shared_instances_are_planned_as_well_as_any_and_judged_alike() {
    let mut count = 0;
    for folder in
        std::fs::read_dir(instances()).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir())
    {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let baseline: Value = serde_json::from_slice(&files::read(&folder.join("baseline.json"))).unwrap();
        let number = |value: &Value| value.as_u64().unwrap();
        let (mut document, costs) = read(&folder);
        let peak = number(&baseline["as_written"]["peak_bytes"]);
        let how = options(Some(normal_cap(peak)), Effort::Default);
        let (after, found) = planned(&document.graphs()[0], &costs, &how);
        assert_eq!(found.before.makespan_ns, number(&baseline["as_written"]["makespan_ns"]), "{name}");
        assert_eq!(found.before.peak_bytes, peak, "{name}");
        document.graphs_mut()[0] = after;
        let text = kit::scratch().join(format!("{name}.planned.txt"));
        std::fs::write(&text, document.print()).unwrap();
        let judged = judge(&name, Some(&text));
        assert_eq!(number(&judged["makespan_ns"]), found.after.makespan_ns, "{name}");
        assert_eq!(number(&judged["peak_bytes"]), found.after.peak_bytes, "{name}");
        assert_eq!(number(&judged["launches"]), found.after.launches.len() as u64, "{name}");
        let exact = &baseline["exact_chain_optimum"]["makespan_ns"];
        let best =
            exact.as_u64().unwrap_or_else(|| number(&baseline["best_known"]["makespan_ns"])) - found.after.compute_ns;
        let exposed = found.after.exposed_ns();
        assert!(exposed * 20 <= best * 21, "{name}: {exposed} ns are exposed, best known {best}");
        assert!(exact.is_null() || exposed <= best, "{name}: {exposed} ns are exposed, {best} are needed");
        assert!(found.after.makespan_ns <= number(&baseline["pytorch"]["best"]["makespan_ns"]), "{name}");
        // Bounds are no weaker than those that another program reckons by the same rules, and where that closes the order as
        // it came, so do ours.
        for (bounds, theirs) in [(&found.bounds, "any_order"), (&found.bounds_as_written, "order_as_written")] {
            let theirs = number(&baseline["lower_bound"][theirs]["value_ns"]);
            assert!(bounds[0].ns >= theirs, "{name}: {:?}, theirs is {theirs}", bounds[0]);
        }
        count += 1;
    }
    assert_eq!(count, 17);
}
